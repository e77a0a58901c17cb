"""Options of the plugin: what ``additional_config["haotuner"]`` of vLLM says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError

KEY = "haotuner"
EXAMPLE = '--additional-config \'{"haotuner": {"pack": "PACK"}}\''


@dataclass(frozen=True, slots=True)
class Options:
    """Pack that serves the linears of a model."""

    pack: Path

    @staticmethod
    def of(additional: Any) -> Options | None:
        """Options of vLLM's ``additional_config``; None where it says nothing of haotuner. UsageError: another form."""
        if not isinstance(additional, Mapping) or KEY not in additional:
            return None
        words = additional[KEY]
        if not isinstance(words, Mapping):
            raise UsageError(f"additional_config[{KEY!r}] is {words!r}; write {EXAMPLE}")
        odd = sorted(str(key) for key in words if key not in ("pack", "pack_id"))
        if odd or not isinstance(words.get("pack"), str) or not words["pack"]:
            unknown = f"has the unknown keys {', '.join(odd)}" if odd else "names no pack"
            raise UsageError(f"additional_config[{KEY!r}] {unknown}; write {EXAMPLE}")
        return Options(Path(words["pack"]))
