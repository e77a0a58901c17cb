"""Sparse initializers and constants of an ONNX file: read as dense tensors, refused where they make no sense."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
from haotuner.frontends.onnx.read import graph_of  # noqa: E402, after the skip

SHAPE = (3, 4)
FLAT = [1, 6, 11]
DENSE = np.zeros(SHAPE, np.float32)
DENSE.reshape(-1)[FLAT] = [1.5, -2.0, 0.25]


def sparse(indices: Any, values: Any = (1.5, -2.0, 0.25), shape: tuple[int, ...] = SHAPE, name: str = "w") -> Any:
    value_tensor = onnx.numpy_helper.from_array(np.asarray(values, np.float32), name)
    return onnx.helper.make_sparse_tensor(value_tensor, onnx.numpy_helper.from_array(np.asarray(indices, np.int64)), shape)


def model(weight: Any, kind: str = "initializer") -> Any:
    """``x + w`` of a sparse w: an initializer, an initializer that is listed as an input, or a Constant."""
    info, nodes = onnx.helper.make_tensor_value_info, [onnx.helper.make_node("Add", ["x", "w"], ["y"])]
    if kind == "constant":
        nodes.insert(0, onnx.helper.make_node("Constant", [], ["w"], sparse_value=weight))
    inputs = [info("x", 1, ["rows", *weight.dims])] + ([info("w", 1, list(weight.dims))] if kind == "listed" else [])
    graph = onnx.helper.make_graph(nodes, "g", inputs, [info("y", 1, None)])
    if kind != "constant":
        graph.sparse_initializer.append(weight)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)])


@pytest.mark.parametrize("kind", ["initializer", "listed", "constant"])
@pytest.mark.parametrize("indices", [FLAT, np.stack(np.unravel_index(FLAT, SHAPE), -1)])
def test_a_sparse_tensor_is_read_as_a_dense_one(kind: str, indices: Any) -> None:
    graph = graph_of(model(sparse(indices), kind), None, {})
    assert graph.inputs == ("x",)
    x = np.random.default_rng(0).standard_normal((2, *SHAPE)).astype(np.float32)
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], x + DENSE)


def test_a_sparse_tensor_may_hold_no_value() -> None:
    graph = graph_of(model(sparse(np.zeros((0, 2)), ())), None, {})
    np.testing.assert_array_equal(interpret(graph, {"x": np.ones((1, *SHAPE), np.float32)})["y"], np.ones((1, *SHAPE)))


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        (sparse([1, 6, 12]), "an index lies outside"),
        (sparse([-1, 6, 11]), "an index lies outside"),
        (sparse([[0, 4], [1, 1], [2, 2]]), "an index lies outside"),
        (sparse([1, 6]), r"expected as many int64 indices as values, \[3\] or \[3, 2\]"),
        (sparse([[0, 1, 0]] * 3), "expected as many int64 indices"),
        (sparse([1, 6, 6]), "two values have the same index"),
        (sparse([1, 6, 11], shape=(1 << 40, 1 << 40)), "of more than"),
        (sparse([1, 6, 11], shape=(-3, 4)), "negative"),
    ],
)
def test_a_sparse_tensor_that_makes_no_sense_is_refused(tensor: Any, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        graph_of(model(tensor), None, {})
