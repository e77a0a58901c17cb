"""Tolerances of a served model's answers, by element types; distances between answers; the same steps in float64."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.graph.rounding import rounded_apart, wide
from haotuner.graph.types import FLOATS, HALVES, numpy_dtype
from haotuner.ops.dtypes import DTYPES

TOLERANCE = 1e-3  # of the largest result: fp32 sums in other orders, through some hundred steps
# Of models that round to 16 bits after every step: what sums in other orders and later layers make of one.
ULPS_OF_HALVES = 4
# Of models that round to bytes: a sum between two bytes may become the other one, of a signed range 1/127 of the largest;
# layers behind it may make two of it, and many layers more: see ``tolerance_of``.
TOLERANCE_OF_BYTES = 2e-2
MOST_OF_BYTES = 0.25  # wrong kernels are further away
MOVED = 2.0**-9  # of a step: one byte of 500 becomes another one
SEED = 0  # of random numbers in a checked model


def tolerance_of(graph: Graph, given: Mapping[str, Any], branches: Mapping[str, int] | None = None) -> float:
    """Tolerance of answers to a request, as a share of the largest; ``branches`` taken so.

    Of models that round to bytes: as far as other roundings of one byte in 500 take the reference itself. Of those that
    compute in 16 bits, or answer in them: some of their units.
    """
    ends = {node.output for node in graph.nodes if node.primitive != "cast"} | set(graph.outputs)
    halves = [DTYPES[kind.dtype].eps for name, kind in graph.types.items() if name in ends and kind.dtype in HALVES]
    rounds = any(
        node.primitive == "cast"
        and node.attributes["dtype"] in ("int8", "uint8")
        and graph.types[node.inputs[0]].dtype in FLOATS
        for node in graph.nodes
    )
    least = max([TOLERANCE, *(ULPS_OF_HALVES * eps for eps in halves)])
    if not rounds:
        return least
    plain, moved = (interpret(variant, given, SEED, (), branches) for variant in (graph, rounded_apart(graph, MOVED)))
    far = [difference(moved[output], plain[output]) for output in graph.outputs]
    return min(max([TOLERANCE_OF_BYTES, least, *(distance for distance in far if np.isfinite(distance))]), MOST_OF_BYTES)


def difference(answer: Any, reference: Any) -> float:
    """The largest error over the largest number that was expected; infinite where shapes, infinities or NaNs differ."""
    if answer.shape != reference.shape:
        return float("inf")
    left, right = np.asarray(answer, np.float64), np.asarray(reference, np.float64)
    finite = np.isfinite(left) & np.isfinite(right)
    if not np.array_equal(left[~finite], right[~finite], equal_nan=True):
        return float("inf")
    left, right = left[finite], right[finite]
    return float(np.max(np.abs(left - right), initial=0) / max(1.0, np.max(np.abs(right), initial=0)))


def in_double(
    graph: Graph, given: Mapping[str, Any], branches: Mapping[str, int], keep: Collection[str]
) -> Mapping[str, Any]:
    """Outputs and tensors to ``keep``, by name, each step in float64; none where those steps have no answer."""
    widened = wide(graph)
    inputs = {name: np.asarray(value).astype(numpy_dtype(widened.types[name].dtype)) for name, value in given.items()}
    try:
        return interpret(widened, inputs, SEED, keep, branches)
    except (HaotunerError, ValueError, IndexError):
        return {}
