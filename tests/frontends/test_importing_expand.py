"""Expand: rows that a slice leaves one of, extents that requests make equal, and requests where they differ."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret
from haotuner.partition.dim_ranges import demands, ranges_of, unmet

onnx = pytest.importorskip("onnx")


def graph_from(text: str, shapes: str) -> Graph:
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 21]> {text}')
    return graph_of(model, None, {}, lambda inputs: ranges_of(inputs, shapes))


def test_the_first_row_is_expanded_to_any_number_of_rows() -> None:
    """The slice has min(1, n) rows, which were taken for as many as the result has."""
    graph = graph_from(
        """g (float[n,4] x) => (float[k,4] y) {
        sizes = Shape(x)  begin = Constant<value_ints=[0]>()  end = Constant<value_ints=[1]>()
        n = Slice(sizes, begin, end)  ten = Constant<value_ints=[10]>()  rows = Add(n, ten)
        four = Constant<value_ints=[4]>()  shape = Concat<axis=0>(rows, four)
        row = Slice(x, begin, end, begin)  y = Expand(row, shape) }""",
        "n=1..64",
    )
    for rows in (1, 2, 7):
        x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], np.broadcast_to(x[:1], (rows + 10, 4)))


def test_requests_that_expand_an_axis_to_another_extent_are_refused() -> None:
    """Which extent is 1 is not known before the request; the result was as long as the input, without a word."""
    graph = graph_from(
        "g (float[n,4] x, float[m,4] z) => (float[k,4] y) { s = Shape(z)  y = Expand(x, s) }", "n=1..9;m=1..9"
    )
    required = demands(graph)
    assert not any(unmet(required, {"n": n, "m": m}) for n, m in ((5, 5), (5, 1), (1, 1)))
    assert unmet(required, {"n": 1, "m": 5}) and unmet(required, {"n": 3, "m": 5})
    assert "expands an axis of n to m" in graph.required[0].words
