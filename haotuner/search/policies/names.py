"""Names of the policies: light to import, for the command line. ``index.py`` has what they name."""

from __future__ import annotations

NAMES = ("evolution", "beam", "template", "random")
