"""Rules of quantised models: real numbers as bytes with a scale and a zero point, products and moves of such bytes.

Operators that only move elements, or choose some of them: of real numbers made of bytes they move the bytes.

``DequantizeLinear`` of one scale keeps the order of bytes, so that it may come behind such an operator. ``QuantizeLinear``
of the same scale behind that gives the bytes themselves: a real number is byte times scale, rounded once,
and over the scale at most 1e-4 from that byte.

Sums with a weight are exact, in 32 bits (``integers.py``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.frontends.onnx.constant_folding import Stored
from haotuner.frontends.onnx.convolutions import biased, convolved, windows_of
from haotuner.frontends.onnx.integers import BYTES, image_sums, is_zero, matrix_sums, single, weight_of
from haotuner.frontends.onnx.layout import cut, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.products import matmul
from haotuner.frontends.onnx.types import NARROW, Narrow, dtype_of_onnx, nearest
from haotuner.frontends.onnx.value_analysis import never_negative
from haotuner.graph.extents import Extent, canonical, ceiling_division, same
from haotuner.graph.types import FLOATS, HALVES, numpy_dtype

LEAST_SCALE = 2.0**-100  # of a smaller one products may have no normal number


def alike(c: NodeContext, item: Stored, scale: str, zero: str | None, dtype: str) -> bool:
    """True if real numbers were made of bytes by one scale and one zero point, these."""
    if c.g.types[item.bytes].dtype != dtype or dtype not in BYTES or not (_single(c, item) and single(c, scale)):
        return False
    own, other = (c.g.numbers(name) for name in (item.scale, scale))
    if own is None or other is None or own.dtype != np.float32 or own.reshape(()) != other.reshape(()):
        return False
    return bool(LEAST_SCALE <= own.reshape(()) < np.inf) and single(c, zero) and _same_zero(c, item.zero, zero)


def _single(c: NodeContext, item: Stored) -> bool:
    return single(c, item.scale) and single(c, item.zero)


def _same_zero(c: NodeContext, item: str | None, other: str | None) -> bool:
    if item is None or other is None:
        return all(name is None or is_zero(c, name) for name in (item, other))
    values = [c.g.numbers(name) for name in (item, other)]
    return item == other or (all(v is not None for v in values) and values[0].reshape(()) == values[1].reshape(()))


def moving(rule: Rule, again: Rule, *, every: bool = False) -> Rule:
    """The rule of an operator that moves its first input, or ``every`` one; ``again`` is the rule that makes bytes real.

    Of bytes with several scales or zero points, and of weights, it stays as it is.
    """

    def found(c: NodeContext) -> str | list[str]:
        moved = c.inputs if every else c.inputs[:1]
        stored = [None if item is None else c.g.stored.get(item) for item in moved]
        first = stored[0] if stored else None
        if first is None or any(
            item is None
            or c.g.known(item.bytes) is not None
            or not alike(c, item, first.scale, first.zero, c.g.types[first.bytes].dtype)
            for item in stored
        ) or (c.op == "MaxPool" and c.outputs > 1):  # fmt: skip
            made = rule(c)
            return made if isinstance(made, str) else list(made)
        inputs = (*(item.bytes for item in stored if item is not None), *c.inputs[len(moved) :])
        made = rule(replace(c, inputs=inputs))
        real = [
            str(again(replace(c, inputs=(item, first.scale, first.zero), attributes={})))
            for item in ([made] if isinstance(made, str) else made)
        ]
        return real[0] if isinstance(made, str) else real

    return found


MOVING = (
    "Reshape", "Flatten", "Transpose", "Squeeze", "Unsqueeze", "Slice", "Split", "Expand", "Tile", "Gather",
    "DepthToSpace", "SpaceToDepth", "MaxPool", "GlobalMaxPool",
)  # fmt: skip


def moving_bytes(rules: Mapping[str, Rule]) -> dict[str, Rule]:
    """Those of the rules that may move bytes, as such."""
    again = rules["DequantizeLinear"]
    return {**{op: moving(rules[op], again) for op in MOVING}, "Concat": moving(rules["Concat"], again, every=True)}


def _axis(c: NodeContext) -> int:
    """The axis of scales that differ; where there is one scale it says nothing, and may lie beyond the tensor's."""
    requested, rank = int(c.attribute("axis", 1)), c.type().rank
    return min(requested + rank if requested < 0 else requested, max(rank - 1, 0))


