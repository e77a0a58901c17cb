"""Pools of ONNX models as graphs: large windows are taken an axis at a time, and answer as the reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402, after the skip


def pool(shape: list[Any], op: str = "MaxPool", **settings: Any) -> Any:
    """A model of one pool over an image."""
    helper = onnx.helper
    node = helper.make_node(op, ["x"], ["y"], **settings)
    ends = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, own) for name, own in (("x", shape), ("y", None))]
    return helper.make_model(
        helper.make_graph([node], "pool", ends[:1], ends[1:]), opset_imports=[helper.make_opsetid("", 13)]
    )


def axes_of_windows(graph: Any) -> list[tuple[int, ...]]:
    return [tuple(node.attributes["axes"]) for node in graph.nodes if node.primitive == "window"]


@pytest.mark.parametrize(
    "settings",
    [
        {"kernel_shape": [13, 13], "pads": [6, 6, 6, 6]},
        {"kernel_shape": [9, 5], "pads": [2, 0, 4, 3], "strides": [2, 3]},
        {"kernel_shape": [5, 7], "dilations": [2, 1], "pads": [1, 1, 1, 1]},
        {"kernel_shape": [6, 6], "auto_pad": "SAME_UPPER", "strides": [2, 1]},
        {"kernel_shape": [7, 7], "strides": [3, 3], "ceil_mode": 1},
    ],
)
def test_large_windows_are_taken_an_axis_at_a_time(settings):
    onnx_model = pool(["b", 3, "h", "w"], **settings)
    graph = graph_of(onnx_model, None, {})
    assert axes_of_windows(graph) == [(3,), (2,)]
    x = np.random.default_rng(0).standard_normal((2, 3, 17, 21)).astype(np.float32) - 3
    (expected,) = ReferenceEvaluator(onnx_model).run(None, {"x": x})
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], expected)


@pytest.mark.parametrize(
    "settings", [{}, {"pads": [6, 2, 4, 3], "count_include_pad": 1}, {"pads": [6, 2, 4, 3], "strides": [2, 3]}]
)
def test_averages_of_large_windows_are_sums_an_axis_at_a_time(settings: dict[str, Any]) -> None:
    model = pool(["b", 3, "h", "w"], "AveragePool", kernel_shape=[13, 7], **settings)
    graph = graph_of(model, None, {})
    assert axes_of_windows(graph)[:2] == [(3,), (2,)]
    x = np.random.default_rng(0).standard_normal((2, 3, 17, 21)).astype(np.float32) - 3
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], expected, rtol=1e-5)


@pytest.mark.parametrize("op", ["MaxPool", "AveragePool"])
@pytest.mark.parametrize(
    ("settings", "axes"),
    [
        ({"kernel_shape": [5, 1]}, (2,)),
        ({"kernel_shape": [1, 3], "strides": [1, 2]}, (3,)),
        ({"kernel_shape": [1, 3], "strides": [2, 1]}, (2, 3)),
        ({"kernel_shape": [1, 1]}, (3,)),
    ],
)
def test_axes_along_which_a_window_has_one_element_are_not_reduced(op: str, settings: dict[str, Any], axes: Any) -> None:
    """Of a loop of one turn inside of a reduction's loop a compiler made no vectors: 5 x 1 took 13 times as long."""
    model = pool(["b", 3, "h", "w"], op, **settings)
    graph = graph_of(model, None, {})
    assert axes_of_windows(graph)[0] == axes
    x = np.random.default_rng(0).standard_normal((2, 3, 17, 21)).astype(np.float32)
    (expected,) = ReferenceEvaluator(model).run(None, {"x": x})
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], expected, rtol=1e-5)


def test_small_windows_and_lines_stay_whole():
    assert axes_of_windows(graph_of(pool(["b", 3, "h", "w"], kernel_shape=[3, 3]), None, {})) == [(2, 3)]
    assert axes_of_windows(graph_of(pool(["b", 3, "w"], kernel_shape=[13]), None, {})) == [(2,)]


@pytest.mark.parametrize("pad", ["VALID", "NOTSET"])
@pytest.mark.parametrize("shape", [(1, 2, 1, 2), (2, 2, 6, 13)])
def test_an_average_counts_no_pixels_behind_the_image(pad, shape):
    node = onnx.helper.make_node("AveragePool", ["x"], ["y"], kernel_shape=[3, 2], strides=[3, 3], ceil_mode=1,
                                 count_include_pad=1, auto_pad=pad)  # fmt: skip
    ends = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, ["n", 2, "h", "w"]) for name in "xy"]
    graph = onnx.helper.make_graph([node], "pool", ends[:1], ends[1:])
    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 19)], ir_version=9)
    answer = interpret(graph_of(model, None, {}), {"x": x})["y"]
    rows, columns = answer.shape[2:]
    expected = [
        [x[..., 3 * row : 3 * row + 3, 3 * column : 3 * column + 2].mean((2, 3)) for column in range(columns)]
        for row in range(rows)
    ]
    np.testing.assert_allclose(answer, np.array(expected).transpose(2, 3, 0, 1), rtol=1e-5)
