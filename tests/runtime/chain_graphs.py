"""Graphs of models whose sizes, branches and turns depend on data, for packs of any device."""

from __future__ import annotations

import numpy as np

from haotuner.graph.extents import dimension, largest, smallest
from haotuner.graph.graph import Body, Graph, GraphBuilder, Required

B = dimension("batch")
COUNT, AGAIN, LENGTH, TURNS, FEW, INNER, OUTER = (
    dimension(name) for name in ("count_0", "count_1", "length_0", "turns_0", "count_0", "either_0", "either_1")
)
WEIGHT = np.random.default_rng(0).standard_normal((8, 8)).astype(np.float32)


def product(g: GraphBuilder, x: str) -> str:
    """A layer of 8 features."""
    return g.add("contract", x, g.constant(WEIGHT), labels="ab,bc->ac")


def chosen() -> Graph:
    """Rows above 0 through a layer, of them those that are still, and how many there were of both."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    first = g.add("slice", x, axes=(1,), starts=(0,), stops=(1,), steps=(1,))
    rows = g.add("nonzero", g.map("greater", g.add("reshape", first, shape=(B,)), 0.0), extent=COUNT)
    selected = product(g, g.add("gather", x, g.add("reshape", rows, shape=(COUNT,)), axis=0))
    sums = g.add("reduce", selected, axes=(1,), how="sum", keepdims=False)
    again = g.add("nonzero", g.map("greater", sums, 0.0), extent=AGAIN)
    last = g.map("add", g.add("gather", selected, g.add("reshape", again, shape=(AGAIN,)), axis=0), 1.0)
    total = g.map("add", g.add("size", extent=COUNT), g.add("size", extent=AGAIN))
    return g.finish(last, again, total, g.map("mul", x, 2.0))


def grown() -> Graph:
    """As many steps as the data say, each a layer of noise; a constant per step whose own length needs no data's tensor."""
    g = GraphBuilder()
    x, long = g.input("x", (B, 8)), g.input("long", (2,), "int64")
    largest = g.add("reduce", long, axes=(0,), how="max", keepdims=False)
    g.add("counted", g.map("add", largest, 1), place=0, extent=LENGTH)
    noise = g.add("random", shape=(LENGTH, 8), dtype="fp32", law="normal", number=0, low=0.0, high=0.5)
    steps = product(g, g.map("add", noise, g.add("reduce", x, axes=(0,), how="sum", keepdims=False)))
    return g.finish(steps, g.add("broadcast", g.constant(np.float32(3)), shape=(LENGTH, 2)))


def looped() -> Graph:
    """A layer for as many turns as the data say, while its result is small; a sum of rows; each turn's of both."""
    g = GraphBuilder()
    x, long = g.input("x", (B, 8)), g.input("long", (2,), "int64")
    limit = g.add("reduce", long, axes=(0,), how="max", keepdims=False)
    layer = GraphBuilder()
    state, turn = layer.input("state", (B, 8)), layer.input("turn", (), "int64")
    after = product(layer, state)
    small = layer.map("less", layer.add("reduce", after, axes=(0, 1), how="sum", keepdims=False), 1e9)
    shifted = layer.map("add", after, layer.add("cast", turn, dtype="fp32"))
    turned = Body(layer.finish(after, small, shifted), turn, ((state, after),), (), (), (shifted,), small).renamed(
        "a_{}".format
    )
    many = g.add("loop", limit, g.map("mul", x, 1.0), body=turned, limited=True, asked=False)
    g.add("turns", many, extent=TURNS)
    rows = GraphBuilder()
    before, row, at = rows.input("total", (8,)), rows.input("row", (8,)), rows.input("at", (), "int64")
    total, more = rows.map("add", before, row), rows.map("mul", row, 2.0)
    summed = Body(rows.finish(total, more), at, ((before, total),), (row,), (), (more,), None).renamed("b_{}".format)
    first = g.add("reduce", x, axes=(0,), how="max", keepdims=False)
    few = g.add("loop", first, x, body=summed, limited=False, asked=False, turns=B)
    ends = [(many, 0, (B, 8)), (many, 1, (TURNS, B, 8)), (few, 0, (8,)), (few, 1, (B, 8))]
    return g.finish(*(g.add("loop_result", of, place=at, shape=shape, dtype="fp32") for of, at, shape in ends))


