"""Names of the policies: light to import, for the command line. ``index.py`` has what they name."""

from __future__ import annotations

TEMPLATE = "template"  # what explores a user's template unless another policy is named
NAMES = ("evolution", "beam", TEMPLATE, "random")
