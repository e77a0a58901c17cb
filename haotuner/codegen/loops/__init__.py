"""Plain loops of groups, in C and in CUDA: what a model runs that no searched kernel serves."""
