"""Rules of torch's core ATen operators: each is written in ONNX's operators, whose rules build the primitives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx import special_functions
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.frontends.torch_export.aten_images import POOLS, RESIZE
from haotuner.frontends.torch_export.aten_indexing import INDEXING, SCATTERED
from haotuner.frontends.torch_export.aten_layout import PLACES
from haotuner.frontends.torch_export.aten_ordered import BAGS, ORDERED
from haotuner.frontends.torch_export.aten_products import ATTENTION, PRODUCTS
from haotuner.frontends.torch_export.aten_random import RANDOM
from haotuner.frontends.torch_export.aten_recurrent import RECURRENT
from haotuner.frontends.torch_export.aten_rows import ROWS
from haotuner.frontends.torch_export.aten_special import SPECIAL
from haotuner.graph.extents import Extent, canonical, largest, same, smallest
from haotuner.graph.types import FLOATS


def _binary(function: str, *, compares: bool = False) -> Rule:
    def rule(a: AtenContext) -> str:
        first, other = a.at(0), a.at(1)
        dtype = a.compared_in(first, other) if compares else a.dtype
        first, other = a.cast(first, dtype), a.cast(other, dtype)
        if (alpha := a.named.get("alpha", 1)) != 1:
            other = a.g.map("mul", other, alpha)
        rounding = a.named.get("rounding_mode")
        if rounding == "floor":
            return _floored(a, first, other) if dtype in FLOATS else a.g.map("floordiv", first, other)
        if rounding == "trunc" and dtype in FLOATS:
            return truncated(a, a.g.map("div", first, other))
        return a.g.map(function, first, other)

    return rule


def _floored(a: AtenContext, first: str, other: str) -> str:
    """Floor of a quotient as Python has it, by its remainder: 1 // 0.1 is 9, though 1 / 0.1 rounds to 10."""
    g, wide = a.g, "fp64" if a.dtype == "fp64" else "fp32"
    first, other = a.cast(first, wide), a.cast(other, wide)
    rest = g.map("fmod", first, other)
    apart = g.map("xor", g.map("less", other, 0.0), g.map("less", rest, 0.0))
    below = g.map("and", apart, g.map("not", g.map("equal", rest, 0.0)))
    exact = g.map("div", g.map("sub", first, rest), other)
    exact = g.map("select", below, g.map("sub", exact, 1.0), exact)
    result = g.map("floor", exact)
    result = g.map("select", g.map("greater", g.map("sub", exact, result), 0.5), g.map("add", result, 1.0), result)
    return a.cast(g.map("select", g.map("equal", other, 0.0), g.map("div", first, other), result), a.dtype)


def _bits(function: str) -> Rule:
    """Of booleans, or of every bit of whole numbers."""
    return lambda a: _binary(function if a.dtype == "bool" else f"bit{function}")(a)


def _turned(a: AtenContext) -> str:
    return a.onnx("Not" if a.dtype == "bool" else "BitwiseNot", a.at(0))


_EQUAL = _binary("equal", compares=True)


def _unequal(a: AtenContext) -> str:
    return a.g.map("not", str(_EQUAL(a)))


def _unary(op: str, **attributes: Any) -> Rule:
    return lambda a: a.onnx(op, a.cast(a.at(0), a.dtype), **attributes)


def truncated(a: AtenContext, x: str) -> str:
    """Towards 0."""
    if a.g.types[x].dtype not in FLOATS:
        return x
    return a.g.map("mul", a.g.map("sign", x), a.g.map("floor", a.g.map("abs", x)))


def _logarithm(base: int) -> Rule:
    """In double precision, so that the logarithm of a power is whole: models round it to a level or a number of digits."""
    return lambda a: a.cast(a.g.map("div", a.g.map("log", a.cast(a.at(0), "fp64")), float(np.log(base))), a.dtype)


