"""Families of other tuners: their records are ranked and transferred, their kernels never built."""
