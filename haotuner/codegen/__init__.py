"""Generated programs: a graph of primitives and a schedule become code for TVM, C or CUDA."""
