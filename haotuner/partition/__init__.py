"""The partition of a model's graph into kernels: products, fused groups, attention."""
