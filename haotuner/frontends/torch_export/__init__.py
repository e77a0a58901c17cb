"""Programs of torch.export become graphs."""
