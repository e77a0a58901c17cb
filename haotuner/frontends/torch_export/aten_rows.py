"""Rules of ATen operators that join rows to a number: norms, variances, lengths, products; and experts' products."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph import decompositions
from haotuner.graph.extents import largest, shown


def _axes(a: AtenContext, requested: Any) -> tuple[int, ...]:
    axes = [requested] if isinstance(requested, int) else list(requested or range(len(a.shape())))
    return tuple(a.axis(axis) for axis in axes)


def _along(a: AtenContext, x: str) -> str:
    """One number a channel."""
    return a.onnx("Reshape", x, a.whole([-1, *[1] * (len(a.shape()) - 2)]))


def _numbers(a: AtenContext, index: int, otherwise: float) -> str:
    """One number a channel, those of an argument if it is there."""
    count = a.shape()[1]
    if not a.at(index) and not isinstance(count, int):
        raise UsageError(f"{a.op}: {shown(count)} channels, which must be a fixed number; export it with that axis fixed")
    return a.at(index) or a.g.constant(np.full(count, otherwise), a.dtype)


def _group_normalised(a: AtenContext) -> list[str]:
    short = a.op.startswith("group_norm")
    scale, bias, groups, eps = (2, 3, 1, 4) if short else (1, 2, 6, 7)
    return [a.onnx("GroupNormalization", a.at(0), _numbers(a, scale, 1.0), _numbers(a, bias, 0.0),
                   num_groups=a.at(groups), epsilon=a.at(eps, 1e-5))]  # fmt: skip


def _instance_normalised(a: AtenContext) -> str:
    """By each image's own means, or by those of training where they are kept."""
    if a.at(5, True) and not a.at(1) and not a.at(2) and not isinstance(a.shape()[1], int):
        return decompositions.normalise(a.g, a.at(0), tuple(range(2, len(a.shape()))), a.at(7, 1e-5))
    scale, bias = _numbers(a, 1, 1.0), _numbers(a, 2, 0.0)
    if not a.at(5, True):
        return a.onnx("BatchNormalization", a.at(0), scale, bias, a.at(3), a.at(4), epsilon=a.at(7, 1e-5))
    return a.onnx("InstanceNormalization", a.at(0), scale, bias, epsilon=a.at(7, 1e-5))


def _batch_normalised(a: AtenContext) -> list[str]:
    """By the means of the batch itself."""
    if not a.at(3, True):
        raise UsageError(f"{a.op}: no means to normalise by")
    axes = tuple(axis for axis in range(len(a.shape())) if axis != 1)
    normal = decompositions.normalise(a.g, a.at(0), axes, a.at(5, 1e-5))
    return [decompositions.affine(a.g, normal, *(_along(a, tensor) if tensor else None for tensor in (a.at(1), a.at(2))))]


def _root_normalised(a: AtenContext) -> str:
    axes = tuple(range(len(a.shape()) - len(a.at(1)), len(a.shape())))
    eps = a.at(3, float(np.finfo(np.float32).eps))
    result = decompositions.rms_normalise(a.g, a.at(0), axes, eps)
    return result if a.at(2) is None else a.g.map("mul", result, a.at(2))


def _variance(a: AtenContext, requested: Any, correction: Any, *, keep: bool) -> str:
    axes = _axes(a, requested)
    x = a.cast(a.at(0), a.dtype)
    moved = a.g.map("sub", x, decompositions.mean(a.g, x, axes))
    total = a.g.add("reduce", a.g.map("mul", moved, moved), how="sum", axes=axes, keepdims=keep)
    count: Any = 1
    for axis in axes:
        count = count * a.shape()[axis]
    rest = largest([count - (1 if correction is None else int(correction)), 0])  # of no rows 0 / 0, as of one
    return a.g.map("div", total, a.cast(rest, a.dtype))


def _spread(a: AtenContext) -> str:
    correction, keep = a.named.get("correction", 1), bool(a.named.get("keepdim", False))
    if a.op.endswith(".dim"):
        correction, keep = int(a.at(2, True)), bool(a.at(3, False))
    if a.op.endswith(".default"):
        correction = int(a.at(1, True))
    result = _variance(a, None if a.op.endswith(".default") else a.at(1), correction, keep=keep)
    return a.g.map("sqrt", result) if a.op.startswith("std") else result


def _spread_and_mean(a: AtenContext) -> list[str]:
    keep = bool(a.named.get("keepdim", False))
    return [_variance(a, a.at(1), a.named.get("correction", 1), keep=keep),
            decompositions.mean(a.g, a.at(0), _axes(a, a.at(1)), keepdims=keep)]  # fmt: skip


