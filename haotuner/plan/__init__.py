"""Plans: which micro-kernels to keep, and how they cover each shape."""
