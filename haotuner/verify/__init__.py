"""Packs held against references: files, numbers, whole models, and the time of the pack before."""
