"""Rules of ATen operators that choose or place elements by order or by count; running totals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent, canonical, floor_division, product
from haotuner.graph.types import FLOATS


def _keepdim(a: AtenContext, axis: int, result: list[str], *, keep: bool) -> list[str]:
    """Results of one place along an axis, with it or without."""
    return result if keep else [a.onnx("Squeeze", item, a.whole(axis)) for item in result]


def _kth(a: AtenContext) -> list[str]:
    """The last of the k smallest."""
    axis, k = a.axis(a.setting("dim", 2, -1)), a.at(1)
    least = a.several("TopK", a.at(0), a.whole(k), axis=axis, largest=0)
    last = [a.onnx("Slice", item, a.whole(canonical(k - 1)), a.whole(k), a.whole(axis)) for item in least]
    return _keepdim(a, axis, last, keep=bool(a.setting("keepdim", 3, False)))


def _middle(a: AtenContext) -> list[str]:
    """The lower one of two in the middle; NaN where one is there, or none of them counts (nanmedian)."""
    g, x, axis = a.g, a.at(0), a.axis(a.setting("dim", 1, -1))
    extent, kind, real = a.shape()[axis], a.g.types[x].dtype, a.g.types[x].dtype in FLOATS
    none = g.map("isnan", x) if real else None
    high = g.map("select", none, g.constant(np.inf, kind), x) if none else x
    values, places = a.several("TopK", high, a.whole(extent), axis=axis, largest=0)
    half = a.whole(canonical(floor_division(extent - 1, 2)))
    if none and a.op.startswith("nan"):
        gone = a.onnx("ReduceSum", a.cast(none, "int64"), a.whole(axis), keepdims=1)
        left = g.map("sub", a.whole(extent), gone)
        chosen = g.map("max", g.map("floordiv", g.map("sub", left, 1), 2), 0)
        missing = g.map("equal", left, 0)
        result = [a.onnx("GatherElements", position, chosen, axis=axis) for position in (values, places)]
    else:
        result = [a.onnx("Gather", position, half, axis=axis) for position in (values, places)]
        missing = g.add("reduce", a.cast(none, "int64"), how="max", axes=(axis,), keepdims=True) if none else ""
        missing = a.cast(missing, "bool") if missing else ""
    if missing:
        result[0] = g.map("select", missing, g.constant(np.nan, kind), result[0])
    return _keepdim(a, axis, result, keep=bool(a.setting("keepdim", 2, False)))


def _flat(rule: Rule) -> Rule:
    """Of all elements: the value alone."""

    def found(a: AtenContext) -> str:
        return str(rule(replace(a, inputs=[a.onnx("Reshape", a.at(0), a.whole(-1)), 0], named={}))[0])

    return found


def _paired(a: AtenContext, axis: int) -> tuple[str, str, str]:
    """An axis twice, to compare all with all: the elements on the second, and of both places on that axis and the next."""
    behind, extent = len(a.shape()) - 1 - axis, a.shape()[axis]
    places = a.g.add("iota", extent=extent, dtype="int64")
    here, there = (a.onnx("Reshape", places, a.whole([extent, *[1] * more])) for more in (behind + 1, behind))
    return a.onnx("Unsqueeze", a.at(0), a.whole(axis)), here, there


def _commonest(a: AtenContext) -> list[str]:
    """The value that is there most often, of several the least; and its last place."""
    g, axis = a.g, a.axis(a.setting("dim", 1, -1))
    other, _, there = _paired(a, axis)
    alike = a.cast(g.map("equal", other, a.onnx("Unsqueeze", a.at(0), a.whole(axis + 1))), "int64")
    count = g.add("reduce", alike, how="sum", axes=(axis + 1,), keepdims=False)

    def joined(x: str, how: str) -> str:
        return g.add("reduce", x, how=how, axes=(axis,), keepdims=True)

    often = g.map("equal", count, joined(count, "max"))
    value = joined(g.map("select", often, a.at(0), joined(a.at(0), "max")), "min")
    own = g.map("equal", a.at(0), value)
    position = joined(g.map("select", own, there, g.constant(0, "int64")), "max")
    return _keepdim(a, axis, [value, position], keep=bool(a.setting("keepdim", 2, False)))


def _extreme_so_far(a: AtenContext) -> list[str]:
    """Of each element and all before it along an axis, and where the last such one is: every pair is compared."""
    g, axis, how = a.g, a.axis(a.at(1)), a.op.removeprefix("cum").split(".")[0]
    x, here, there = _paired(a, axis)
    before = g.map("less_equal", there, here)

    def joined(values: str, how: str) -> str:
        return g.add("reduce", values, how=how, axes=(axis + 1,), keepdims=False)

    first = a.onnx("Unsqueeze", a.onnx("Slice", a.at(0), a.whole(0), a.whole(1), a.whole(axis)), a.whole(axis))
    best = joined(g.map("select", before, x, first), how)
    same = g.map("and", before, g.map("equal", x, a.onnx("Unsqueeze", best, a.whole(axis + 1))))
    return [best, joined(g.map("select", same, there, g.constant(0, "int64")), "max")]


def _different(a: AtenContext) -> list[str]:
    """unique, sorted, and unique_consecutive: each value once, which of them each element is, how often each is there."""
    shape, kind = a.shape(), a.g.types[a.at(0)].dtype
    if a.op.startswith("unique_consecutive") and a.at(3) is not None:
        raise UsageError(f"{a.op}: of rows (dim=) has no rule; of elements it has")
    flat = a.onnx("Reshape", a.at(0), a.whole(-1))
    count = a.g.types[flat].shape[0]
    places = ""
    if a.op.startswith("_unique2"):
        flat, places = a.several("TopK", flat, a.whole(count), axis=0, largest=0)
    before = a.onnx("Concat", a.onnx("Slice", flat, a.whole(0), a.whole(1), a.whole(0)),
                    a.onnx("Slice", flat, a.whole(0), a.whole(-1), a.whole(0)), axis=0)  # fmt: skip
    first = a.g.map("equal", a.g.add("iota", extent=count, dtype="int64"), 0)
    new = a.g.map("or", first, a.g.map("not", a.g.map("equal", flat, before)))
    values = a.cast(a.onnx("Compress", flat, new, axis=0), kind)
    which = a.g.map("sub", a.onnx("CumSum", a.cast(new, "int64"), a.whole_scalar(0)), 1)
    none = a.onnx("Expand", a.cast(0, "int64"), a.whole(list(a.g.types[values].shape)))
    ones = a.onnx("Expand", a.cast(1, "int64"), a.whole(count))
    often = a.onnx("ScatterElements", none, which, ones, axis=0, reduction="add")
    own = a.onnx("ScatterElements", which, places, which, axis=0) if places else which
    return [values, a.onnx("Reshape", own, a.whole(list(shape))), often]


def _log_of_sums(a: AtenContext) -> str:
    """Of the exponentials of an element and all before it, less the largest of them: nothing overflows or is lost."""
    g, axis = a.g, a.axis(a.at(1))
    x, here, there = _paired(a, axis)
    kind = g.types[x].dtype
    seen = g.map("select", g.map("less_equal", there, here), x, g.constant(-np.inf, kind))
    most = g.add("reduce", seen, how="max", axes=(axis + 1,), keepdims=True)
    base = g.map("select", g.map("isinf", most), g.constant(0, kind), most)
    total = g.add("reduce", g.map("exp", g.map("sub", seen, base)), how="sum", axes=(axis + 1,), keepdims=True)
    return a.onnx("Squeeze", g.map("add", g.map("log", total), base), a.whole(axis + 1))


ORDERED: Mapping[str, Any] = {
    "kthvalue.default": _kth,
    "median.dim": _middle, "nanmedian.dim": _middle, "median.default": _flat(_middle), "nanmedian.default": _flat(_middle),
    "mode.default": _commonest, "cummax.default": _extreme_so_far, "cummin.default": _extreme_so_far,
    "_unique2.default": _different, "unique_consecutive.default": _different,
    "logcumsumexp.default": _log_of_sums,
    "cumprod.default": lambda a: a.onnx("CumProd", a.cast(a.at(0), a.dtype), a.whole_scalar(a.at(1))),
}  # fmt: skip


def _counted(a: AtenContext, numbers: str, bounds: str, how: str, dtype: str = "int64") -> str:
    """Number of bounds, the last axis, that are not ``how`` a number: all are compared, so that there is no search.

    A NaN lies behind all bounds.
    """
    kinds = [a.g.types[item] for item in (numbers, bounds)]
    lined = a.onnx("Unsqueeze", numbers, a.whole([kinds[0].rank]))
    beside = a.onnx("Unsqueeze", bounds, a.whole([kinds[1].rank - 1])) if kinds[1].rank > 1 else bounds
    met = a.cast(a.g.map("not", a.g.map(how, beside, lined)), "int64")
    return a.cast(a.g.add("reduce", met, how="sum", axes=(a.g.types[met].rank - 1,), keepdims=False), dtype)


def _between(a: AtenContext) -> str:
    """The place at which (bucketize, searchsorted) each number would keep the bounds in order."""
    first, second = (a.cast(tensor, a.compared_in(a.at(0), a.at(1))) for tensor in (a.at(0), a.at(1)))
    numbers, bounds = (first, second) if a.op.startswith("bucketize") else (second, first)
    if a.named.get("sorter") is not None:
        bounds = a.onnx("GatherElements", bounds, a.cast(a.named["sorter"], "int64"), axis=-1)
    right = a.named.get("right", False) or a.named.get("side") == "right"
    return _counted(a, numbers, bounds, "greater" if right else "greater_equal", a.dtype)


def _filled_under_mask(a: AtenContext) -> str:
    """masked_scatter: the elements under a mask are those of the source, in order."""
    shape = a.shape()
    mask = a.onnx("Expand", a.at(1), a.whole(list(shape)))
    flat = a.onnx("Reshape", a.cast(mask, "int64"), a.whole([-1]))
    position = a.g.map("max", a.g.map("sub", a.onnx("CumSum", flat, a.whole_scalar(0)), 1), 0)
    source = a.onnx("Reshape", a.cast(a.at(2), a.dtype), a.whole([-1]))
    last = a.cast(product(a.shape(2)) - 1, "int64")
    chosen = a.onnx("Gather", source, a.g.map("min", position, last), axis=0)
    return a.g.map("select", mask, a.onnx("Reshape", chosen, a.whole(list(shape))), a.at(0))


_SUM, _MEAN, _MOST = 0, 1, 2


def _bags(a: AtenContext) -> list[str]:
    """Sums, means or maxima of a table's rows; offsets say where bags begin, the row ``padding_idx`` counts not."""
    table, index, begins = a.at(0), a.cast(a.at(1), "int64"), a.cast(a.at(2), "int64")
    mode, weights, padding = a.setting("mode", 4, 0), a.setting("per_sample_weights", 6), a.setting("padding_idx", 8, -1)
    if a.setting("include_last_offset", 7, False):
        begins = a.onnx("Slice", begins, a.whole([0]), a.whole([-1]), a.whole([0]))
    (count,), (bags,), width = a.g.types[index].shape, a.g.types[begins].shape, a.g.types[table].shape[1]
    counted = a.onnx("Unsqueeze", a.g.map("not", a.g.map("equal", index, padding)), a.whole([1]))
    counts = a.cast(counted, a.dtype)
    rows = a.onnx("Gather", table, index, axis=0)
    rows = a.g.map("select", counted, rows, a.g.constant(-np.inf if mode == _MOST else 0, a.dtype))
    if weights is not None:
        rows = a.g.map("mul", rows, a.onnx("Unsqueeze", a.cast(weights, a.dtype), a.whole([1])))
    position = a.onnx("Range", a.whole_scalar(0), a.whole_scalar(count), a.whole_scalar(1))
    bag = a.onnx("Unsqueeze", a.g.map("sub", _counted(a, position, begins, "greater"), 1), a.whole([1]))

    def joined(values: str, across: Extent, how: str = "add", start: float = 0.0) -> str:
        none = a.onnx("Expand", a.cast(start, a.dtype), a.whole([bags, across]))
        return a.onnx("ScatterElements", none, a.onnx("Expand", bag, a.whole([count, across])), values, axis=0,
                      reduction=how)  # fmt: skip

    if mode == _MOST:  # of nothing: 0
        most = joined(rows, width, "max", -np.inf)
        return [a.g.map("select", a.g.map("greater", joined(counts, 1), 0), most, a.g.constant(0, a.dtype))]
    result = joined(rows, width)
    return [result if mode == _SUM else a.g.map("div", result, a.g.map("max", joined(counts, 1), 1.0))]


