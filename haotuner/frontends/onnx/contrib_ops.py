"""Rules of com.microsoft's operators, those on bytes included: each is taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.frontends.onnx.contrib_attention import ATTENTION
from haotuner.frontends.onnx.convolutions import CONVOLUTIONS
from haotuner.frontends.onnx.elementwise import ELEMENTWISE
from haotuner.frontends.onnx.grid_sample import SAMPLED
from haotuner.frontends.onnx.integers import INTEGERS, product, weight_of
from haotuner.frontends.onnx.layout import joined, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.pooling import POOLING
from haotuner.frontends.onnx.products import PRODUCTS, matmul
from haotuner.frontends.onnx.quantised import QUANTISED, dequantised, dynamic, quantised
from haotuner.frontends.onnx.recurrent import StateWeights, layer
from haotuner.frontends.onnx.reductions import NORMS
from haotuner.graph import decompositions
from haotuner.graph.recurrent import packed_bytes
from haotuner.graph.types import numpy_dtype


def _real(c: NodeContext, index: int, axis: int = 0) -> str:
    """A tensor whose scale and zero point are the next two inputs."""
    return dequantised(c, c.tensor(index), c.tensor(index + 1), c.maybe(index + 2), axis)


def _bytes(c: NodeContext, x: str, scale: int, zero: int, like: int) -> str:
    """As bytes of a scale; without a zero point of the type of input ``like``, around 0."""
    dtype = c.type(zero).dtype if c.has_input(zero) else c.type(like).dtype
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
    if c.has_input(6):
        scale = g.map("mul", c.tensor(1), c.tensor(4))
        bias = g.map("mul", g.add("cast", c.tensor(6), dtype="fp32"), scale)
    result = INTEGERS["Gemm"](replace(c, op="Gemm", inputs=(_real(c, 0), right, bias)))
    assert isinstance(result, str)
    return _bytes(c, result, 7, 8, 0) if c.has_input(7) else result


def _real_product(c: NodeContext) -> str:
    """Bytes times bytes to real numbers: both, their scales, their zero points, a bias."""
    left = dequantised(c, c.tensor(0), c.tensor(2), c.maybe(4), 0)
    right = dequantised(c, c.tensor(1), c.tensor(3), c.maybe(5), c.type(1).rank - 1)
    result = product(c, left, right)
    return c.g.map("add", result, c.tensor(6)) if c.has_input(6) else result


def _dynamic_product(c: NodeContext) -> str:
    """Real numbers times bytes; the left operand is rounded to bytes of its own range, as the file's author did."""
    rounded, scale, zero = dynamic(replace(c, inputs=(c.tensor(0),)))
    left = dequantised(c, rounded, scale, zero, 0)
    right = dequantised(c, c.tensor(1), c.tensor(2), c.maybe(3), c.type(1).rank - 1)
    result = product(c, left, right)
    return c.g.map("add", result, c.tensor(4)) if c.has_input(4) else result


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
    zeros = c.held(zero) if c.has_input(zero) else np.zeros(scales.shape, stored.dtype)
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


def _first_result(rule: Rule, c: NodeContext, *inputs: str | None, **attributes: Any) -> str:
    """The first result of another operator's rule."""
    arguments = rule(replace(c, inputs=inputs or c.inputs, attributes={**c.attributes, **attributes}, outputs=1))
    return arguments if isinstance(arguments, str) else arguments[0]


def _sum(c: NodeContext, *places: int) -> str:
    """Of the inputs that are there."""
    result: str | None = None
    for position in (c.tensor(position) for position in places if c.has_input(position)):
        result = position if result is None else c.g.map("add", result, position)
    assert result is not None
    return result


def _fast_gelu(c: NodeContext) -> str:
    return decompositions.gelu_tanh(c.g, _sum(c, 0, 1))


def _quick_gelu(c: NodeContext) -> str:
    gate = c.g.map("sigmoid", c.g.map("mul", c.tensor(0), c.attribute("alpha", 1.702)))
    return c.g.map("mul", c.tensor(0), gate)


def _activated(c: NodeContext, x: str, numbers: list[float]) -> str:
    """A function that a product carries, by its name; ``numbers``: its parameters."""
    name = c.attribute("activation", "")
    if not name:
        return x
    if name not in ("Relu", "LeakyRelu", "Tanh", "Sigmoid", "Clip", "HardSigmoid", "HardSwish", "Elu"):
        raise c.bad(f"activation {name!r}")
    limits = [c.g.constant(number, c.g.types[x].dtype) for number in numbers] if name == "Clip" else []
    description = dict(zip(("alpha", "beta"), numbers, strict=False)) if name != "Clip" else {}
    return _first_result(ELEMENTWISE[name], replace(c, op=name, attributes={}), x, *limits, **description)


def _fused_conv(c: NodeContext) -> str:
    result = _first_result(CONVOLUTIONS["Conv"], c, *(c.maybe(index) for index in range(3)))
    result = c.g.map("add", result, c.tensor(3)) if c.has_input(3) else result
    return _activated(c, result, list(c.attribute("activation_params", [])))


def _fused_gemm(c: NodeContext) -> str:
    numbers = [c.attributes[name] for name in ("activation_alpha", "activation_beta") if name in c.attributes]
    return _activated(c, _first_result(PRODUCTS["Gemm"], c), numbers)