def _length(a: AtenContext) -> str:
    """The norm of vectors, of any order."""
    order, axes = a.at(1, 2), _axes(a, a.at(2))
    keep, size = bool(a.at(3, False)), a.g.map("abs", a.cast(a.at(0), a.dtype))

    def joined(x: str, how: str) -> str:
        return a.g.add("reduce", x, how=how, axes=axes, keepdims=keep)

    if abs(order) == float("inf"):
        return joined(size, "max" if order > 0 else "min")
    if order == 0:
        return joined(a.cast(a.g.map("not", a.g.map("equal", size, 0.0)), a.dtype), "sum")
    if order == 1:
        return joined(size, "sum")
    if order == 2:
        return a.g.map("sqrt", joined(a.g.map("mul", size, size), "sum"))
    return a.g.map("pow", joined(a.g.map("pow", size, float(order)), "sum"), 1.0 / order)


def _distances(a: AtenContext) -> str:
    """Of every row of one tensor from every row of another: by their differences, not by products, which lose digits."""
    first, other = (a.onnx("Unsqueeze", a.cast(a.at(index), a.dtype), a.whole(-2 - index)) for index in (0, 1))
    apart = a.g.map("sub", first, other)
    return _length(replace(a, inputs=[apart, a.at(2, 2), [len(a.g.types[apart].shape) - 1]]))


def _apart(a: AtenContext) -> str:
    """dist: the length of a difference."""
    difference = a.g.map("sub", a.cast(a.at(0), a.dtype), a.cast(a.at(1), a.dtype))
    return _length(replace(a, inputs=[difference, a.at(2, 2)]))


def _three_joined(a: AtenContext) -> str:
    """_trilinear: products of three tensors with new axes, summed over some: what nn.Bilinear calls."""
    spread = [a.onnx("Unsqueeze", a.at(index), a.whole(list(a.at(index + 3)))) if a.at(index + 3) else a.at(index)
              for index in range(3)]  # fmt: skip
    first = a.g.map("mul", spread[0], spread[1])
    total = a.g.map("mul", first, spread[2])
    axes = tuple(axis % a.g.types[total].rank for axis in a.at(6))
    return a.g.add("reduce", total, how="sum", axes=axes, keepdims=False)


def _multiplied(a: AtenContext) -> str:
    whole = a.op == "prod.default"
    axes = None if whole else a.whole(a.axis(a.at(1)))
    return a.onnx("ReduceProd", a.cast(a.at(0), a.dtype), axes, keepdims=0 if whole else int(a.at(2, False)))


def _by_expert(a: AtenContext) -> str:
    """Rows sorted by expert, each times the weight of its own; ``ends``: where an expert's rows end.

    Sizes may not depend on data without cutting the model, so every expert sees all rows, those of others as zeros.
    """
    x, weights, ends = a.at(0), a.at(1), a.cast(a.setting("offs", 2), "int64")
    if len(a.shape()) != 2 or len(a.shape(1)) != 3 or a.setting("bias", 3) is not None:
        raise UsageError(f"{a.op}: only rows (s, k) of experts' weights (e, k, n) without a bias have a rule")
    rows = a.onnx("Unsqueeze", a.g.add("iota", extent=a.shape()[0], dtype="int64"), a.whole(1))
    result: str | None = None
    before = a.g.constant(0, "int64")
    for expert in range(int(a.shape(1)[0])):
        which = a.g.constant(expert, "int64")
        end = a.onnx("Gather", ends, which, axis=0)
        own = a.g.map("and", a.g.map("greater_equal", rows, before), a.g.map("less", rows, end))
        part = a.onnx("MatMul", a.g.map("select", own, x, 0.0), a.onnx("Gather", weights, which, axis=0))
        result, before = part if result is None else a.g.map("add", result, part), end
    return a.cast(result, a.dtype)


ROWS: Mapping[str, Rule] = {
    "native_group_norm.default": _group_normalised,
    "group_norm.default": lambda a: _group_normalised(a)[0],
    "instance_norm.default": _instance_normalised,
    "_native_batch_norm_legit.no_stats": _batch_normalised,
    "rms_norm.default": _root_normalised,
    **{f"{name}.{kind}": _spread for name in ("var", "std") for kind in ("correction", "dim", "default")},
    "var_mean.correction": _spread_and_mean,
    "linalg_vector_norm.default": _length,
    "_cdist_forward.default": _distances,
    "dist.default": _apart,
    "_trilinear.default": _three_joined,
    "prod.dim_int": _multiplied,
    "prod.default": _multiplied,
    "_grouped_mm.default": _by_expert,
    "transformers.grouped_mm_fallback.default": _by_expert,  # what that library calls where torch's own cannot serve
}
