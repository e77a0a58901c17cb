"""Graphs of primitives over symbolic extents: what a group or a model computes, defined once with numpy's semantics."""
