"""Folder of results that outlive a process: the one place that reads the environment for it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path


def cache_folder(environment: Mapping[str, str]) -> Path | None:
    """``$XDG_CACHE_HOME/haotuner``, or ``~/.cache/haotuner``; None for a user without a home.

    A relative XDG_CACHE_HOME is ignored, as the XDG base directory specification asks.
    """
    chosen = Path(environment.get("XDG_CACHE_HOME", ""))
    if chosen.is_absolute():
        return chosen / "haotuner"
    home = Path(environment.get("HOME", ""))
    return home / ".cache" / "haotuner" if home.is_absolute() else None
