"""Expand, Reshape, Concat: extents that requests make equal, 0 or 1, and requests that are refused in words."""

from __future__ import annotations

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import MissingRows, interpret
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


@pytest.mark.parametrize(("shape", "size"), [("Concat<axis=0>(open, k)", (8, 3)), ("Concat<axis=0>(k, open)", (3, 8))])
def test_an_extent_of_0_beside_an_open_one_is_refused(shape: str, size: tuple[int, int]) -> None:
    """It stands for the axis before: ONNX Runtime gives (4, 6), and the interpreter divided by 0."""
    graph = graph_from(
        f"g (float[n,m] x, float[k] z) => (float[p,q] y) {{ k = Shape(z)  open = Constant<value_ints=[-1]>()"
        f"  shape = {shape}  y = Reshape(x, shape) }}",
        "n=1..9;m=1..9;k=1..9",
    )
    empty = np.empty((0, 6), np.float32)
    assert [bool(unmet(demands(graph), {"n": 4, "m": 6, "k": k})) for k in range(4)] == [True, False, False, False]
    assert interpret(graph, {"x": np.ones((4, 6), np.float32), "z": np.ones(3, np.float32)})["y"].shape == size
    assert interpret(graph, {"x": empty, "z": np.ones(3, np.float32)})["y"].size == 0
    for x in (np.ones((4, 6), np.float32), empty, np.ones((4, 0), np.float32)):
        with pytest.raises(
            UsageError, match="an extent of k and an open one; send a request where it is not 0|division by 0"
        ):
            interpret(graph, {"x": x, "z": np.ones(0, np.float32)})
    with pytest.raises(UsageError, match=r"y \(reshape of \(4, 6\)\): cannot reshape .*no answer to this request"):
        interpret(graph, {"x": np.ones((4, 6), np.float32), "z": np.ones(5, np.float32)})


def test_an_axis_of_its_own_may_be_empty_beside_an_open_extent() -> None:
    graph = graph_from(
        "g (float[n,k,m] x) => (float[p,k] y) { k = Shape<start=1, end=2>(x)  open = Constant<value_ints=[-1]>()"
        "  shape = Concat<axis=0>(open, k)  y = Reshape(x, shape) }",
        "n=1..9;m=1..9;k=1..9",
    )
    for shape, size in (((2, 3, 4), (8, 3)), ((0, 3, 4), (0, 3)), ((2, 3, 0), (0, 3)), ((2, 0, 4), (8, 0))):
        assert interpret(graph, {"x": np.ones(shape, np.float32)})["y"].shape == size


@pytest.mark.parametrize("sizes", [((2, 3), (1, 5)), ((2, 3), (0, 5)), ((0, 3), (0, 5))])
def test_tensors_behind_one_another_have_equal_extents_elsewhere(sizes: tuple[tuple[int, int], ...]) -> None:
    """ONNX Runtime takes any without elements; the error said nothing of the model."""
    graph = graph_from(
        "g (float[n,m] x, float[p,q] z) => (float[r,m] y) { y = Concat<axis=0>(x, z) }", "n=1..9;m=1..9;p=1..9;q=1..9"
    )
    assert unmet(demands(graph), {"n": 2, "m": 3, "p": 1, "q": 5})
    with pytest.raises(UsageError, match=r"y \(concat of .*dimensions except for the concatenation axis must match exactly"):
        interpret(graph, dict(zip("xz", (np.ones(size, np.float32) for size in sizes), strict=True)))


def test_a_convolution_of_one_channel_is_not_repeated_for_those_of_its_weight() -> None:
    graph = graph_from(
        "g (float[n,m,4] x) => (float[n,1,4] y) <float[1,3,1] w = {1, 2, 3}> { y = Conv(x, w) }", "n=1..9;m=3..3"
    )
    with pytest.raises(UsageError, match="1 and 3|3 and 1"):
        interpret(graph, {"x": np.ones((2, 1, 4), np.float32)})


def test_rows_that_a_tensor_has_not_are_refused_as_rows() -> None:
    graph = graph_from("g (float[n,4] x, int64[k] i) => (float[k,4] y) { y = Gather<axis=0>(x, i) }", "n=1..9;k=1..9")
    with pytest.raises(MissingRows, match=r"y \(gather of \(2, 4\) and .*no answer to this request"):
        interpret(graph, {"x": np.ones((2, 4), np.float32), "i": np.array([2])})


@pytest.mark.parametrize(("index", "rows"), [("0", 1), ("-1", 1), ("1, 2", 3), ("-3, 0", 3)])
def test_requests_without_the_rows_of_constant_indices_are_refused(index: str, rows: int) -> None:
    """ONNX Runtime has no answer; loops took the nearest row, without a word."""
    graph = graph_from(
        f"g (float[n,4] x) => (float[p,4] y) {{ i = Constant<value_ints=[{index}]>()  y = Gather<axis=0>(x, i) }}", "n=3..9"
    )
    assert [bool(unmet(demands(graph), {"n": n})) for n in range(5)] == [n < rows for n in range(5)]
    with pytest.raises(UsageError, match=f"of an axis of n; send a request that has {rows} or more there"):
        interpret(graph, {"x": np.ones((rows - 1, 4), np.float32)})
