"""Where the tensors of a request lie in one block of memory: tensors whose lives do not overlap share bytes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

ALIGNED = 64


def lives(steps: Sequence[Mapping[str, Any]], inputs: Sequence[str], outputs: Sequence[str]) -> dict[str, tuple[int, int]]:
    """Of each tensor in memory the first and the last step that touch it; an alias counts as what it lies in."""
    of = {step["out"]: step["of"] for step in steps if step["do"] == "alias"}

    def root(name: str) -> str:
        while name in of:
            name = of[name]
        return name

    found: dict[str, tuple[int, int]] = {root(name): (0, 0) for name in inputs}
    for place, step in enumerate(steps):
        for name in touched(step):
            own = root(name)
            found[own] = (found.get(own, (place, place))[0], place)
    for name in outputs:
        own = root(name)
        found[own] = (found.get(own, (0, 0))[0], len(steps))
    return found


def touched(step: Mapping[str, Any]) -> list[str]:
    """Tensors that a step reads or writes."""
    if step["do"] == "alias":
        return [step["of"]]
    if step["do"] == "loops":
        return list(step["tensors"])
    if step["do"] == "online":
        return [*(one["of"] for one in step["views"].values()), step["out"]]
    views = [one["of"] if isinstance(one, dict) else one for one in (step["x"], step.get("w")) if one is not None]
    return [*views, *step["passed"].values(), step["out"]]


def together(spans: Mapping[str, tuple[int, int]]) -> dict[str, list[str]]:
    """Of each tensor those that live when it does."""
    return {
        name: [other for other, (a, b) in spans.items() if other != name and a <= last and first <= b]
        for name, (first, last) in spans.items()
    }


def placed(bytes_of: Mapping[str, int], beside: Mapping[str, Sequence[str]]) -> tuple[dict[str, int], int]:
    """Offsets by first fit, the largest first, and the size of the block. ``beside``: as ``together`` says."""
    found: dict[str, tuple[int, int]] = {}
    for name in sorted(bytes_of, key=lambda one: (-bytes_of[one], one)):
        need, at = -(-bytes_of[name] // ALIGNED) * ALIGNED, 0
        for start, end in sorted(found[one] for one in beside[name] if one in found):
            if at + need <= start:
                break
            at = max(at, end)
        found[name] = (at, at + need)
    return {name: start for name, (start, _) in found.items()}, max((end for _, end in found.values()), default=0)
