"""Quantised models: ONNX's own cases of bytes and 16-bit numbers; weights become real numbers when they are read."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from haotuner.frontends.onnx.read import graph_of
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnx.reference")
from tests.bench.onnx_nodes import answer, cases_of  # noqa: E402, after the skip
from tests.frontends.test_importing import model  # noqa: E402

n = onnx.helper.make_node
OTHERS = ("element type", "has no place", "are not supported")  # what is refused, in words


@pytest.mark.long
@pytest.mark.parametrize(
    "op", ["QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "QLinearConv", "QLinearMatMul"]
)
def test_onnx_own_cases_pass(op: str) -> None:
    with warnings.catch_warnings():  # of onnx's own references
        warnings.simplefilter("ignore")
        answers = [answer(case, op) for case in cases_of(op)]
    passed = [case_answer for case_answer in answers if not case_answer.why]
    assert (
        passed
        and [
            case_answer
            for case_answer in answers
            if case_answer.why and not any(words in case_answer.why for words in OTHERS)
        ]
        == []
    )


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
    assert {graph.types[name].dtype for node in (near, rest) for name in node.inputs} == {"int32"}
    x = draw.standard_normal((3, 600)).astype(np.float32)
    near = (np.clip(np.round(x / np.float32(0.05)) + 128, 0, 255) - 128) * np.float32(0.05)
    expected = near @ ((stored.astype(np.int32) - zeros) * scales)
    np.testing.assert_allclose(interpret(graph, {"x": x})["y"], expected, rtol=1e-4, atol=1e-3)


def around(nodes: list[Any], other: float = 0.05, own: float = 0.05) -> tuple[list[Any], dict[str, Any]]:
    """Nodes from ``a`` to ``b``, real numbers of bytes that become bytes again, of a scale that may be another one."""
    before = [n("QuantizeLinear", ["x", "s", "z"], ["bytes"]), n("DequantizeLinear", ["bytes", "s", "z"], ["a"])]
    behind = [n("QuantizeLinear", ["b", "t", "z"], ["again"]), n("DequantizeLinear", ["again", "t", "z"], ["y"])]
    return [*before, *nodes, *behind], {"s": np.float32(own), "t": np.float32(other), "z": np.uint8(7)}


MOVED = {
    "pool and turn": [
        n("MaxPool", ["a"], ["p"], kernel_shape=[3, 2], strides=[2, 1], pads=[1, 0, 1, 1]),
        n("Transpose", ["p"], ["b"], perm=[0, 2, 3, 1]),
    ],
    "split and join": [n("Split", ["a"], ["p", "q"], axis=1, num_outputs=2), n("Concat", ["q", "p"], ["b"], axis=2)],
    "flatten": [n("Flatten", ["a"], ["b"])],
}


@pytest.mark.parametrize("what", MOVED)
def test_bytes_are_moved_not_what_they_stand_for(what: str) -> None:
    nodes, weights = around(MOVED[what])
    onnx_model = model(nodes, {"x": ["rows", 4, 9, "w"]}, ["y"], weights)
    onnx_model.opset_import[0].version = 19  # the reference has no older rule
    graph = graph_of(onnx_model, None, {})
    moves = [node for node in graph.nodes if node.primitive not in ("map", "cast")]
    assert moves and {graph.types[node.output].dtype for node in moves} == {"uint8"}
    assert sum(node.attributes.get("function") == "round" for node in graph.nodes) == 1
    x = np.random.default_rng(0).standard_normal((3, 4, 9, 11)).astype(np.float32) * 3
    expected = onnx.reference.ReferenceEvaluator(onnx_model).run(None, {"x": x})[0]
    np.testing.assert_array_equal(interpret(graph, {"x": x})["y"], expected)


def test_what_lies_behind_one_another_is_rounded_apart() -> None:
    """Of the first part the scale is the result's, so that its bytes stay; the second one's are others."""
    more = [n("QuantizeLinear", ["v", "u", "z"], ["c"]), n("DequantizeLinear", ["c", "u", "z"], ["d"])]
    nodes, weights = around([*more, n("Concat", ["a", "d"], ["b"], axis=1)])
    onnx_model = model(nodes, {"x": ["rows", 4], "v": ["rows", 3]}, ["y"], {**weights, "u": np.float32(0.031)})
    onnx_model.opset_import[0].version = 19
    graph = graph_of(onnx_model, None, {})
    (joined,) = (node for node in graph.nodes if node.primitive == "concat")
    assert graph.types[joined.output].dtype == "uint8"
    assert sum(node.attributes.get("function") == "round" for node in graph.nodes) == 3
    draw = np.random.default_rng(0)
    feeds = {name: draw.standard_normal((5, wide)).astype(np.float32) for name, wide in (("x", 4), ("v", 3))}
    expected = onnx.reference.ReferenceEvaluator(onnx_model).run(None, feeds)[0]
    np.testing.assert_array_equal(interpret(graph, feeds)["y"], expected)


@pytest.mark.parametrize(("own", "other"), [(0.05, 0.03), (1e-38, 1e-38)])
def test_bytes_of_another_scale_or_of_one_too_small_are_rounded(own: float, other: float) -> None:
    nodes, weights = around([n("Flatten", ["a"], ["b"])], other, own)
    graph = graph_of(model(nodes, {"x": ["rows", 4]}, ["y"], weights), None, {})
    assert sum(node.attributes.get("function") == "round" for node in graph.nodes) == 2


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_dear_function_of_one_byte_is_a_table(dtype: type) -> None:
    """As a quantizer writes x * erf(x): what lies between is rounded, too."""
    between = [
        n("Erf", ["a"], ["e"]),
        n("QuantizeLinear", ["e", "u", "m"], ["p"]),
        n("DequantizeLinear", ["p", "u", "m"], ["q"]),
        n("Mul", ["a", "q"], ["b"]),
    ]
    nodes, weights = around(between, 0.03)
    weights |= {"z": dtype(7), "u": np.float32(1 / 127), "m": dtype(3)}
    onnx_model = model(nodes, {"x": ["rows", 40]}, ["y"], weights)
    onnx_model.opset_import[0].version = 19
    graph = graph_of(onnx_model, None, {})
    (table,) = (node for node in graph.nodes if node.primitive == "gather")
    assert graph.types[table.inputs[0]].shape == (256,) and "erf" not in str(graph.nodes)
    x = np.linspace(-9, 9, 400, dtype=np.float32).reshape(10, 40)
    expected = onnx.reference.ReferenceEvaluator(onnx_model).run(None, {"x": x})[0]
    output = interpret(graph, {"x": x})["y"]
    assert (output != expected).mean() < 0.02 and np.abs(output - expected).max() < 0.031  # erf of another library


def test_a_chain_of_any_length_is_a_table() -> None:
    between = [
        n("Sqrt", ["a"], ["c0"]),
        *(n("Abs", [f"c{i}"], [f"c{i + 1}"]) for i in range(1500)),
        n("Abs", ["c1500"], ["b"]),
    ]
    nodes, weights = around(between, 0.03)
    graph = graph_of(model(nodes, {"x": ["rows", 4]}, ["y"], {**weights, "z": np.uint8(7)}), None, {})
    assert len(graph.nodes) < 20 and any(node.primitive == "gather" for node in graph.nodes)


@pytest.mark.parametrize("op", ["Relu", "Add"])
def test_a_cheap_function_of_one_byte_and_one_of_two_are_none(op: str) -> None:
    more = [
        n("QuantizeLinear", ["v", "u", "z"], ["c"]),
        n("DequantizeLinear", ["c", "u", "z"], ["d"]),
        n("Erf", ["d"], ["e"]),
    ]
    nodes, weights = around([*more, n(op, ["a", "e"] if op == "Add" else ["a"], ["b"])], 0.03)
    onnx_model = model(nodes, {"x": ["rows", 4], "v": ["rows", 4]}, ["y"], {**weights, "u": np.float32(0.031)})
    assert "gather" not in [node.primitive for node in graph_of(onnx_model, None, {}).nodes]


@pytest.mark.parametrize(
    ("before", "reductions"),
    [("Relu", ["max"]), ("Sigmoid", ["max"]), ("Softmax", ["max"]), ("Tanh", ["max", "min"]), ("Neg", ["max", "min"])],
)
def test_what_is_never_negative_has_the_zero_point_0(before: str, reductions: list[str]) -> None:
    nodes = [n(before, ["x"], ["a"]), n("DynamicQuantizeLinear", ["a"], ["q", "scale", "zero"])]
    onnx_model = model(nodes, {"x": ["rows", 9]}, ["q", "scale", "zero"], {})
    onnx_model.graph.output[0].type.tensor_type.elem_type = onnx_model.graph.output[2].type.tensor_type.elem_type = 2
    graph = graph_of(onnx_model, None, {})
    whole = [
        node.attributes["how"] for node in graph.nodes if node.primitive == "reduce" and len(node.attributes["axes"]) == 2
    ]
    assert sorted(whole) == reductions
    x = np.random.default_rng(0).standard_normal((4, 9)).astype(np.float32)
    expected = onnx.reference.ReferenceEvaluator(onnx_model).run(None, {"x": x})
    outputs = interpret(graph, {"x": x})
    np.testing.assert_allclose(outputs["scale"], expected[1], rtol=1e-6)
    assert outputs["zero"] == expected[2] and (np.abs(outputs["q"].astype(int) - expected[0]) <= 1).all()
