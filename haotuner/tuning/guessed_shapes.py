"""Ranges of a model's dimensions where nobody says any: guessed from names, axes and types of its inputs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.exported_program import SUFFIX, bounds_of
from haotuner.graph.graph import Graph
from haotuner.partition.dim_ranges import spans_of
from haotuner.verify.model_check import graph_of

# What a name says, the first that fits, and its sizes: usual ones of servers, since a tighter range has better plans.
_NAMED = (
    (re.compile(r"past|cache|history|memory"), (1, 512, 1)),
    (re.compile(r"batch|^(n|b|bs|bsz)$"), (1, 8, 1)),
    (re.compile(r"seq|len|token|time|step|frame|word|^(t|s|l)$"), (1, 512, 1)),
    (re.compile(r"height|width|^(h|w)$|spatial|pixel"), (64, 512, 32)),
)
_BATCH, _TOKENS, _SIDE, _OTHER = (1, 8, 1), (1, 512, 1), (64, 512, 32), (1, 256, 1)
IMAGE_RANK = 4  # of an input whose last two axes are sides of an image


def guessed_shapes(file: Path) -> str:
    """Text of ``--shapes`` for a model's file: a range for each of its dimensions, or ``dynamic`` where it has none.

    Bounds that torch.export wrote into a program are within the ranges. UsageError for a dimension that data decide: its
    size is in no file.
    """
    graph = graph_of(file, "dynamic")
    known = bounds_of(file) if file.suffix == SUFFIX else {}
    text = ";".join(f"{name}={_text(_guess(graph, name), known.get(name))}" for name in graph.dimensions)
    spans_of(graph, text or "dynamic")  # UsageError in its words, before anything is tuned
    return text or "dynamic"


def _guess(graph: Graph, name: str) -> tuple[int, int, int]:
    for pattern, sizes in _NAMED:
        if pattern.search(name.lower()):
            return sizes
    rank, axis, whole = _position(graph, name)
    if axis == 0:
        return _BATCH
    if rank == IMAGE_RANK and axis >= 2:
        return _SIDE
    return _TOKENS if axis == 1 and (whole or rank == IMAGE_RANK - 1) else _OTHER


def _position(graph: Graph, name: str) -> tuple[int, int, bool]:
    """Rank of the first input that has a dimension, its axis there, and whether the elements are whole numbers."""
    for tensor in graph.inputs:
        kind: Any = graph.types[tensor]
        for axis, extent in enumerate(kind.shape):
            if str(extent) == name:
                return kind.rank, axis, kind.dtype.startswith(("int", "uint"))
    return 1, 0, False


def _text(sizes: tuple[int, int, int], bounds: tuple[int, int | None] | None) -> str:
    first, last, step = sizes
    if bounds is not None:
        least, most = bounds
        last = last if most is None else min(last, most)
        first = min(max(first, least, 1), last)
        if least > last:
            raise UsageError(f"the program takes sizes from {least} on; name a range with --shapes")
    return f"{first}..{last}" + (f":{step}" if step > 1 and (last - first) % step == 0 else "")
