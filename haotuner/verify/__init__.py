"""Checks of a pack: files, numbers, whole models, and its speed beside the pack before."""
