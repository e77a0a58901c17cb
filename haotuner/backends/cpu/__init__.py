"""x86-64 CPUs: TVM (LLVM) and a C compiler make the code, the serving runtime runs it, here and in a server."""
