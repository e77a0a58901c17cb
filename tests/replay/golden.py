"""Goldens: what a replay gave, sealed so that a file stays small and still says where a difference begins.

A long list is kept as its length, its first items and a hash of every part of it. Numbers are compared twice: to 12
digits, and to 8. Exponentials and logarithms of NumPy and of the C library differ in the last bit between machines, and a
number that is close to the edge of its last digit is then rounded the other way.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[1] / "golden" / "replay"
LEAST_PART, MOST_PARTS = 32, 12  # items of a part, parts of a list
PLAIN = 6  # items of a list that are kept as they are
WIDTH = 160  # characters of them
FINE, COARSE = 12, 8  # digits
Fields = Mapping[str, Any]


def sealed(value: Any) -> Any:
    """What a golden keeps of one field: a text, a number, a list of texts or of numbers."""
    if isinstance(value, float):
        return _digits(value, FINE)
    if not isinstance(value, list) or (len(value) <= PLAIN and all(len(_text(item)) <= WIDTH for item in value)):
        return [_text(item) for item in value] if isinstance(value, list) else value
    texts = [_text(item) for item in value]
    summary = {"count": len(value), "first": [text[:WIDTH] for text in texts[:2]], "parts": _hashes(texts)}
    if any(isinstance(item, float) for item in value):
        summary["coarse"] = _hashes([_text(item, COARSE) for item in value])
    return summary


def _text(item: Any, digits: int = FINE) -> str:
    return _digits(item, digits) if isinstance(item, float) else str(item)


def _digits(value: float, digits: int) -> str:
    """Zero has one spelling, and what is nothing beside 1 is zero."""
    return f"{round(value, 15) + 0.0:.{digits}g}"


def _part(count: int) -> int:
    """Items of a part of a list: ``LEAST_PART``, doubled until there are few parts."""
    size = LEAST_PART
    while size * MOST_PARTS < count:
        size *= 2
    return size


def _hashes(texts: Sequence[str]) -> str:
    size = _part(len(texts))
    parts = ("\n".join(texts[at : at + size]) for at in range(0, len(texts), size))
    return " ".join(hashlib.sha256(part.encode()).hexdigest()[:8] for part in parts)


def path_of(group: str) -> Path:
    """Where a group's goldens lie."""
    return FOLDER / f"{group}.json"


def read(group: str) -> dict[str, dict[str, Any]]:
    """Case to field to what is sealed; empty if nothing was written yet."""
    path = path_of(group)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def write(group: str, cases: Mapping[str, Fields]) -> None:
    """Replace a group's goldens; a line a field."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    sealed_cases = {case: {name: sealed(value) for name, value in fields.items()} for case, fields in cases.items()}
    bodies = []
    for case, fields in sealed_cases.items():
        lines = (f"  {json.dumps(name)}: {json.dumps(value, ensure_ascii=False)}" for name, value in fields.items())
        bodies.append(f" {json.dumps(case)}: {{\n" + ",\n".join(lines) + "\n }")
    path_of(group).write_text("{\n" + ",\n".join(bodies) + "\n}\n", encoding="utf-8")


def differences(was: Mapping[str, Any], fields: Fields) -> tuple[list[str], int]:
    """What differs of one case, field by field, in words; and how many fields are the same to 8 digits only."""
    messages, close = [], 0
    for name in dict.fromkeys((*was, *fields)):
        if name not in fields:
            messages.append(f"{name}: is no longer there")
        elif name not in was:
            messages.append(f"{name}: is new")
        elif (now := sealed(fields[name])) != was[name]:
            if _close(was[name], now):
                close += 1
            else:
                messages.append(f"{name}: {_first(was[name], now, fields[name])}")
    return messages, close


def _close(was: Any, now: Any) -> bool:
    if isinstance(was, dict) and isinstance(now, dict):
        return "coarse" in was and (was["count"], was["coarse"]) == (now["count"], now.get("coarse"))
    if isinstance(was, list) and isinstance(now, list):
        return len(was) == len(now) and all(a == b or _close(a, b) for a, b in zip(was, now, strict=True))
    try:
        return abs(float(was) - float(now)) <= 10.0**-COARSE * abs(float(was))
    except (TypeError, ValueError):
        return False


def _first(was: Any, now: Any, value: Any) -> str:
    """The first difference, old and new."""
    if isinstance(was, dict) and isinstance(now, dict):
        counts = "" if was["count"] == now["count"] else f"{was['count']} items, now {now['count']}; "
        for old, new in zip(was["first"], now["first"], strict=True):
            if old != new and not _close(old, new):
                return f"{counts}was {old!r}, now {new!r}"
        size = _part(now["count"])
        if size != _part(was["count"]):
            return f"{counts}the first are the same"
        kind = "coarse" if "coarse" in was and "coarse" in now else "parts"
        pairs = enumerate(zip(was[kind].split(), now[kind].split(), strict=False))
        at = size * next((index for index, (old, new) in pairs if old != new), 0)
        return f"{counts}something from item {at + 1} to {at + size}, the first of these now {_text(value[at])[:WIDTH]!r}"
    if isinstance(was, list) and isinstance(now, list):
        for at, (old, new) in enumerate(zip(was, now, strict=False)):
            if old != new:
                return f"item {at + 1} was {old!r}, now {new!r}"
        return f"{len(was)} items, now {len(now)}"
    return f"was {_brief(was)}, now {_brief(now)}"


def _brief(value: Any) -> str:
    return repr(value["first"] if isinstance(value, dict) else value)[: 2 * WIDTH]
