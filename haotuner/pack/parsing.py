"""JSON of a pack, read strictly: whoever wrote it may mean harm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from haotuner.errors import PackInvalid

DEPTH_LIMIT = 32
BRACKETS_LIMIT = 500_000  # a pack of 256 ops has some 40,000; two million empty lists take the parser 0.2 s
_ALIKE, _NO_BRACKETS = bytes.maketrans(b"{}", b"[]"), bytes(set(range(256)) - set(b"[]{}"))


def parse(path: Path, raw: bytes) -> Any:
    """JSON of bounded depth without repeated keys or constants such as NaN; PackInvalid names ``path``."""
    if raw.count(b"[") + raw.count(b"{") > BRACKETS_LIMIT or _depth(raw) > DEPTH_LIMIT:
        raise PackInvalid(f"{path}: nested too deeply to be a manifest")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PackInvalid(f"{path}: not valid JSON ({error}); tune again or restore the pack from where it came") from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("a key is given twice")
    return result


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _depth(raw: bytes) -> int:
    """Deepest nesting, or a little more when brackets stand inside texts, which no manifest has. Counted up to the limit."""
    rest, depth = raw.translate(_ALIKE, _NO_BRACKETS), 0
    while rest and depth <= DEPTH_LIMIT:
        inner = rest.replace(b"[]", b"")  # the innermost pairs
        if len(inner) == len(rest):
            return depth + len(rest)  # what closes nothing, or is never closed
        rest, depth = inner, depth + 1
    return depth
