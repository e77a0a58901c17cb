"""Plain loops of fused groups, in C and in CUDA: what a model runs that no searched kernel serves."""
