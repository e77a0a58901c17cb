"""Graphs of primitives over symbolic extents, with numpy's semantics; passes that rewrite them."""
