"""Readers of models of other systems: files become graphs."""
