"""Arithmetic of sizes as exporters write it: whole division, slices that begin on either side of 0, real ranges."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of
from haotuner.frontends.onnx.symbolic_values import applied, objects
from haotuner.graph.extents import dimension, evaluate, largest, same, smallest
from haotuner.graph.interpret import interpret
from haotuner.graph.typed_extents import never_negative

onnx = pytest.importorskip("onnx")
from tests.frontends.test_importing import model  # noqa: E402, after the skip

n = onnx.helper.make_node
H, W = dimension("h"), dimension("w")
SIZE = [n("Shape", ["x"], ["s"]), n("Gather", ["s", "zero"], ["rows"])]


def answered(nodes: list[Any], weights: dict[str, Any], rows: int) -> Any:
    graph = graph_of(model([*SIZE, *nodes], {"x": ["h", 3]}, ["y"], {"zero": np.int64(0), **weights}), None, {})
    assert set(graph.dimensions) == {"h"}  # no size is left to the data
    x = np.random.default_rng(0).standard_normal((rows, 3)).astype(np.float32)
    return x, interpret(graph, {"x": x})["y"]


@pytest.mark.parametrize("rows", [1, 2, 7, 12])
def test_half_of_a_size_less_one_is_a_size(rows):
    nodes = [n("Sub", ["rows", "one"], ["less"]), n("Div", ["less", "two"], ["half"]), n("Add", ["half", "one"], ["count"]),
             n("Range", ["zero", "count", "one"], ["r"]), n("Gather", ["x", "r"], ["y"], axis=0)]  # fmt: skip
    x, y = answered(nodes, {"one": np.int64(1), "two": np.int64(2)}, rows)
    np.testing.assert_array_equal(y, x[: (rows - 1) // 2 + 1])


@pytest.mark.parametrize("rows", [1, 2, 4, 5, 9])
def test_a_slice_may_begin_on_either_side_of_0(rows):
    nodes = [n("Sub", ["rows", "four"], ["from"]), n("Unsqueeze", ["from", "zeros"], ["low"]),
             n("Slice", ["x", "low", "far", "zeros"], ["y"])]  # fmt: skip
    x, y = answered(nodes, {"four": np.int64(4), "zeros": np.array([0]), "far": np.array([2**31])}, rows)
    np.testing.assert_array_equal(y, x[rows - 4 :])


@pytest.mark.parametrize("rows", [1, 2, 6])
@pytest.mark.parametrize("step", [-1.0, -0.75])
def test_real_numbers_may_count_down_from_a_size(rows: int, step: float) -> None:
    nodes = [n("Cast", ["rows"], ["real"], to=onnx.TensorProto.FLOAT), n("Sub", ["real", "one"], ["from"]),
             n("Neg", ["real"], ["to"]), n("Range", ["from", "to", "step"], ["y"])]  # fmt: skip
    _, y = answered(nodes, {"one": np.float32(1), "step": np.float32(step)}, rows)
    np.testing.assert_allclose(y, np.arange(rows - 1.0, -float(rows), step).astype(np.float32))


def test_a_range_may_step_by_a_size_that_divides_it():
    nodes = [n("Size", ["x"], ["count"]), n("Range", ["zero", "count", "rows"], ["y"])]
    graph = graph_of(model([*SIZE, *nodes], {"x": ["h", 3]}, ["y"], {"zero": np.int64(0)}), None, {})
    np.testing.assert_array_equal(interpret(graph, {"x": np.zeros((5, 3), np.float32)})["y"], [0, 5, 10])


@pytest.mark.parametrize("kind", [np.int64, np.float32])
def test_a_range_without_a_step_is_refused_in_words(kind: Any) -> None:
    nodes = [n("Range", ["zero", "five", "zero"], ["y"])]
    with pytest.raises(UsageError, match="a step of 0"):
        graph_of(model(nodes, {"x": ["h"]}, ["y"], {"zero": kind(0), "five": kind(5)}), None, {})


def test_a_product_is_divided_by_one_of_its_sizes() -> None:
    """As torch's newer exporter says ``reshape(b, -1, 4)``: a divisor that may be 0 leaves no request without an answer."""
    elements = 12 * H * ((W - 1) // 4 + 1)
    (quotient,) = applied("map", [objects(np.array([elements], object)), objects(np.array([4 * H], object))],
                          {"function": "div"}, "int64")  # fmt: skip
    assert same(quotient, 3 * ((W - 1) // 4 + 1))


def test_whole_numbers_are_divided_towards_0():
    for dividend in (H - W, -H, H * W - 3 * W * W, W):
        (quotient,) = applied("map", [objects(np.array([dividend], object)), np.array([4])], {"function": "div"}, "int64")
        for h, w in itertools.product((0, 1, 3, 10, 77), (0, 2, 5, 64)):
            value = evaluate(dividend, {"h": h, "w": w})
            assert evaluate(quotient, {"h": h, "w": w}) == int(value / 4), (dividend, h, w)


def test_what_is_shown_never_negative_is_not():
    half, up = (H + 1) // 2, -((-H) // 5) * 5
    shown = (
        H,
        half - H // 2,
        H - H // 2,
        up - H,
        2 * half - H,
        H * W - H * (W // 2),
        largest([H - 3, 0]),
        H - smallest([H, W]),
    )
    for extent in shown:
        assert never_negative(extent), extent
    for extent in (H - 1, H - W, H // 2 - W // 2, smallest([H, W - 1]), -H):
        assert not never_negative(extent), extent


def test_bounds_leave_out_what_never_counts():
    assert same(largest([0, H - H // 2]), H - H // 2)
    assert same(smallest([H, H + W, 2 * H]), H)
    assert same(smallest([0, 2 * H - 2 * W]) // 2, smallest([0, H - W]))


@pytest.mark.parametrize("stride", [2, 4])
@pytest.mark.parametrize("taps", [1, 3, 10])
def test_a_size_is_never_minus_1(taps: int, stride: int) -> None:
    """``expand`` of torch asks it of each size: after a window, the answer needs a proof, or that it is a size."""
    nodes = [n("Conv", ["x", "w"], ["c"], strides=[stride]), n("Shape", ["c"], ["s"]), n("Equal", ["s", "less"], ["any"]),
             n("Less", ["s", "none"], ["under"]), n("Or", ["any", "under"], ["odd"]),
             n("Where", ["odd", "ones", "s"], ["size"]),
             n("Expand", ["one", "size"], ["y"])]  # fmt: skip
    weights = {"w": np.ones((2, 3, taps), np.float32), "less": np.array([-1]), "none": np.array([0]),
               "ones": np.array([1, 1, 1]), "one": np.full((1, 1, 1), 7.0, np.float32)}  # fmt: skip
    graph = graph_of(model(nodes, {"x": [1, 3, "w"]}, ["y"], weights), None, {})
    assert set(graph.dimensions) == {"w"}  # no size is left to the data
    x = np.zeros((1, 3, 23), np.float32)
    assert interpret(graph, {"x": x})["y"].shape == (1, 2, (23 - taps) // stride + 1)
