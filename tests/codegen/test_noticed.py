"""Which maxima may lose a NaN: those whose rows have it anyway, and no others."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from haotuner.codegen.schedule import Schedule, planned
from haotuner.codegen.values import nan_propagating_maxima
from haotuner.graph import decompositions
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from tests.codegen.interpreter import run

M, N = dimension("m"), dimension("n")


def moved(g: GraphBuilder, x: str, axis: int = 1) -> tuple[str, str, str]:
    """Max x, e^(x - max x), and their sum."""
    most = g.add("reduce", x, how="max", axes=(axis,), keepdims=True)
    power = g.map("exp", g.map("sub", x, most))
    return most, power, g.add("reduce", power, how="sum", axes=(axis,), keepdims=True)


def log_softmax(g: GraphBuilder, x: str) -> str:
    most, _, total = moved(g, x)
    return g.map("sub", g.map("sub", x, most), g.map("log", total))


def shown(g: GraphBuilder, x: str) -> str:
    return moved(g, x)[0]


def powers(g: GraphBuilder, x: str) -> str:
    return moved(g, x)[1]


def chosen(g: GraphBuilder, x: str) -> str:
    """A sum whose NaN is dropped."""
    _, power, total = moved(g, x)
    return g.map("mul", power, g.map("select", g.map("less", total, 2.0), total, 1.0))


def across(g: GraphBuilder, x: str) -> str:
    """A row reads what other rows' maxima made."""
    _, power, total = moved(g, x)
    return g.map("add", g.add("reduce", power, how="max", axes=(0,), keepdims=True), total)


def other_axis(g: GraphBuilder, x: str) -> str:
    """The sum is over columns, the maximum over rows."""
    _, power, _ = moved(g, x)
    return g.map("div", power, g.add("reduce", power, how="sum", axes=(0,), keepdims=True))


def turned(g: GraphBuilder, x: str) -> str:
    most, power, total = moved(g, x)
    return g.map("add", g.map("mul", power, total), g.add("slice", most, axes=(0,), starts=(0,), stops=(1,), steps=(1,)))


def of(build: Callable[[GraphBuilder, str], str]) -> Graph:
    g = GraphBuilder()
    return g.finish(build(g, g.input("x", (M, N))))


@pytest.mark.parametrize("build", [decompositions.softmax, log_softmax])
def test_what_a_row_tells_anyway_is_not_kept(build: Callable[[GraphBuilder, str], str]) -> None:
    graph = of(build)
    assert nan_propagating_maxima(graph) == {node.output for node in graph.nodes if node.attributes.get("how") == "max"}
    x = np.linspace(-3, 3, 7 * 9, dtype=np.float32).reshape(7, 9)
    for row in range(7):  # at the front, in whole vectors, in the tail; two in a row; a row of nothing else
        x[row, row : row + 1 + row % 2] = np.nan
    x[6] = np.nan
    output, _ = run(planned(graph, Schedule(lane_axis=1, lanes=4, unroll=1)), {"x": x})
    np.testing.assert_allclose(output, interpret(graph, {"x": x})[graph.outputs[0]], rtol=1e-5, equal_nan=True)


@pytest.mark.parametrize("build", [shown, powers, chosen, across, other_axis, turned])
def test_a_maximum_that_is_seen_otherwise_keeps_its_nan(build: Callable[[GraphBuilder, str], str]) -> None:
    assert not nan_propagating_maxima(of(build))
