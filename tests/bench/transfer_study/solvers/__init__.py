"""Choice of a solver for a shape on a device that measured none of its own."""
