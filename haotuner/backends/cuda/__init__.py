"""CUDA backend: code, timers and packs for NVIDIA GPUs."""
