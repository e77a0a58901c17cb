"""A pack for several instruction sets and devices: a folder a level, each a whole pack; a server takes the one that fits it.

On a CPU that is the widest level that it has. Code for other devices lies under its architecture and the device it was tuned
for, ``sm_90a/h200``: of what the device can run, that of the nearest device is served.

The outer ``manifest.json`` is ``{"schema": 1, "levels": {"x86-64-v4": "<sha256 of x86-64-v4/manifest.json>", …}}``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from haotuner.host.processor import LEVELS, missing_flags
from haotuner.pack.folder import is_level

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
        if not is_level(level) or not isinstance(digest, str) or not _SHA.fullmatch(digest):
            raise ValueError(f"level {level!r} is not one of {', '.join(LEVELS)} or sm_90a/DEVICE, with a sha256")
    return levels


def served_level(levels: Mapping[str, str], missing: Missing = missing_flags) -> str:
    """The widest level that this CPU has; the narrowest if it has none of them, which then refuses in its own words.

    The first level, if none is for CPUs.
    """
    widest_first = [level for level in reversed(LEVELS) if level in levels]
    if not widest_first:
        return next(iter(levels))
    return next((level for level in widest_first if not missing(level)), widest_first[-1])


def level_of(arch: str, device_id: str) -> str:
    """The level of a pack that was built for an architecture on a device: a folder of it, or a folder in one."""
    return f"{arch}/{device_id}" if is_placed(arch) else arch


def is_placed(arch: str) -> bool:
    """True if code for an architecture runs on a device beside the CPU: it serves tensors that lie there."""
    return arch.startswith("sm_")
