"""Selection: hardware-friendly micro-kernels from shapes and resources, with the reason for every refusal."""