def _power_of_two(a: AtenContext) -> str:
    """In double precision, as of logarithms."""
    return a.cast(a.g.map("exp", a.g.map("mul", a.cast(a.at(0), "fp64"), float(np.log(2)))), a.dtype)


def _elu(a: AtenContext) -> str:
    """With SELU's scales, too: the scale of the result, and of what the exponential takes."""
    alpha, scale, inner = (float(a.setting(name, position, 1.0)) for name, position in
                           (("alpha", 1), ("scale", 2), ("input_scale", 3)))  # fmt: skip
    x = a.at(0)
    low = a.g.map("mul", a.g.map("sub", a.g.map("exp", a.g.map("mul", a.g.map("min", x, 0.0), inner)), 1.0), alpha)
    return a.g.map("mul", a.g.map("select", a.g.map("greater", x, 0.0), x, low), scale)


def _leaning(a: AtenContext) -> list[str]:
    """rrelu: below 0 the mean of its slopes. In training they are drawn."""
    if a.at(4, False):
        raise UsageError(f"{a.op}: slopes drawn at random, as in training, have no rule; export the model for inference")
    return [a.onnx("LeakyRelu", a.at(0), alpha=(float(a.at(2, 1 / 8)) + float(a.at(3, 1 / 3))) / 2)]


def _same(a: AtenContext) -> str:
    return a.cast(a.at(0), a.dtype)


def _transposed(a: AtenContext) -> str:
    rank = len(a.shape())
    order = list(range(rank))
    first, other = (a.at(1) % rank, a.at(2) % rank) if len(a.inputs) > 2 else (0, rank - 1)
    order[first], order[other] = order[other], order[first]
    return a.onnx("Transpose", a.at(0), perm=order)


def _expanded(a: AtenContext) -> str:
    own, shape = a.shape(), list(a.at(1))
    known = [*[None] * (len(shape) - len(own)), *own]
    sizes = [entry if isinstance(item, int) and item == -1 else item for item, entry in zip(shape, known, strict=True)]
    return a.onnx("Expand", a.at(0), a.whole(sizes))


def _squeezed(a: AtenContext) -> str:
    rank = len(a.shape())
    axes = [a.at(1)] if isinstance(a.at(1), int) else list(a.at(1, range(rank)))
    ones = [axis for axis in axes if a.shape()[axis] == 1]
    return a.onnx("Squeeze", a.at(0), a.whole(ones)) if ones else str(a.at(0))


def _last(a: AtenContext, axis: int, begin: Extent, count: int) -> str:
    """A part counted from the end, of as many as torch found there; requests that have not so many are refused."""
    there = smallest([largest([canonical(begin + 1), 0]), 1])
    if not same(there, 1):
        a.g.need(there, "the model takes more from the end of a tensor than there is; send a larger request")
    return a.g.add("slice", a.at(0), axes=(axis,), starts=(begin,), stops=(canonical(begin + count),), steps=(1,))


def _sliced(a: AtenContext) -> str:
    start, end, step = a.at(2, 0), a.at(3, 2**63 - 1), a.at(4, 1)
    axis = a.axis(a.at(1, 0))
    extent, count = a.shape()[axis], a.sizes[axis] if a.sizes else None
    if step == 1 and isinstance(start, int) and start < 0 and isinstance(count, int) and not isinstance(extent, int):
        return _last(a, axis, canonical(extent + start), count)
    return a.onnx("Slice", a.at(0), a.whole(start), a.whole(end), a.whole(a.at(1, 0)), a.whole(step))


def _joined(a: AtenContext) -> str:
    """Side by side; torch leaves out what is of one axis and empty, whatever the others' ranks are."""
    tensors = [tensor for tensor in a.at(0) if a.g.types[tensor].shape != (0,)] or a.at(0)[:1]
    return a.onnx("Concat", *(a.cast(tensor, a.dtype) for tensor in tensors), axis=a.at(1, 0))


