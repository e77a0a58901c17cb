"""Families of tile programs for GPUs."""
