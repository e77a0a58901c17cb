"""Element types of less than a byte, floats of 8 bits, and scales of blocks: against onnx's own reference."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from haotuner.errors import UsageError
from haotuner.frontends.onnx.read import graph_of, read
from haotuner.frontends.onnx.types import NARROW, numbers_of
from haotuner.graph.graph import Graph
from haotuner.graph.interpret import interpret

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
ml_dtypes = pytest.importorskip("ml_dtypes")
n, T = onnx.helper.make_node, onnx.TensorProto
DRAW = np.random.default_rng(0)
WHOLE = {"INT4": (-8, 7), "UINT4": (0, 15), "INT2": (-2, 1), "UINT2": (0, 3), "INT8": (-128, 127), "UINT8": (0, 255)}
FLOATS = ("FLOAT8E4M3FN", "FLOAT8E4M3FNUZ", "FLOAT8E5M2", "FLOAT8E5M2FNUZ", "FLOAT4E2M1")


def tensor(name: str, kind: str, value: Any) -> Any:
    """An initializer of one of onnx's types."""
    dtype = onnx.helper.tensor_dtype_to_np_dtype(getattr(T, kind))
    return onnx.numpy_helper.from_array(np.asarray(value).astype(dtype), name)


def model(nodes: list[Any], initializers: list[Any], shape: Any = ("rows", 10), kind: int = T.FLOAT) -> Any:
    ends = [onnx.helper.make_tensor_value_info("x", kind, shape)], [onnx.helper.make_tensor_value_info("y", T.FLOAT, None)]
    graph = onnx.helper.make_graph(nodes, "g", *ends, initializers)
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 25)], ir_version=13)


def judge(whole: Any, x: Any, near: float = 1e-5) -> Graph:
    """The graph, whose answer is that of onnx's reference."""
    for output_info in whole.graph.output:
        output_info.type.tensor_type.elem_type = T.FLOAT
    graph = graph_of(whole, None, {})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        (expected,) = reference.ReferenceEvaluator(whole).run(None, {"x": x})
    output = interpret(graph, {"x": x})["y"]
    np.testing.assert_allclose(output, expected.astype(np.float32), rtol=near, atol=near)
    return graph


def normal(*shape: int) -> Any:
    return DRAW.standard_normal(shape).astype(np.float32)


@pytest.mark.parametrize("zeros", [False, True])
@pytest.mark.parametrize("axis", [0, -1])
@pytest.mark.parametrize("kind", WHOLE)
def test_weights_in_blocks(kind: str, axis: int, zeros: bool) -> None:
    low, high = WHOLE[kind]
    shape = (3, 7) if axis == 0 else (10, 2)  # of blocks of 4 places of 10, or of 7
    initializers = [
        tensor("q", kind, DRAW.integers(low, high + 1, (10, 7))),
        tensor("s", "FLOAT", DRAW.random(shape) + 0.1),
        *([tensor("z", kind, DRAW.integers(low, high + 1, shape))] if zeros else []),
    ]
    nodes = [
        n("DequantizeLinear", ["q", "s", *(["z"] if zeros else [])], ["w"], axis=axis, block_size=4),
        n("MatMul", ["x", "w"], ["y"]),
    ]
    graph = judge(model(nodes, initializers), normal(3, 10))
    assert [node.primitive for node in graph.nodes] == ["contract"]  # the weight is a constant