def _selected(a: AtenContext) -> str:
    return a.onnx("Gather", a.at(0), a.cast(a.at(2), "int64"), axis=a.at(1))


def _reduced(op: str) -> Rule:
    def rule(a: AtenContext) -> str:
        axes = a.at(1, [])
        axes = [axes] if isinstance(axes, int) else list(axes)
        return a.onnx(op, a.cast(a.at(0), a.dtype), a.whole(axes) if axes else None, keepdims=int(a.at(2, False)))

    return rule


def _any(a: AtenContext) -> str:
    axes = [
        extent % len(a.shape()) for extent in ([a.at(1)] if isinstance(a.at(1), int) else a.at(1, range(len(a.shape()))))
    ]
    truths = a.cast(a.cast(a.at(0), "bool"), "int64")  # a half is true, and no whole number
    most = a.g.add("reduce", truths, how="max", axes=tuple(axes), keepdims=bool(a.at(2, False)))
    return a.g.map("greater", most, 0)  # of nothing: the least number


def _arg(op: str) -> Rule:
    def rule(a: AtenContext) -> str:
        if a.at(1) is None:
            return a.onnx("Squeeze", a.onnx(op, a.onnx("Reshape", a.at(0), a.whole(-1)), axis=0, keepdims=1), a.whole(0))
        return a.onnx(op, a.at(0), axis=a.at(1), keepdims=int(a.at(2, False)))

    return rule


def _clamped(a: AtenContext) -> str:
    result = a.cast(a.at(0), a.dtype)
    least, most = (-1, 1) if a.op.startswith("hardtanh") else (None, None)
    low, high = a.setting("min", 1, least), a.setting("max", 2, most)
    result = result if low is None else a.g.map("max", result, a.cast(low, a.dtype))
    return result if high is None else a.g.map("min", result, a.cast(high, a.dtype))


