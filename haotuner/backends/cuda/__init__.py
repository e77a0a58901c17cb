"""NVIDIA GPUs: what is built for them."""
