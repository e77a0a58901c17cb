"""Generated kernels: a graph of primitives and a schedule become one program, for the compiler and for the interpreter."""