def _triangle(a: AtenContext) -> str:
    """tril_indices and triu_indices of a matrix of known sides."""
    sides = [a.at(0), a.at(1), a.at(2, 0)]
    if not all(isinstance(side, int) for side in sides):
        raise UsageError(f"{a.op}: sides that the request decides have no rule; compare rows and columns instead")
    where = np.tril_indices if a.op.startswith("tril") else np.triu_indices
    return a.g.constant(np.stack(where(sides[0], sides[2], sides[1])), a.dtype)


def _hypotenuse(a: AtenContext) -> str:
    """In double precision, where no square of fp32 is too large or too small."""
    legs = [a.cast(a.cast(a.at(index), a.dtype), "fp64") for index in (0, 1)]
    return a.cast(a.g.map("sqrt", a.g.map("add", *(a.g.map("mul", leg, leg) for leg in legs))), a.dtype)


BAGS: Mapping[str, Rule] = {
    **{f"{name}.{kind}": _between for name in ("bucketize", "searchsorted") for kind in ("Tensor", "Scalar")},
    "masked_scatter.default": _filled_under_mask,
    "_embedding_bag.default": _bags, "_embedding_bag_forward_only.default": _bags,
    "tril_indices.default": _triangle, "triu_indices.default": _triangle,
    "hypot.default": _hypotenuse,
}  # fmt: skip