def _spread(c: NodeContext, x: str, shape: Sequence[Extent], axis: int) -> str:
    """One number for all, one for each place along an axis, or one for each block of them, for a tensor of this shape."""
    count, block, rank = c.g.types[x].shape, int(c.attribute("block_size", 0)), len(shape)
    if block and len(count) == rank > 0:
        return _of_blocks(c, x, shape, axis, block)
    if block:
        raise c.bad(f"scales of shape {list(count)} for blocks of a tensor of {rank} axes; both have as many axes")
    if c.g.types[x].rank > 1:
        raise c.bad(f"scales or zero points of shape {list(count)}")
    if not count or count[0] == 1:
        return reshaped(c, x, ())
    return reshaped(c, x, (count[0], *[1] * (rank - 1 - axis)))


def _of_blocks(c: NodeContext, x: str, shape: Sequence[Extent], axis: int, block: int) -> str:
    """Each number as often as its block has places, the last one as often as the tensor goes on."""
    own = c.g.types[x].shape
    other = [(extent, size) for index, (extent, size) in enumerate(zip(own, shape, strict=True)) if index != axis]
    if not all(same(*pair) for pair in other) or not same(own[axis], ceiling_division(shape[axis], block)):
        text = f"{list(own)} of blocks of {block} along axis {axis} of {list(shape)}"
        raise c.bad(f"scales or zero points of shape {text}")
    apart = reshaped(c, x, (*own[: axis + 1], 1, *own[axis + 1 :]))
    wide = c.g.add("broadcast", apart, shape=(*own[: axis + 1], block, *own[axis + 1 :]))
    whole = reshaped(c, wide, (*own[:axis], canonical(own[axis] * block), *own[axis + 1 :]))
    return whole if same(own[axis] * block, shape[axis]) else cut(c, whole, axis, 0, shape[axis])


def quantised(
    c: NodeContext, x: str, scale: str, zero: str | None, dtype: str, axis: int, narrow: Narrow | None = None
) -> str:
    """Rounded to the nearest, to even where two are as near, and kept in the range of the bytes, or of a ``narrow`` type.

    What was made of bytes of this scale is those bytes; of tensors behind one another each is rounded.
    """
    g, shape = c.g, c.g.types[x].shape
    made = g.stored.get(x)
    if made is not None and narrow is None and alike(c, made, scale, zero, dtype):
        return made.bytes
    if x in g.joined and single(c, scale) and single(c, zero):
        parts, along = g.joined[x]
        return g.add("concat", *(quantised(c, part, scale, zero, dtype, axis, narrow) for part in parts), axis=along)
    precision = int(c.attribute("precision", 0))
    own = dtype_of_onnx(precision, c.op) if precision else g.types[scale].dtype
    result = g.map("div", g.cast(x, own), g.cast(_spread(c, scale, shape, axis), own))
    if narrow is not None and not narrow.whole:
        return nearest(g, g.cast(result, "fp32"), narrow, saturate=bool(c.attribute("saturate", 1)))
    result = g.map("round", result)
    if zero is not None and not is_zero(c, zero):
        result = g.map("add", result, g.add("cast", _spread(c, zero, shape, axis), dtype=own))
    bounds = np.iinfo(numpy_dtype(dtype))
    low, high = (bounds.min, bounds.max) if narrow is None else (narrow.low, narrow.high)
    return g.add("cast", g.map("min", g.map("max", result, float(low)), float(high)), dtype=dtype)


