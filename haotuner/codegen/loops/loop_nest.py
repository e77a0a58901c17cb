"""Bodies of loops while they are written, and the group that comes of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from haotuner.graph.extents import Extent


@dataclass(slots=True)
class Scope:
    """A loop's body: lines and inner loops in their order; what it has computed, by the text and by the expression."""

    bound: frozenset[str]
    lines: list[Any] = field(default_factory=list)
    by_text: dict[str, str] = field(default_factory=dict)
    by_identity: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Group:
    """The C of a group and what a call passes it: tensors in order, the outputs last, of which the last one's are the loops.

    Of a device (``cuda_loops.py``): ``lanes`` threads for each point of the first ``points`` loops, and the lines of the
    size table that it reads.
    """

    source: str
    tensors: tuple[str, ...]
    loops: tuple[Extent, ...]
    points: int = 0
    lanes: int = 1
    sizes: tuple[int, ...] = ()


def text_of(lines: Sequence[Any], depth: int) -> list[str]:
    """Lines with their loops' bodies indented."""
    result: list[str] = []
    for line in lines:
        if isinstance(line, str):
            result.append("  " * depth + line)
        else:
            head, *body = line
            result += ["  " * depth + head + " {", *text_of(body, depth + 1), "  " * depth + "}"]
    return result
