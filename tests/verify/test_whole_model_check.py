"""The check of a new pack's model: an answer near the reference's or near float64's is right, no other."""

from __future__ import annotations

from functools import partial

import numpy as np

from haotuner.graph.error_bounds import TOLERANCE, difference, in_double
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.interpret import interpret
from haotuner.verify.model_check import _Reference, _too_far

ROWS = 4096


def normalised() -> Graph:
    """Rows over their deviation, of a variance E[x^2] - E[x]^2 that is a millionth of E[x^2]."""
    g = GraphBuilder()
    x = g.input("x", (dimension("n"), ROWS, 2))
    mean = g.map("mul", g.add("reduce", x, how="sum", axes=(1,), keepdims=True), 1 / ROWS)
    squares = g.map("mul", g.add("reduce", g.map("mul", x, x), how="sum", axes=(1,), keepdims=True), 1 / ROWS)
    variance = g.map("max", g.map("sub", squares, g.map("mul", mean, mean)), 0.0)
    return g.finish(g.map("div", g.map("sub", x, mean), g.map("sqrt", g.map("add", variance, 1e-6))))


def test_a_model_that_loses_its_digits_in_fp32_is_held_against_float64_too():
    graph = normalised()
    inputs = {"x": (1 + 1e-3 * np.random.default_rng(0).standard_normal((1, ROWS, 2))).astype(np.float32)}
    values = interpret(graph, inputs)
    (output,) = graph.outputs
    exact = in_double(graph, inputs, {}, ())[output]
    assert difference(values[output], exact) > TOLERANCE, "fp32 sums lose what is left of the variance"
    reference = _Reference({**values, **inputs}, TOLERANCE, True, inputs.keys(), partial(in_double, graph, inputs, {}))
    near, wrong = exact.astype(np.float32), (values[output] + exact) / 2 + 1
    assert not _too_far({output: values[output]}, reference, whole=True)
    assert not _too_far({output: near}, reference, whole=True)
    assert _too_far({output: near}, reference, whole=False), "a part of a model begins with fp32 tensors"
    assert _too_far({output: wrong}, reference, whole=True)
