"""Rules of com.microsoft's operators on bytes: real numbers again, the operator, and bytes as the file asks for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.frontends.onnx.elementwise import ELEMENTWISE
from haotuner.frontends.onnx.integers import INTEGERS, product, weight_of
from haotuner.frontends.onnx.layout import joined
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.norms import NORMS
from haotuner.frontends.onnx.pooling import POOLING
from haotuner.frontends.onnx.quantised import dequantised, dynamic, quantised
from haotuner.frontends.onnx.recurrent import StateWeights, layer
from haotuner.graph.recurrent import packed_bytes


def _real(c: NodeContext, index: int, axis: int = 0) -> str:
    """A tensor whose scale and zero point are the next two inputs."""
    return dequantised(c, c.tensor(index), c.tensor(index + 1), c.maybe(index + 2), axis)


def _bytes(c: NodeContext, x: str, scale: int, zero: int, like: int) -> str:
    """As bytes of a scale; without a zero point of the type of input ``like``, around 0."""
    dtype = c.type(zero).dtype if c.given(zero) else c.type(like).dtype
    return quantised(c, x, c.tensor(scale), c.maybe(zero), dtype, 0)


def _joined(function: str) -> Rule:
    return lambda c: _bytes(c, c.g.map(function, _real(c, 0), _real(c, 3)), 6, 7, 0)


def _applied(op: str, table: Mapping[str, Rule]) -> Rule:
    """Of one tensor: it, its scale and zero point, those of the result."""

    def rule(c: NodeContext) -> str:
        if c.attribute("channels_last", 0):
            raise c.bad("channels_last=1")
        description: dict[str, Any] = {
            name: attribute for name, attribute in c.attributes.items() if name != "channels_last"
        }
        result = table[op](replace(c, op=op, inputs=(_real(c, 0),), attributes=description, outputs=1))
        return _bytes(c, result if isinstance(result, str) else result[0], 3, 4, 0)

    return rule


def _concat(c: NodeContext) -> str:
    """The result's scale and zero point come first, then three inputs for each part."""
    parts = [_real(c, index) for index in range(2, len(c.inputs), 3)]
    axis = c.required("axis")
    return _bytes(c, joined(c, parts, axis % c.g.types[parts[0]].rank), 0, 1, 2)


def _where(c: NodeContext) -> str:
    return _bytes(c, c.g.map("select", c.tensor(0), _real(c, 1), _real(c, 4)), 7, 8, 1)


def _gemm(c: NodeContext) -> str:
    """The bias is of 32 bits, its scale that of both operands; without a scale the result stays real."""
    g = c.g
    right = _real(c, 3, 0 if c.attribute("transB", 0) else 1)
    bias: str | None = None
    if c.given(6):
        scale = g.map("mul", c.tensor(1), c.tensor(4))
        bias = g.map("mul", g.add("cast", c.tensor(6), dtype="fp32"), scale)
    result = INTEGERS["Gemm"](replace(c, op="Gemm", inputs=(_real(c, 0), right, bias)))
    assert isinstance(result, str)
    return _bytes(c, result, 7, 8, 0) if c.given(7) else result


def _real_product(c: NodeContext) -> str:
    """Bytes times bytes to real numbers: both, their scales, their zero points, a bias."""
    left = dequantised(c, c.tensor(0), c.tensor(2), c.maybe(4), 0)
    right = dequantised(c, c.tensor(1), c.tensor(3), c.maybe(5), c.type(1).rank - 1)
    result = product(c, left, right)
    return c.g.map("add", result, c.tensor(6)) if c.given(6) else result


def _dynamic_product(c: NodeContext) -> str:
    """Real numbers times bytes; the left operand is rounded to bytes of its own range, as the file's author did."""
    rounded, scale, zero = dynamic(replace(c, inputs=(c.tensor(0),)))
    left = dequantised(c, rounded, scale, zero, 0)
    right = dequantised(c, c.tensor(1), c.tensor(2), c.maybe(3), c.type(1).rank - 1)
    result = product(c, left, right)
    return c.g.map("add", result, c.tensor(4)) if c.given(4) else result


def _lstm(c: NodeContext) -> list[str]:
    """Weights of bytes, (ways, inputs, gates), and of the state. Inputs are rounded to bytes of their range, as are states.

    ONNX Runtime takes one range for the states of all sequences that a thread has: here each has its own, so that answers
    depend neither on threads nor on what lies beside a sequence.
    """
    inputs, states = _stored(c, 1, 8, 9), _stored(c, 2, 10, 11)

    def multiplied(call: NodeContext, x: str, number: int) -> str:
        w, scale, zero = (call.g.constant(np.ascontiguousarray(operand[number])) for operand in inputs)
        return product(call, x, dequantised(call, w, scale, zero, 1))

    def state_weights(call: NodeContext, number: int) -> StateWeights:
        stored, scale, zero = (np.ascontiguousarray(state[number]) for state in states)
        result = weight_of(call, call.g.constant(stored), call.g.constant(zero), 1)
        if result is None:
            raise call.bad(f"weights of the state of {stored.dtype}; bytes are known")
        columns = stored.shape[1]
        added = (
            np.zeros(columns, np.int32) if result.rest is None else np.broadcast_to(result.rest, columns).astype(np.int32)
        )
        more = (result.near.sum(axis=0, dtype=np.int32), added, np.broadcast_to(scale, columns).astype(np.float32))
        options = {"bytes": True, "added": bool(added.any())}
        packed = call.g.constant(packed_bytes(result.near), "int8")
        return StateWeights(packed, stored.shape[0], tuple(call.g.constant(item) for item in more), options)

    rounded, scale, zero = dynamic(replace(c, inputs=(c.tensor(0),)))
    x = dequantised(c, rounded, scale, zero, 0)
    rule = layer("lstm", multiplied, state_weights)
    return list(rule(replace(c, op="LSTM", inputs=(x, *c.inputs[1:8]))))


def _stored(c: NodeContext, index: int, scale: int, zero: int) -> tuple[Any, Any, Any]:
    """Bytes of both ways, their scales and zero points: one a way, or one a way and column."""
    stored, scales = (c.held(at) for at in (index, scale))
    zeros = c.held(zero) if c.given(zero) else np.zeros(scales.shape, stored.dtype)
    if stored.ndim != 3 or scales.shape != zeros.shape or scales.ndim not in (1, 2):
        raise c.bad(f"weights of {stored.shape} with scales of {scales.shape} and zero points of {zeros.shape}")
    return stored, scales.astype(np.float32), zeros


MICROSOFT_QUANTISED: Mapping[str, Rule] = {
    "QLinearAdd": _joined("add"),
    "QLinearMul": _joined("mul"),
    "QLinearSigmoid": _applied("Sigmoid", ELEMENTWISE),
    "QLinearLeakyRelu": _applied("LeakyRelu", ELEMENTWISE),
    "QLinearSoftmax": _applied("Softmax", NORMS),
    "QLinearAveragePool": _applied("AveragePool", POOLING),
    "QLinearGlobalAveragePool": _applied("GlobalAveragePool", POOLING),
    "QLinearConcat": _concat,
    "QLinearWhere": _where,
    "QGemm": _gemm,
    "MatMulIntegerToFloat": _real_product,
    "DynamicQuantizeMatMul": _dynamic_product,
    "DynamicQuantizeLSTM": _lstm,
}