@pytest.mark.parametrize("kind", FLOATS)
def test_weights_of_small_floats(kind: str) -> None:
    initializers = [tensor("q", kind, normal(10, 7) * 3), tensor("s", "FLOAT", DRAW.random((2, 7)) + 0.1)]
    nodes = [n("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=5), n("MatMul", ["x", "w"], ["y"])]
    judge(model(nodes, initializers), normal(3, 10))


@pytest.mark.parametrize("kind", [kind for kind in NARROW.values() if not kind.whole], ids=lambda kind: kind.name)
def test_every_pattern_of_bits_is_the_number_that_ml_dtypes_has(kind: Any) -> None:
    patterns = np.arange(1 << kind.bits, dtype=np.uint8).view(getattr(ml_dtypes, kind.name)).astype(np.float32)
    np.testing.assert_array_equal(numbers_of(kind), patterns)


@pytest.mark.parametrize("kind", ["FLOAT16", "BFLOAT16"])
def test_scales_of_16_bits_and_the_type_of_the_result(kind: str) -> None:
    initializers = [tensor("q", "INT4", DRAW.integers(-8, 8, (10, 7))), tensor("s", kind, DRAW.random((10, 7)) + 0.1)]
    nodes = [
        n("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=1, output_dtype=T.FLOAT),
        n("MatMul", ["x", "w"], ["y"]),
    ]
    judge(model(nodes, initializers), normal(3, 10))
    nodes[0] = n("DequantizeLinear", ["q", "s"], ["half"], axis=0, block_size=1)
    judge(model([nodes[0], n("Cast", ["half"], ["w"], to=T.FLOAT), nodes[1]], initializers), normal(3, 10))


def test_scales_of_blocks_that_come_with_the_request() -> None:
    nodes = [
        n("Abs", ["x"], ["size"]),
        n("ReduceMax", ["size", "last"], ["most"]),
        n("Transpose", ["most"], ["s"]),
        n("DequantizeLinear", ["q", "s"], ["y"], axis=1, block_size=4),
    ]
    initializers = [tensor("q", "UINT4", DRAW.integers(0, 16, (1, 11))), tensor("last", "INT64", [1])]
    judge(model(nodes, initializers, (3, 10)), normal(3, 10))


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("kind", WHOLE)
def test_requests_are_rounded_in_blocks(kind: str, axis: int) -> None:
    low, high = WHOLE[kind]
    shape = (2, 9) if axis == 0 else (6, 3)
    initializers = [tensor("s", "FLOAT", DRAW.random(shape) + 0.1), tensor("z", kind, DRAW.integers(low, high + 1, shape))]
    block = 3 if axis == 0 else 4
    nodes = [
        n("QuantizeLinear", ["x", "s", "z"], ["q"], axis=axis, block_size=block),
        n("DequantizeLinear", ["q", "s", "z"], ["y"], axis=axis, block_size=block),
    ]
    judge(model(nodes, initializers, (6, 9)), normal(6, 9) * 3)
    nodes[0] = n("QuantizeLinear", ["x", "s"], ["q"], axis=axis, block_size=block, output_dtype=getattr(T, kind))
    nodes[1] = n("DequantizeLinear", ["q", "s"], ["y"], axis=axis, block_size=block)
    judge(model(nodes, initializers, (6, 9)), normal(6, 9) * 3)


EDGES = np.concatenate([np.float32(2.0) ** np.arange(-20, 20), [0, 1e9, np.inf, 448, 464, 465, 57344, 61440, 7, 5.0, 2.5]])


@pytest.mark.parametrize("saturate", [0, 1])
@pytest.mark.parametrize("op", ["QuantizeLinear", "Cast"])
@pytest.mark.parametrize("kind", FLOATS)
def test_requests_are_rounded_to_small_floats(kind: str, op: str, saturate: int) -> None:
    number = getattr(T, kind)
    x = np.concatenate(
        [EDGES, -EDGES, EDGES * 1.1875, EDGES * 1.25, EDGES * 0.9999999, normal(500) * 100, normal(500), [np.nan]]
    )
    if kind == "FLOAT4E2M1":  # it has no NaN, and what a NaN or an infinity becomes is nowhere said
        x, saturate = x[np.isfinite(x)], 1
    initializers = [tensor("s", "FLOAT", 1.0)]
    rounds = n(op, ["x", "s"], ["q"], output_dtype=number) if op == "QuantizeLinear" else n(op, ["x"], ["q"], to=number)
    if kind != "FLOAT4E2M1":
        rounds.attribute.append(onnx.helper.make_attribute("saturate", saturate))
    judge(model([rounds, n("DequantizeLinear", ["q", "s"], ["y"])], initializers, ["rows"]), x.astype(np.float32), 0)


@pytest.mark.parametrize("kind", ["INT4", "UINT4", "INT2", "UINT2"])
def test_casts_to_whole_numbers_of_few_bits_keep_the_low_ones(kind: str) -> None:
    nodes = [n("Cast", ["x"], ["q"], to=getattr(T, kind)), n("Cast", ["q"], ["y"], to=T.FLOAT)]
    low, high = WHOLE[kind]
    judge(model(nodes, [], ["rows"], T.INT32), np.arange(low, high + 1, dtype=np.int32), 0)
    graph = graph_of(model(nodes, [], ["rows"], T.INT32), None, {})
    output = interpret(graph, {"x": np.array([low + 2 * (high - low + 1), high - 4 * (high - low + 1)], np.int32)})["y"]
    assert output.tolist() == [low, high]


def test_external_data_hold_two_numbers_a_byte(tmp_path: Any) -> None:
    values = DRAW.integers(-8, 8, (5, 3))
    initializers = [tensor("q", "INT4", values), tensor("s", "FLOAT", 0.5)]
    whole = model([n("DequantizeLinear", ["q", "s"], ["w"]), n("MatMul", ["x", "w"], ["y"])], initializers, ("rows", 5))
    onnx.save(whole, tmp_path / "m.onnx", save_as_external_data=True, size_threshold=0, location="data")
    x = normal(2, 5)
    np.testing.assert_allclose(
        interpret(read(tmp_path / "m.onnx"), {"x": x})["y"], x @ (values * np.float32(0.5)), rtol=1e-5
    )


def test_what_no_array_has_is_refused_in_words() -> None:
    whole = model([n("Cast", ["x"], ["y"], to=T.INT4)], [])
    whole.graph.output[0].type.tensor_type.elem_type = T.INT4
    with pytest.raises(UsageError, match="output y is of type int4"):
        graph_of(whole, None, {})
    initializers = [tensor("q", "INT4", np.zeros((10, 7))), tensor("s", "FLOAT", np.ones((4, 7)))]
    nodes = [n("DequantizeLinear", ["q", "s"], ["w"], axis=0, block_size=4), n("MatMul", ["x", "w"], ["y"])]
    with pytest.raises(UsageError, match=r"\[4, 7\]; blocks of 4 ask for \[3, 7\]"):
        graph_of(model(nodes, initializers), None, {})
