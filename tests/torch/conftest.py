"""Packs that tests of served torch models share with those of the runtime."""

from __future__ import annotations

from tests.runtime.conftest import built_pack, chained, chained_path, copied, linear, pack, weight

__all__ = ["chained", "chained_path", "copied", "linear", "built_pack", "pack", "weight"]