def _convolved(a: AtenContext) -> str:
    x, w, bias, stride, pad, dilation, transposed, more, groups = (a.at(index) for index in range(9))
    rank = len(a.shape()) - 2
    settings = {"strides": list(stride) * (rank // len(stride)), "dilations": list(dilation) * (rank // len(dilation)),
                "pads": list(pad) * 2 * (rank // len(pad)), "group": groups}  # fmt: skip
    if transposed:
        return a.onnx("ConvTranspose", x, w, bias, **settings, output_padding=list(more))
    return a.onnx("Conv", x, w, bias, **settings, kernel_shape=list(a.g.types[w].shape[2:]))


def _normalised(a: AtenContext) -> list[str]:
    scale = a.at(2) or a.g.constant(np.ones([int(tensor) for tensor in a.at(1)]), a.g.types[a.at(0)].dtype)
    return [a.onnx("LayerNormalization", a.at(0), scale, a.at(3), axis=-len(a.at(1)), epsilon=a.at(4))]


def _batch_normalised(a: AtenContext) -> list[str]:
    count = int(a.shape()[1])
    own = a.g.types[a.at(3)].dtype
    scale, bias = (a.at(p) or a.g.constant(np.full(count, item), own) for p, item in ((1, 1.0), (2, 0.0)))
    return [a.onnx("BatchNormalization", a.at(0), scale, bias, a.at(3), a.at(4), epsilon=a.at(6))]


def _full(value: Any = None) -> Rule:
    def rule(a: AtenContext) -> str:
        like = isinstance(a.at(0), str)
        sizes = list(a.shape()) if like else list(a.at(0, []))
        filled = a.at(1) if value is None else value
        return a.g.add("broadcast", a.cast(filled, a.dtype), shape=tuple(sizes))

    return rule


def _counted(a: AtenContext) -> str:
    parts = list(a.inputs)
    start, end, step = (0, parts[0], 1) if len(parts) == 1 else (*parts, 1)[:3]
    whole = all(isinstance(item, int) or getattr(item, "is_integer", False) is True for item in (start, end, step))
    own = "int64" if whole else "fp64"  # in which torch counts the steps, whatever the result is
    return a.cast(a.onnx("Range", *(a.cast(item, own) for item in (start, end, step))), a.dtype)


def _padded(a: AtenContext) -> str:
    rank, pairs = len(a.shape()), list(a.at(1))
    before, after = [0] * rank, [0] * rank
    for index in range(len(pairs) // 2):
        before[rank - 1 - index], after[rank - 1 - index] = pairs[2 * index], pairs[2 * index + 1]
    return a.onnx("Pad", a.at(0), a.whole(before + after), a.cast(a.at(2, 0), a.dtype), mode="constant")


def _where(a: AtenContext) -> str:
    return a.g.map("select", a.at(0), a.cast(a.at(1), a.dtype), a.cast(a.at(2), a.dtype))


ATEN: Mapping[str, Rule] = {
    **{f"{name}.{kind}": _binary(function) for name, function in
       (("add", "add"), ("sub", "sub"), ("mul", "mul"), ("div", "div"), ("pow", "pow"), ("remainder", "mod"))
       for kind in ("Tensor", "Scalar", "Tensor_Tensor", "Tensor_Scalar", "Tensor_mode", "Scalar_mode", "Scalar_Tensor")},
    **{f"{name}.{kind}": _binary(function, compares=True) for name, function in
       (("eq", "equal"), ("lt", "less"), ("le", "less_equal"), ("gt", "greater"), ("ge", "greater_equal"))
       for kind in ("Tensor", "Scalar")},
    "ne.Tensor": _unequal, "ne.Scalar": _unequal,
    "maximum.default": _binary("max"), "minimum.default": _binary("min"),
    "logical_and.default": _binary("and"), "logical_or.default": _binary("or"),
    **{f"bitwise_{name}.{kind}": _bits(name) for name in ("and", "or", "xor") for kind in ("Tensor", "Scalar")},
    "logical_not.default": _unary("Not"), "bitwise_not.default": _turned,
    **{f"{name}.default": _unary(op) for name, op in
       (("neg", "Neg"), ("exp", "Exp"), ("log", "Log"), ("sqrt", "Sqrt"), ("tanh", "Tanh"), ("sigmoid", "Sigmoid"),
        ("erf", "Erf"),
        ("sin", "Sin"), ("cos", "Cos"), ("abs", "Abs"), ("floor", "Floor"), ("ceil", "Ceil"), ("round", "Round"),
        ("reciprocal", "Reciprocal"), ("relu", "Relu"), ("sign", "Sign"), ("tan", "Tan"), ("sinh", "Sinh"), ("cosh", "Cosh"),
        ("asinh", "Asinh"), ("acosh", "Acosh"), ("atanh", "Atanh"), ("asin", "Asin"), ("acos", "Acos"), ("atan", "Atan"))},
    "atan2.default": lambda a: special_functions.atan2(a.g, *(a.cast(a.at(index), a.dtype) for index in (0, 1))),
    "rsqrt.default": lambda a: a.g.map("rsqrt", a.cast(a.at(0), a.dtype)),
    "silu.default": lambda a: a.g.map("mul", a.at(0), a.g.map("sigmoid", a.at(0))),
    "gelu.default": lambda a: a.onnx("Gelu", a.at(0), approximate=a.named.get("approximate", "none")),
    "leaky_relu.default": lambda a: a.onnx("LeakyRelu", a.at(0), alpha=float(a.at(1, 0.01))),
    "rrelu_with_noise_functional.default": _leaning,
    "elu.default": _elu, "fmod.Tensor": _binary("fmod"), "fmod.Scalar": _binary("fmod"),
    "trunc.default": lambda a: truncated(a, a.at(0)), "isnan.default": lambda a: a.g.map("isnan", a.at(0)),
    "isinf.default": lambda a: a.g.map("isinf", a.at(0)), "logical_xor.default": _binary("xor"),
    "expm1.default": lambda a: a.g.map("expm1", a.cast(a.at(0), a.dtype)),
    "exp2.default": _power_of_two,
    "log1p.default": lambda a: a.g.map("log1p", a.cast(a.at(0), a.dtype)),
    **{f"log{base}.default": _logarithm(base) for base in (2, 10)},
    "fill.Scalar": lambda a: a.g.add("broadcast", a.cast(a.at(1), a.dtype), shape=a.shape()),
    "hardtanh.default": _clamped, "clamp.default": _clamped, "clamp.Tensor": _clamped,
    "view.default": lambda a: a.onnx("Reshape", a.at(0), a.whole(a.at(1))),
    "_unsafe_view.default": lambda a: a.onnx("Reshape", a.at(0), a.whole(a.at(1))),
    "reshape.default": lambda a: a.onnx("Reshape", a.at(0), a.whole(a.at(1))),
    "permute.default": lambda a: a.onnx("Transpose", a.at(0), perm=[tensor % len(a.shape()) for tensor in a.at(1)]),
    "transpose.int": _transposed, "t.default": _transposed, "expand.default": _expanded,
    "unsqueeze.default": lambda a: a.onnx("Unsqueeze", a.at(0), a.whole(a.at(1))),
    "squeeze.dim": _squeezed, "squeeze.dims": _squeezed, "squeeze.default": _squeezed,
    "slice.Tensor": _sliced, "select.int": _selected,
    "cat.default": _joined,
    **{name: _same for name in ("clone.default", "_to_copy.default", "alias.default", "detach.default", "contiguous.default",
                                "lift_fresh_copy.default", "to.dtype", "dropout.default")},
    "embedding.default": lambda a: a.onnx("Gather", a.at(0), a.at(1), axis=0),
    "index_select.default": lambda a: a.onnx("Gather", a.at(0), a.at(2), axis=a.at(1)),
    "gather.default": lambda a: a.onnx("GatherElements", a.at(0), a.at(2), axis=a.at(1)),
    "native_layer_norm.default": _normalised, "_native_batch_norm_legit_no_training.default": _batch_normalised,
    "convolution.default": _convolved,
    "mean.dim": _reduced("ReduceMean"), "mean.default": _reduced("ReduceMean"), "sum.dim_IntList": _reduced("ReduceSum"),
    "sum.default": _reduced("ReduceSum"), "amax.default": _reduced("ReduceMax"), "amin.default": _reduced("ReduceMin"),
    "any.dim": _any, "any.default": _any, "any.dims": _any,
    "argmax.default": _arg("ArgMax"), "argmin.default": _arg("ArgMin"),
    "_softmax.default": lambda a: a.onnx("Softmax", a.at(0), axis=a.at(1)),
    "_log_softmax.default": lambda a: a.onnx("LogSoftmax", a.at(0), axis=a.at(1)),
    "cumsum.default": lambda a: a.onnx("CumSum", a.cast(a.at(0), a.dtype), a.cast(a.at(1), "int64")),
    "full.default": _full(), "full_like.default": _full(), "zeros_like.default": _full(0), "ones_like.default": _full(1),
    "zeros.default": _full(0), "ones.default": _full(1),
    "scalar_tensor.default": lambda a: a.cast(a.at(0), a.dtype),
    "arange.default": _counted, "arange.start": _counted, "arange.start_step": _counted,
    "empty.memory_format": _full(0), "empty_like.default": _full(0), "empty_permuted.default": _full(0),
    "constant_pad_nd.default": _padded, "where.self": _where,
    **ATTENTION, **BAGS, **INDEXING, **ORDERED, **PLACES, **POOLS, **PRODUCTS, **RANDOM, **RECURRENT, **RESIZE, **ROWS,
    **SCATTERED, **SPECIAL,
}  # fmt: skip
