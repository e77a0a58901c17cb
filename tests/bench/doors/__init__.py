"""Doors: haotuner inside servers that people run, each beside the same server without it; a file for each door."""
