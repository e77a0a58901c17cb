"""Quantised models: ONNX's own cases of bytes and 16-bit numbers; weights become real numbers when they are read."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from haotuner.graph.interpret import interpret
from haotuner.importing.read import graph_of

onnx = pytest.importorskip("onnx")
from tests.bench.onnx_nodes import answer, cases_of  # noqa: E402, after the skip
from tests.content.test_importing import model  # noqa: E402

n = onnx.helper.make_node
OTHERS = ("blocks with scales", "element type", "has no place", "are not supported")  # what is refused, in words


@pytest.mark.parametrize(
    "op", ["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "QLinearConv", "QLinearMatMul"]
)
def test_onnx_own_cases_pass(op: str) -> None:
    with warnings.catch_warnings():  # of onnx's own references
        warnings.simplefilter("ignore")
        found = [answer(case, op) for case in cases_of(op)]
    passed = [one for one in found if not one.why]
    assert passed and [one for one in found if one.why and not any(words in one.why for words in OTHERS)] == []


def test_a_product_of_what_bytes_stand_for_is_one_of_the_bytes() -> None:
    draw = np.random.default_rng(0)
    stored = draw.integers(-128, 128, (600, 1024), np.int8)
    scales, zeros = draw.random(1024).astype(np.float32) / 100, draw.integers(-3, 3, 1024).astype(np.int8)
    nodes: list[Any] = [
        n("QuantizeLinear", ["x", "step", "middle"], ["q"]),
        n("DequantizeLinear", ["q", "step", "middle"], ["near"]),
        n("DequantizeLinear", ["stored", "scales", "zeros"], ["w"], axis=1),
        n("MatMul", ["near", "w"], ["y"]),
    ]
    weights = {"step": np.float32(0.05), "middle": np.uint8(128), "stored": stored, "scales": scales, "zeros": zeros}
    graph = graph_of(model(nodes, {"x": ["rows", 600]}, ["y"], weights), None, {})
    near, rest = (node for node in graph.nodes if node.primitive == "contract")  # zeros that move weights beyond int8
    assert {graph.types[one].dtype for node in (near, rest) for one in node.inputs} == {"int32"}
    x = draw.standard_normal((3, 600)).astype(np.float32)
    near = (np.clip(np.round(x / np.float32(0.05)) + 128, 0, 255) - 128) * np.float32(0.05)
    want = near @ ((stored.astype(np.int32) - zeros) * scales)
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], want, rtol=1e-4, atol=1e-3)
