"""Code of micro-kernels, objects and libraries, and timers, for CPUs and for CUDA; the only importers of tvm."""
