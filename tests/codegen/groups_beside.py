"""Graphs with several outputs, for tests of programs that write all of them."""

from __future__ import annotations

from haotuner.codegen.group import kinds_of
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.spec.op import Op

M, N, K = (dimension(name) for name in "mnk")


def norm() -> Graph:
    """A residual, its norm, and of each row mean, 1 / deviation and the largest: five outputs over the same rows."""
    g = GraphBuilder()
    total = g.map("add", g.input("x", (M, N)), g.input("r", (M, N)))
    mean = g.add("reduce", g.map("mul", total, 0.125), how="sum", axes=(1,), keepdims=True)
    centred = g.map("sub", total, mean)
    squares = g.add("reduce", g.map("mul", centred, centred), how="sum", axes=(1,), keepdims=True)
    scale = g.map("rsqrt", g.map("add", squares, 1e-3))
    largest = g.add("reduce", total, how="max", axes=(1,))
    return g.finish(mean, total, g.map("mul", centred, scale), scale, largest)


def maps() -> Graph:
    """Two maps of one tensor, which a program takes as one long row."""
    g = GraphBuilder()
    x = g.input("x", (M, N))
    e = g.map("exp", x)
    return g.finish(e, g.map("mul", e, 0.5))


def deep() -> Graph:
    """A softmax over the last of three axes, what it is of, and each row's sum."""
    g = GraphBuilder()
    x = g.map("mul", g.input("x", (K, M, N)), 0.5)
    most = g.add("reduce", x, how="max", axes=(2,), keepdims=True)
    e = g.map("exp", g.map("sub", x, most))
    total = g.add("reduce", e, how="sum", axes=(2,), keepdims=True)
    return g.finish(total, g.map("div", e, total), x, g.add("reshape", most, shape=(K, M)))


def mixed() -> Graph:
    """A row's scaled sum and what it scales, a norm down the columns, a product, a transpose: no program writes all."""
    g = GraphBuilder()
    x = g.input("x", (M, N))
    row = g.add("reduce", x, how="max", axes=(1,), keepdims=True)
    column = g.add("reduce", x, how="sum", axes=(0,), keepdims=True)
    product = g.add("contract", x, g.input("b", (N, K)), labels="mn,nk->mk")
    turned = g.add("transpose", g.map("exp", x), order=(1, 0))
    return g.finish(row, g.map("mul", x, column), g.map("sub", x, row), product, turned)


def folds() -> Graph:
    """Nothing but two folds of rows, which blocks share one by one."""
    g = GraphBuilder()
    x = g.input("x", (M, N))
    return g.finish(*(g.add("reduce", x, how=how, axes=(1,)) for how in ("sum", "max")))


def joint(graph: Graph, stem: str = "many") -> list[Op]:
    """The ops of a graph where one program may write several outputs."""
    return [Op.parse(kind.name) for kind in kinds_of(graph, stem, lambda kind: True)]
