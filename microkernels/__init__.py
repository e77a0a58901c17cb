"""Tile programs, one family a file."""

if __name__ == "microkernels":  # found from the repository root: a second copy of every class
    raise ImportError("import haotuner.microkernels; this folder is only where the sources live")
