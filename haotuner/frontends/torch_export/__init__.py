"""Reader of torch.export programs: they become graphs."""
