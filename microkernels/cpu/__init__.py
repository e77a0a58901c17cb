"""Families of tile programs for CPUs."""