def _fused_matmul(c: NodeContext) -> str:
    operands = []
    for index, name in enumerate("AB"):
        rank = c.type(index).rank
        order = list(range(rank))
        if c.attribute(f"transBatch{name}", 0):
            order = [*order[1:-1], order[0], order[-1]]
        if c.attribute(f"trans{name}", 0) and rank > 1:
            order[-2:] = order[:-3:-1]
        operands.append(transposed(c, c.tensor(index), order))
    result = matmul(c, *operands)
    alpha = c.attribute("alpha", 1.0)
    return result if alpha == 1 else c.g.map("mul", result, alpha)


def _skip_norm(how: str) -> Rule:
    """A norm of a sum, and the sum itself where it is asked for."""
    bias = 4 if how == "LayerNormalization" else 3

    def rule(c: NodeContext) -> list[str]:
        total = _sum(c, 0, 1, bias)
        description = {"axis": -1, "epsilon": c.attribute("epsilon", 1e-12)}
        shift = c.maybe(3) if bias == 4 else None
        requested = replace(c, inputs=(total, c.tensor(2), shift), attributes=description, outputs=max(1, min(c.outputs, 3)))
        if how == "LayerNormalization" and c.outputs < 4:
            return [*NORMS[how](requested)]
        result = NORMS[how](replace(requested, outputs=1))
        return [result if isinstance(result, str) else result[0], "", "", total]

    return rule


def _embedded_norm(c: NodeContext) -> list[str]:
    """Words, places and segments looked up, their sum normalised; how many words each row has."""
    g, ids = c.g, c.tensor(0)
    rows, tokens = c.shape()
    places = c.maybe(8) or reshaped(c, g.add("iota", extent=tokens, dtype="int64"), (1, tokens))
    total = g.map("add", g.add("gather", c.tensor(2), ids, axis=0), g.add("gather", c.tensor(3), places, axis=0))
    if c.has_input(1) and c.has_input(4):
        total = g.map("add", total, g.add("gather", c.tensor(4), c.tensor(1), axis=0))
    description = {"axis": -1, "epsilon": c.attribute("epsilon", 1e-12)}
    norm = NORMS["LayerNormalization"](
        replace(c, inputs=(total, c.tensor(5), c.tensor(6)), attributes=description, outputs=1)
    )
    if c.has_input(7):
        counts = g.add("reduce", g.add("cast", c.tensor(7), dtype="int32"), how="sum", axes=(1,), keepdims=False)
    else:
        counts = g.add("broadcast", g.constant(0, "int32"), shape=(rows,))
    return [norm if isinstance(norm, str) else norm[0], counts, total]


def _few_bits(c: NodeContext) -> str:
    """A product with a weight whose elements are 2, 4 or 8 bits wide, with scales for blocks of them."""
    count, wide, bits, block = (c.required(name) for name in ("N", "K", "bits", "block_size"))
    known = [c.g.known(c.tensor(index)) for index in (1, 2)]
    if any(item is None for item in known) or c.has_input(4) or bits not in (2, 4, 8):
        raise c.bad("a weight that is not known when the file is read, or in another order; 2, 4 or 8 bits")
    blocks = -(-wide // block)
    stored = _unpacked(np.asarray(known[0]).reshape(count, blocks, -1), bits)[:, :, :block].astype(np.float32)
    scales = np.asarray(known[1]).astype(np.float32).reshape(count, blocks, 1)
    zero: Any = np.float32(1 << (bits - 1))
    if c.has_input(3):
        result = c.g.known(c.tensor(3))
        if result is None:
            raise c.bad("zero points that are not known when the file is read")
        inputs = np.asarray(result)
        plain = inputs.reshape(count, blocks) if inputs.dtype.kind == "f" else _unpacked(inputs.reshape(count, -1), bits)
        zero = plain[:, :blocks].astype(np.float32).reshape(count, blocks, 1)
    weight = ((stored - zero) * scales).reshape(count, blocks * block)[:, :wide]
    own = c.type().dtype
    found_product = matmul(c, c.tensor(0), c.g.constant(np.ascontiguousarray(weight.T).astype(numpy_dtype(own)), own))
    return c.g.map("add", found_product, c.tensor(5)) if c.has_input(5) else found_product


def _unpacked(stored: Any, bits: int) -> Any:
    """Elements along the last axis, those of the low bits of a byte first."""
    parts = [(stored >> shift) & ((1 << bits) - 1) for shift in range(0, 8, bits)]
    return np.stack(parts, -1).reshape(*stored.shape[:-1], -1)


def _as(name: str, table: Mapping[str, Rule], **defaults: Any) -> Rule:
    return lambda c: table[name](replace(c, op=name, attributes={**defaults, **c.attributes}))


_GELU: Callable[[NodeContext], str] = lambda c: decompositions.gelu(c.g, _sum(c, 0, 1))  # noqa: E731, one formula under two names
MICROSOFT: Mapping[str, Rule] = {
    "Gelu": _GELU,
    "BiasGelu": _GELU,
    "FastGelu": _fast_gelu,
    "QuickGelu": _quick_gelu,
    "FusedConv": _fused_conv,
    "FusedGemm": _fused_gemm,
    "FusedMatMul": _fused_matmul,
    "TransposeMatMul": _fused_matmul,
    "MatMulNBits": _few_bits,
    "SkipLayerNormalization": _skip_norm("LayerNormalization"),
    "SkipSimplifiedLayerNormalization": _skip_norm("RMSNormalization"),
    "EmbedLayerNormalization": _embedded_norm,
    "GridSample": _as("GridSample", SAMPLED),
    "QuantizeLinear": _as("QuantizeLinear", QUANTISED),
    "DequantizeLinear": _as("DequantizeLinear", QUANTISED),
    **ATTENTION,
    **MICROSOFT_QUANTISED,
}
