"""Rules of com.microsoft's operators: what ONNX Runtime's optimisers join. Each is taken apart again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.frontends.onnx.contrib_attention import ATTENTION
from haotuner.frontends.onnx.contrib_quantized import MICROSOFT_QUANTISED
from haotuner.frontends.onnx.convolutions import CONVOLUTIONS
from haotuner.frontends.onnx.elementwise import ELEMENTWISE
from haotuner.frontends.onnx.grid_sample import SAMPLED
from haotuner.frontends.onnx.layout import reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.norms import NORMS
from haotuner.frontends.onnx.products import PRODUCTS, matmul
from haotuner.frontends.onnx.quantised import QUANTISED
from haotuner.graph import decompositions
from haotuner.graph.types import numpy_dtype


def _first_result(rule: Rule, c: NodeContext, *inputs: str | None, **attributes: Any) -> str:
    """The first result of another operator's rule."""
    arguments = rule(replace(c, inputs=inputs or c.inputs, attributes={**c.attributes, **attributes}, outputs=1))
    return arguments if isinstance(arguments, str) else arguments[0]


def _sum(c: NodeContext, *places: int) -> str:
    """Of the inputs that are there."""
    result: str | None = None
    for position in (c.tensor(position) for position in places if c.given(position)):
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
    result = c.g.map("add", result, c.tensor(3)) if c.given(3) else result
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
    if c.given(1) and c.given(4):
        total = g.map("add", total, g.add("gather", c.tensor(4), c.tensor(1), axis=0))
    description = {"axis": -1, "epsilon": c.attribute("epsilon", 1e-12)}
    norm = NORMS["LayerNormalization"](
        replace(c, inputs=(total, c.tensor(5), c.tensor(6)), attributes=description, outputs=1)
    )
    if c.given(7):
        counts = g.add("reduce", g.add("cast", c.tensor(7), dtype="int32"), how="sum", axes=(1,), keepdims=False)
    else:
        counts = g.add("broadcast", g.constant(0, "int32"), shape=(rows,))
    return [norm if isinstance(norm, str) else norm[0], counts, total]


def _few_bits(c: NodeContext) -> str:
    """A product with a weight whose elements are 2, 4 or 8 bits wide, with scales for blocks of them."""
    count, wide, bits, block = (c.required(name) for name in ("N", "K", "bits", "block_size"))
    known = [c.g.known(c.tensor(index)) for index in (1, 2)]
    if any(item is None for item in known) or c.given(4) or bits not in (2, 4, 8):
        raise c.bad("a weight that is not known when the file is read, or in another order; 2, 4 or 8 bits")
    blocks = -(-wide // block)
    stored = _unpacked(np.asarray(known[0]).reshape(count, blocks, -1), bits)[:, :, :block].astype(np.float32)
    scales = np.asarray(known[1]).astype(np.float32).reshape(count, blocks, 1)
    zero: Any = np.float32(1 << (bits - 1))
    if c.given(3):
        result = c.g.known(c.tensor(3))
        if result is None:
            raise c.bad("zero points that are not known when the file is read")
        inputs = np.asarray(result)
        plain = inputs.reshape(count, blocks) if inputs.dtype.kind == "f" else _unpacked(inputs.reshape(count, -1), bits)
        zero = plain[:, :blocks].astype(np.float32).reshape(count, blocks, 1)
    weight = ((stored - zero) * scales).reshape(count, blocks * block)[:, :wide]
    own = c.type().dtype
    found_product = matmul(c, c.tensor(0), c.g.constant(np.ascontiguousarray(weight.T).astype(numpy_dtype(own)), own))
    return c.g.map("add", found_product, c.tensor(5)) if c.given(5) else found_product


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
