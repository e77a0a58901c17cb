"""Packs that tests of served torch models share with those of the runtime."""

from __future__ import annotations

from tests.runtime.conftest import chained, chained_path, copied, linear, made, pack, weight

__all__ = ["chained", "chained_path", "copied", "linear", "made", "pack", "weight"]
