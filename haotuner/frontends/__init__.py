"""Readers of ONNX files and of torch.export programs, which become graphs."""