def branched() -> Graph:
    """One row less through a layer where the data say so, else by its size all of it or rows that the data choose."""
    g = GraphBuilder()
    x, long = g.input("x", (B, 8)), g.input("long", (2,), "int64")
    largest_of = g.add("reduce", long, axes=(0,), how="max", keepdims=False)
    flag = g.add("decided", g.map("greater", largest_of, 3), branch="branch_0")
    g.guard = (("branch_0", 1),)
    fewer = product(g, g.add("slice", x, axes=(0,), starts=(0,), stops=(B - 1,), steps=(1,)))
    g.guard = (("branch_0", 0),)
    inner = g.add("decided", extent=smallest([1, largest([0, B - 3])]), branch="branch_1")
    g.guard = (("branch_0", 0), ("branch_1", 1))
    first = g.add("reshape", g.add("slice", x, axes=(1,), starts=(0,), stops=(1,), steps=(1,)), shape=(B,))
    places = g.add("reshape", g.add("nonzero", g.map("greater", first, 0.0), extent=FEW), shape=(FEW,))
    rows = product(g, g.add("gather", x, places, axis=0))
    g.guard = (("branch_0", 0), ("branch_1", 0))
    doubled = g.map("mul", x, 2.0)
    g.guard = (("branch_0", 0),)
    other = g.add("chosen", inner, rows, doubled, branch="branch_1", shape=(INNER, 8), told=((0, INNER),))
    g.guard = ()
    result = g.add("chosen", flag, fewer, other, branch="branch_0", shape=(OUTER, 8), told=((0, OUTER),))
    g.required.append(Required(largest([0, 10 - B]), "batch is above 9"))
    return g.finish(result, g.map("add", result, 1.0))


def carried() -> Graph:
    """For as many turns as the data say: rows of a layer appended each turn, and numbers, twice as many each turn."""
    g = GraphBuilder()
    x, long = g.input("x", (B, 8)), g.input("long", (2,), "int64")
    limit = g.map("min", g.add("reduce", long, axes=(0,), how="max", keepdims=False), 9)
    rows, many, last = dimension("carried_0"), dimension("carried_1"), dimension("grown_0")
    turn = GraphBuilder()
    state, values = turn.input("state", (rows, 8)), turn.input("values", (many,))
    more, number = turn.input("more", (B, 8)), turn.input("turn", (), "int64")
    layer = turn.map("add", product(turn, more), turn.add("cast", number, dtype="fp32"))
    total = turn.add("reduce", state, axes=(0, 1), how="sum", keepdims=False)
    after = turn.add("concat", state, turn.map("add", layer, turn.map("mul", total, 1e-3)), axis=0)
    twice = turn.add("concat", values, turn.map("add", values, turn.add("size", extent=rows, dtype="fp32")), axis=0)
    pairs, changing = ((state, after), (values, twice)), ((0, 0, rows), (1, 0, many))
    body = Body(turn.finish(after, twice), number, pairs, (), (more,), (), None, changing)
    firsts = (g.map("mul", x, 0.5), g.add("reshape", g.add("reduce", x, axes=(0, 1), how="sum", keepdims=False), shape=(1,)))
    shared = g.map("mul", x, 2.0)
    body = body.renamed(lambda name: shared if name == more else f"c_{name}")
    every = g.add("loop", limit, *firsts, shared, body=body, limited=True, asked=False)
    g.add("turns", every, extent=TURNS)
    stack = g.add("loop_result", every, place=0, shape=(B + B * TURNS, 8), dtype="fp32")
    numbers = g.add("loop_result", every, place=1, shape=(last,), dtype="fp32", told=((0, last),))
    return g.finish(product(g, stack), g.map("mul", numbers, 2.0), numbers)


def noisy() -> Graph:
    """Noise of a known shape: one segment, behind what the host draws."""
    g = GraphBuilder()
    x = g.input("x", (B, 8))
    noise = g.add("random", shape=(B, 8), dtype="fp32", law="normal", number=0, low=0.0, high=0.5)
    return g.finish(g.map("add", noise, product(g, x)))


GRAPHS = {"chosen": chosen(), "grown": grown(), "looped": looped(), "branched": branched(), "carried": carried()}
ON_DEVICE = GRAPHS | {"noisy": noisy()}
