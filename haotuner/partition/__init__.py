"""Which kernels compute a graph."""
