"""Range in steps that the request tells: sizes that need not divide it, and whole numbers of either sign."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
from onnx.reference import ReferenceEvaluator  # noqa: E402

from haotuner.frontends.onnx.read import graph_of  # noqa: E402, after the skip
from tests.frontends.test_importing import model  # noqa: E402

n = onnx.helper.make_node
SIZES = [n("Shape", ["x"], ["s"]), n("Gather", ["s", "zero"], ["a"]), n("Gather", ["s", "one"], ["b"]),
         n("Neg", ["b"], ["nb"]), n("Mul", ["a", "a"], ["aa"])]  # fmt: skip
NUMBERS = {"zero": np.array(0), "one": np.array(1)}


def answers(onnx_model: Any, graph: Any, inputs: dict[str, Any]) -> list[Any]:
    """Of the reference, of ONNX Runtime where it is there, and ours."""
    results = [ReferenceEvaluator(onnx_model).run(None, inputs)[0], interpret(graph, inputs)["y"]]
    try:
        import onnxruntime
    except ImportError:
        return results
    return [*results, onnxruntime.InferenceSession(onnx_model.SerializeToString()).run(None, inputs)[0]]


@pytest.mark.parametrize(
    "ends",
    [("zero", "a", "b"), ("one", "aa", "b"), ("a", "zero", "nb"), ("zero", "a", "nb"), ("b", "a", "b"), ("a", "b", "nb")],
)
def test_a_step_of_a_size(ends: tuple[str, str, str]) -> None:
    onnx_model = model([*SIZES, n("Range", [*ends], ["y"])], {"x": ["h", "w"]}, ["y"], NUMBERS)
    onnx_model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    graph = graph_of(onnx_model, None, {})
    for shape in [(7, 2), (4, 4), (3, 5), (9, 3), (1, 1)]:
        expected, *others = answers(onnx_model, graph, {"x": np.zeros(shape, np.float32)})
        for other in others:
            np.testing.assert_array_equal(other, expected)
            assert other.dtype == expected.dtype


def test_a_step_that_comes_with_the_request() -> None:
    info = onnx.helper.make_tensor_value_info
    node = n("Range", ["first", "last", "step"], ["y"])
    inputs = [info(name, onnx.TensorProto.INT64, []) for name in ("first", "last", "step")]
    graph_ = onnx.helper.make_graph([node], "g", inputs, [info("y", onnx.TensorProto.INT64, None)])
    onnx_model = onnx.helper.make_model(graph_, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
    graph = graph_of(onnx_model, None, {})
    for first, last, step in [(0, 10, 3), (5, 1, -1), (-4, 9, 4), (2, 2, 1), (3, 1, 2), (0, 9, 9)]:
        values = {"first": np.array(first), "last": np.array(last), "step": np.array(step)}
        expected, *others = answers(onnx_model, graph, values)
        for other in others:
            np.testing.assert_array_equal(other, expected)
    with pytest.raises(UsageError, match="a size of -1"):
        interpret(graph, {"first": np.array(0), "last": np.array(4), "step": np.array(0)})


def test_axes_that_the_request_tells_are_refused_in_words() -> None:
    onnx_model = model(
        [n("Cast", ["t"], ["axes"], to=7), n("ReduceSum", ["x", "axes"], ["y"])], {"x": ["h", "w"], "t": [1]}, ["y"], {}
    )
    with pytest.raises(UsageError, match="export the model with a constant there"):
        graph_of(onnx_model, None, {})
