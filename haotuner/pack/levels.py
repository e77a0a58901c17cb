"""A pack for several instruction sets: a folder a level, each a whole pack; a server takes the widest that its CPU has.

The outer ``manifest.json`` is ``{"schema": 1, "levels": {"x86-64-v4": "<sha256 of x86-64-v4/manifest.json>", …}}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from haotuner.runtime.host import LEVELS, missing_flags

_SHA = re.compile(r"[0-9a-f]{64}")

Missing = Callable[[str], tuple[str, ...] | None]  # a level -> CPU flags that this host lacks


def level_hashes(document: Any) -> dict[str, str] | None:
    """Levels of an outer manifest with the hash of each inner one; None if ``document`` is a plain pack's manifest."""
    if not isinstance(document, dict) or "levels" not in document:
        return None
    levels = document["levels"]
    if "files" in document or "ops" in document:
        raise ValueError("levels stand beside files or ops; a manifest has the one or the other")
    if not isinstance(levels, dict) or not levels:
        raise ValueError("levels must name at least one instruction set")
    for level, digest in levels.items():
        if level not in LEVELS or not isinstance(digest, str) or not _SHA.fullmatch(digest):
            raise ValueError(f"level {level!r} is not one of {', '.join(LEVELS)} with a sha256")
    return levels


def served_level(levels: dict[str, str], missing: Missing = missing_flags) -> str:
    """The widest level that this host has; the narrowest if it has none of them, which then refuses in its own words."""
    widest_first = [level for level in reversed(LEVELS) if level in levels]
    return next((level for level in widest_first if not missing(level)), widest_first[-1])
