"""Hardware-friendly micro-kernels, selected by shapes and resources, with the reason for every refusal."""
