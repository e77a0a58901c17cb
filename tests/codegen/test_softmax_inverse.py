"""A softmax multiplies by the inverse of its sum: what that costs in digits, and where it is not done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.codegen.access import Accesses, softmax_sum
from haotuner.codegen.expressions import Apply, Variable
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder

B, T = dimension("b"), dimension("t")
MOST_TERMS = 2.0**31  # of a row: kernels take no longer ones
EXTRA_UNITS = 1.0  # unit of the last place that the product may be off more than the quotient, which is off by a half


def quotient_of(how: str = "sum", axis: int = 1, *, moved: bool = True, other: bool = False) -> Graph:
    """A softmax along the last axis, or something that looks like one."""
    g = GraphBuilder()
    x = g.input("x", (B, T))
    largest = g.add("reduce", x, how="max", axes=(axis,), keepdims=True)
    e = g.map("exp", g.map("sub", x, largest) if moved else x)
    return g.finish(g.map("div", x if other else e, g.add("reduce", e, how=how, axes=(1,), keepdims=True)))


def is_inverted(graph: Graph) -> bool:
    value = Accesses(graph, {}, inverts=True).computed(graph.outputs[0], (Variable("i"), Variable("j")))
    assert isinstance(value, Apply)
    assert softmax_sum(graph, graph.nodes[-1]) == (value.function == "mul")
    return value.function == "mul"


def test_quotients_of_a_softmax_are_products_with_one_inverse_a_row():
    g = GraphBuilder()
    graph = g.finish(decompositions.softmax(g, g.input("x", (B, T)), 1))
    assert is_inverted(graph) and is_inverted(quotient_of())
    value = Accesses(graph, {}).computed(graph.outputs[0], (Variable("i"), Variable("j")))
    assert isinstance(value, Apply) and value.function == "div", "who looks for a softmax finds the graph's own quotient"


@pytest.mark.parametrize(
    "other",
    [
        {"how": "max"},  # not a sum
        {"axis": 0},  # the maximum of another axis: no term is 1
        {"moved": False},  # sums from 0 on, whose inverse may be infinite
        {"other": True},  # a numerator of any size
    ],
    ids=lambda other: next(iter(other)),
)
def test_other_quotients_stay_quotients(other: dict[str, Any]):
    assert not is_inverted(quotient_of(**other))


def test_the_product_is_off_by_at_most_a_unit_more_at_all_exponents():
    draw = np.random.default_rng(0)
    e = np.concatenate([np.ldexp(draw.uniform(1, 2, 64), power) for power in range(-149, 1)]).astype(np.float32)
    e = np.concatenate([np.minimum(e, np.float32(1)), np.array([0, 2.0**-149, 2.0**-126, 1], np.float32)])
    totals = np.concatenate([np.ldexp(draw.uniform(1, 2, 64), power) for power in range(31)]).astype(np.float32)
    totals = np.minimum(np.concatenate([totals, np.array([1, MOST_TERMS], np.float32)]), np.float32(MOST_TERMS))
    inverse = np.float32(1) / totals
    assert (inverse >= np.finfo(np.float32).tiny).all(), "a normal number"
    exact = e.astype(np.float64)[:, None] / totals.astype(np.float64)
    unit = np.maximum(np.spacing(exact.astype(np.float32)), np.float32(2.0**-149)).astype(np.float64)
    off = np.abs((e[:, None] * inverse).astype(np.float64) - exact) / unit
    assert off.max() <= 0.5 + EXTRA_UNITS
    assert off.max() > 0.5, "more than a quotient: it is another number somewhere"
