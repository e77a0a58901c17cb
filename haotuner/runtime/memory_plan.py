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
    views = [one["of"] if isinstance(one, dict) else one for one in (step["x"], step.get("w")) if one is not None]
    return [*views, *step["passed"].values(), step["out"]]


def placed(bytes_of: Mapping[str, int], spans: Mapping[str, tuple[int, int]]) -> tuple[dict[str, int], int]:
    """Offsets by first fit, the largest first, and the size of the block."""
    found: dict[str, int] = {}
    laid: list[tuple[int, int, int, int]] = []  # first step, last step, offset, end
    for name in sorted(bytes_of, key=lambda one: (-bytes_of[one], one)):
        need, (first, last) = -(-bytes_of[name] // ALIGNED) * ALIGNED, spans[name]
        at = 0
        for _, _, start, end in sorted(
            (one for one in laid if one[0] <= last and first <= one[1]), key=lambda one: (one[2], one[3])
        ):
            if at + need <= start:
                break
            at = max(at, end)
        found[name] = at
        laid.append((first, last, at, at + need))
    return found, max((end for *_, end in laid), default=0)
