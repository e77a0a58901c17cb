"""Operators: one kind a file, with its axes, operands, reference and tolerance. Needs numpy only."""