def _quantise(c: NodeContext) -> str:
    zero, requested = c.maybe(2), int(c.attribute("output_dtype", 0))
    narrow = c.g.narrow.get(zero) if zero is not None else NARROW.get(requested)
    known = "uint8" if not requested else narrow.stored if narrow is not None else dtype_of_onnx(requested, c.op)
    dtype = c.type(2).dtype if zero is not None else known
    if dtype in FLOATS and narrow is None:
        raise c.bad(f"to {dtype}; whole numbers of 2 to 16 bits and floats of 4 and 8 bits are known")
    return quantised(c, c.tensor(0), c.tensor(1), zero, dtype, _axis(c), narrow)


def _moved(c: NodeContext, x: str, zero: str | None, axis: int) -> str:
    """Less the zero point, in 32 bits."""
    wide = c.g.add("cast", x, dtype="int32")
    if zero is None:
        return wide
    return c.g.map("sub", wide, c.g.add("cast", _spread(c, zero, c.g.types[x].shape, axis), dtype="int32"))


def _dequantise(c: NodeContext) -> str:
    result = dequantised(c, c.tensor(0), c.tensor(1), c.maybe(2), _axis(c))
    return c.g.cast(result, _real_type(c, c.tensor(1)))


def _real_type(c: NodeContext, scale: str) -> str:
    """Of what bytes stand for: that of the scale, or the one asked for."""
    requested = int(c.attribute("output_dtype", 0))
    return dtype_of_onnx(requested, c.op) if requested else c.g.types[scale].dtype


def dequantised(c: NodeContext, x: str, scale: str, zero: str | None, axis: int) -> str:
    """The real numbers that bytes stand for; of weights a constant. Products look at the bytes (``integers.py``)."""
    result = _real_of(c, x, scale, zero, axis)
    if c.attribute("block_size", 0) or c.g.types[x].dtype in FLOATS or c.g.types[result].dtype != c.g.types[scale].dtype:
        return result
    c.g.stored[result] = Stored(x, scale, zero, axis)
    return result


def _real_of(c: NodeContext, x: str, scale: str, zero: str | None, axis: int) -> str:
    g, shape = c.g, c.g.types[x].shape
    known = [g.numbers(item) for item in (x, scale, *([] if zero is None else [zero]))]
    if all(item is not None for item in known):  # weights: as many bytes more as it may be
        values, *spread = (np.asarray(item) for item in known)
        scales, *moved_by = (_spread_now(c, item, values.shape, axis) for item in spread)
        if values.dtype.kind != "f":
            values = values.astype(np.int32) - (moved_by[0].astype(np.int32) if moved_by else 0)
        return g.constant((values * scales.astype(np.float32)).astype(numpy_dtype(_real_type(c, scale))))
    if g.types[scale].dtype in HALVES or g.types[x].dtype in FLOATS:  # a product is rounded once, to the type asked for
        factor = g.cast(_spread(c, scale, shape, axis), "fp32")
        wide = x if zero is None or g.types[x].dtype in FLOATS else _moved(c, x, zero, axis)
        return g.cast(g.map("mul", g.cast(wide, "fp32"), factor), _real_type(c, scale))
    own, factor = g.types[scale].dtype, _spread(c, scale, shape, axis)
    if zero is None or is_zero(c, zero):
        return g.map("mul", g.add("cast", x, dtype=own), factor)
    if own != "fp32" or numpy_dtype(g.types[x].dtype).itemsize > 2:  # differences may have no number of the type
        return g.map("mul", g.add("cast", _moved(c, x, zero, axis), dtype=own), factor)
    less = g.add("cast", _spread(c, zero, shape, axis), dtype=own)
    return g.map("mul", g.map("sub", g.add("cast", x, dtype=own), less), factor)


