"""Reader of ONNX files: they become graphs."""
