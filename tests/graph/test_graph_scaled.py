"""Batch norms and other factors of channels behind products go into weights; what must stay, stays."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402, after the skip
from onnx.reference import ReferenceEvaluator  # noqa: E402, after the skip

from haotuner.frontends.onnx.read import graph_of  # noqa: E402, after the skip
from haotuner.graph.interpret import interpret  # noqa: E402, after the skip

DRAW = np.random.default_rng(5)


def drawn(*shape: int) -> Any:
    return DRAW.uniform(0.5, 1.5, shape).astype(np.float32)


def norm(x: str, y: str) -> Any:
    return helper.make_node("BatchNormalization", [x, "scale", "bias", "mean", "variance"], [y])


NORM = {name: drawn(6) for name in ("scale", "bias", "mean", "variance")}
PLAIN = helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1])
CASES: dict[str, tuple[list[Any], dict[str, Any], list[str], int]] = {  # nodes, weights, outputs, factors that are left
    "norm": ([PLAIN, norm("c", "y")], {"w": drawn(6, 4, 3, 3), **NORM}, ["y"], 0),
    "biased": (
        [helper.make_node("Conv", ["x", "w", "b"], ["c"]), norm("c", "y")],
        {"w": drawn(6, 4, 1, 1), "b": drawn(6), **NORM}, ["y"], 0,
    ),
    "groups": (
        [helper.make_node("Conv", ["x", "w"], ["c"], group=2), norm("c", "n"), helper.make_node("Relu", ["n"], ["y"])],
        {"w": drawn(6, 2, 3, 3), **NORM}, ["y"], 0,
    ),
    "twice": ([PLAIN, norm("c", "n"), norm("n", "y")], {"w": drawn(6, 4, 3, 3), **NORM}, ["y"], 0),
    "columns": (
        [helper.make_node("MatMul", ["x", "w"], ["c"]), helper.make_node("Mul", ["f", "c"], ["y"])],
        {"w": drawn(7, 6), "f": drawn(6)}, ["y"], 0,
    ),
    "rows": (
        [helper.make_node("MatMul", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "f"], ["y"])],
        {"w": drawn(7, 6), "f": drawn(5, 1)}, ["y"], 1,
    ),
    "result": ([PLAIN, norm("c", "y")], {"w": drawn(6, 4, 3, 3), **NORM}, ["y", "c"], 1),
    "shared": (
        [PLAIN, norm("c", "n"), helper.make_node("Conv", ["x", "w"], ["d"], pads=[1, 1, 1, 1]),
         helper.make_node("Add", ["n", "d"], ["y"])],
        {"w": drawn(6, 4, 3, 3), **NORM}, ["y"], 1,
    ),
    "places": (
        [helper.make_node("MatMul", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "b"], ["d"]),
         helper.make_node("Add", ["d", "p"], ["y"])],
        {"w": drawn(7, 6), "b": drawn(6), "p": drawn(5, 6)}, ["y"], 0,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_factor_of_channels_is_in_the_weight(name: str) -> None:
    nodes, weights, outputs, left = CASES[name]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["b", 4, 5, 7])
    output_infos = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None) for output in outputs]
    initializers = [numpy_helper.from_array(value, key) for key, value in weights.items()]
    opset = [helper.make_opsetid("", 17)]
    model = helper.make_model(
        helper.make_graph(nodes, "g", [x], output_infos, initializers), opset_imports=opset, ir_version=8
    )
    graph = graph_of(model, None, {})
    functions = [node.attributes["function"] for node in graph.nodes if node.primitive == "map"]
    assert functions.count("mul") == left
    assert functions.count("add") == (2 if name in ("shared", "places") else 0 if name in ("columns", "rows") else 1)
    read = {operand for node in graph.nodes for operand in node.inputs}
    assert set(graph.constants) <= read and set(graph.types) == read | {node.output for node in graph.nodes} | {"x"}
    feeds = {"x": drawn(2, 4, 5, 7)}
    results, expected = interpret(graph, feeds), ReferenceEvaluator(model).run(None, feeds)
    for output, array in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(results[output], array, rtol=1e-5, atol=1e-5)


LARGE = np.full(6, 3.0 * 2**21, np.float32)
HALF_LARGE = np.where(np.arange(6) < 5, LARGE, 1.0).astype(np.float32)
FIVE_LESS = np.where(np.arange(6) < 5, -LARGE, 1e5).astype(np.float32)
ROUNDED: dict[str, tuple[list[Any], dict[str, Any]]] = {  # a large number, added and taken away, rounds to halves
    "behind a bias": (
        [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Add", ["c", "large"], ["d"]),
         helper.make_node("Sub", ["d", "large"], ["y"])],
        {"w": drawn(6, 4, 1, 1), "b": drawn(6), "large": LARGE.reshape(6, 1, 1)},
    ),
    "by its negative": (
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "large"], ["d"]),
         helper.make_node("Add", ["d", "less"], ["y"])],
        {"w": drawn(6, 4, 1, 1), "large": LARGE.reshape(6, 1, 1), "less": -LARGE.reshape(6, 1, 1)},
    ),
    "before a factor": (
        [helper.make_node("Conv", ["x", "w"], ["c"]), helper.make_node("Add", ["c", "large"], ["d"]),
         helper.make_node("Mul", ["d", "factor"], ["e"]), helper.make_node("Sub", ["e", "scaled"], ["y"])],
        {"w": drawn(6, 4, 1, 1), "large": LARGE.reshape(6, 1, 1), "factor": (drawn(6) * 0 + 0.5).reshape(6, 1, 1),
         "scaled": 0.5 * LARGE.reshape(6, 1, 1)},
    ),
    "of one channel": (
        [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Add", ["c", "less"], ["y"])],
        {"w": drawn(6, 4, 1, 1), "b": HALF_LARGE, "less": FIVE_LESS.reshape(6, 1, 1)},
    ),
    "by two steps": (
        [helper.make_node("Conv", ["x", "w", "b"], ["c"]), helper.make_node("Add", ["c", "less"], ["d"]),
         helper.make_node("Add", ["d", "rest"], ["y"])],
        {"w": drawn(6, 4, 1, 1), "b": LARGE, "less": (2048 - LARGE).reshape(6, 1, 1), "rest": np.full((6, 1, 1), -2048.0)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", ROUNDED)
def test_a_large_shift_rounds_as_the_file_says(name: str) -> None:
    nodes, weights = ROUNDED[name]
    ends = [
        helper.make_tensor_value_info(end, TensorProto.FLOAT, shape) for end, shape in (("x", ["b", 4, 5, 7]), ("y", None))
    ]
    constants = [numpy_helper.from_array(value.astype(np.float32), key) for key, value in weights.items()]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = {"x": drawn(2, 4, 5, 7)}
    (expected,) = ReferenceEvaluator(model).run(None, x)
    answer = interpret(graph_of(model, None, {}), x)["y"]
    assert len(np.unique(expected[:, :5])) < 40, "it is rounded"
    assert np.mean(answer == expected) > 0.97 and np.abs(answer - expected).max() <= 0.5, (
        "but ties of another order of the sum"
    )


@pytest.mark.parametrize(("weight", "factor"), [(1e30, 1e20), (1e-25, 1e-25)])
def test_a_factor_that_leaves_the_type_stays_behind_the_product(weight: float, factor: float) -> None:
    nodes = [helper.make_node("MatMul", ["x", "w"], ["c"]), helper.make_node("Mul", ["c", "f"], ["y"])]
    weights = {"w": drawn(4, 6) * np.float32(weight), "f": drawn(6) * np.float32(factor)}
    constants = [numpy_helper.from_array(value.astype(np.float32), key) for key, value in weights.items()]
    ends = [helper.make_tensor_value_info(end, TensorProto.FLOAT, ["b", width]) for end, width in (("x", 4), ("y", 6))]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    x = {"x": drawn(3, 4) / np.float32(weight)}
    (expected,) = ReferenceEvaluator(model).run(None, x)
    np.testing.assert_allclose(interpret(graph_of(model, None, {}), x)["y"], expected, rtol=1e-5)