def _spread_now(c: NodeContext, values: Any, shape: Sequence[int], axis: int) -> Any:
    """As ``_spread``, of numbers that are known."""
    block = int(c.attribute("block_size", 0))
    if block and values.ndim == len(shape) > 0:
        wide = (*shape[:axis], -(-shape[axis] // block), *shape[axis + 1 :])
        if values.shape != wide:
            raise c.bad(f"scales or zero points of shape {list(values.shape)}; blocks of {block} ask for {list(wide)}")
        return np.repeat(values, block, axis).take(range(shape[axis]), axis)
    return np.asarray(c.g.known(_spread(c, c.g.constant(values), shape, axis)))


def _sums(c: NodeContext, x: int, w: int, x_zero: int, w_zero: int) -> str:
    """A convolution of whole numbers; pads are what the zero point stands for."""
    sizes = [int(extent) for extent in c.shape(w)[2:]]
    windows, groups = windows_of(c, sizes, c.shape(x)[2:]), int(c.attribute("group", 1))
    weight, zero = weight_of(c, c.tensor(w), c.maybe(w_zero), 0, groups), c.maybe(x_zero)
    if weight is not None and single(c, zero):
        return image_sums(c, c.tensor(x), zero, weight, windows, groups)
    left, right = _moved(c, c.tensor(x), zero, 1), _moved(c, c.tensor(w), c.maybe(w_zero), 0)
    return convolved(c, left, right, windows, groups)


def _requantised(c: NodeContext, sums: str, scales: tuple[int, int, int], zero: int, axis: int) -> str:
    """Sums times both scales, quantised by the third."""
    g, shape = c.g, c.g.types[sums].shape
    wide = [g.add("cast", c.tensor(scale), dtype="fp32") for scale in scales]
    first, other = (_spread(c, tensor, shape, axis) for tensor in wide[:2])
    real = g.map("mul", g.cast(sums, "fp32"), g.map("mul", first, other))
    return quantised(c, real, wide[2], c.tensor(zero), c.type(zero).dtype, axis)


def _convolution(c: NodeContext) -> str:
    return _requantised(c, biased(c, _sums(c, 0, 3, 2, 5), 8), (1, 4, 6), 7, 1)


def _product(c: NodeContext) -> str:
    rank, zero = c.type().rank, c.maybe(2)
    weight = weight_of(c, c.tensor(3), c.maybe(5), 1) if c.type(3).rank == 2 and rank > 1 and single(c, zero) else None
    if weight is not None:
        result = matrix_sums(c, c.tensor(0), zero, weight)
    else:  # whole numbers as floats: exact up to 258 terms, and such products have kernels
        left = _moved(c, c.tensor(0), zero, max(rank - 2, 0))
        right = _moved(c, c.tensor(3), c.maybe(5), c.type(3).rank - 1)
        result = matmul(c, *(c.g.add("cast", item, dtype="fp32") for item in (left, right)))
    return _requantised(c, result, (1, 4, 6), 7, c.g.types[result].rank - 1)


def dynamic(c: NodeContext) -> list[str]:
    """The scale and zero point are those of the tensor's own range, 0 in it; what is never negative has the zero point 0."""
    g, x = c.g, c.tensor(0)
    if never_negative(g, x):
        scale = g.map("div", _farthest(c, "max"), 255.0)
        zero = g.constant(0, "uint8")
    else:
        high, low = _farthest(c, "max"), _farthest(c, "min")
        scale = g.map("div", g.map("sub", high, low), 255.0)
        middle = g.map("div", g.map("sub", g.constant(0.0, "fp32"), low), scale)
        middle = g.map("round", g.map("min", g.map("max", middle, 0.0), 255.0))
        zero = g.add("cast", g.map("select", g.map("equal", scale, 0.0), 0.0, middle), dtype="uint8")
    scale = g.map("select", g.map("equal", scale, 0.0), 1.0, scale)  # of zeros alone: as ONNX Runtime's
    return [quantised(replace(c, attributes={}), x, scale, zero, "uint8", 0), scale, zero]


def _farthest(c: NodeContext, how: str) -> str:
    """The largest or the least element, or 0."""
    axes = tuple(range(c.type().rank))
    result = c.g.add("reduce", c.tensor(0), how=how, axes=axes, keepdims=False) if axes else c.tensor(0)
    return c.g.map(how, result, 0.0)


QUANTISED: Mapping[str, Rule] = {
    "QuantizeLinear": _quantise,
    "DequantizeLinear": _dequantise,
    "DynamicQuantizeLinear": dynamic,
    "ConvInteger": lambda c: _sums(c, 0, 1, 2, 3),
    "QLinearConv": _convolution,
    "QLinearMatMul": _product,
}
