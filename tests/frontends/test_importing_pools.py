"""Pools of ONNX models as graphs: large windows are taken an axis at a time, and answer as the reference does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402, after the skip


def pool(shape: list[Any], **settings: Any) -> Any:
    """A model of one pool over an image."""
    helper = onnx.helper
    node = helper.make_node("MaxPool", ["x"], ["y"], **settings)
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
    made = pool(["b", 3, "h", "w"], **settings)
    graph = graph_of(made, None, {})
    assert axes_of_windows(graph) == [(3,), (2,)]
    x = np.random.default_rng(0).standard_normal((2, 3, 17, 21)).astype(np.float32) - 3
    (want,) = ReferenceEvaluator(made).run(None, {"x": x})
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], want)


def test_small_windows_and_lines_stay_whole():
    assert axes_of_windows(graph_of(pool(["b", 3, "h", "w"], kernel_shape=[3, 3]), None, {})) == [(2, 3)]
    assert axes_of_windows(graph_of(pool(["b", 3, "w"], kernel_shape=[13]), None, {})) == [(2,)]
