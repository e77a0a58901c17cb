"""Rules of ATen operators that place elements by counting: between bounds, in bags, under a mask; and triangles' indices."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent, product


def _counted(a: AtenContext, numbers: str, bounds: str, how: str, dtype: str = "int64") -> str:
    """Number of bounds, the last axis, on one side of each number: all are compared, so that there is no search."""
    kinds = [a.g.types[item] for item in (numbers, bounds)]
    of = next((name for name in ("float64", "float32") if name in {k.dtype for k in kinds}), kinds[0].dtype)
    lined = a.onnx("Unsqueeze", a.cast(numbers, of), a.whole([kinds[0].rank]))
    beside = a.cast(bounds, of)
    if kinds[1].rank > 1:
        beside = a.onnx("Unsqueeze", beside, a.whole([kinds[1].rank - 1]))
    met = a.cast(a.g.map(how, beside, lined), "int64")
    return a.cast(a.g.add("reduce", met, how="sum", axes=(a.g.types[met].rank - 1,), keepdims=False), dtype)


def _between(a: AtenContext) -> str:
    """The place at which (bucketize, searchsorted) each number would keep the bounds in order."""
    first, second = (a.cast(tensor, a.g.types[other].dtype) if not isinstance(tensor, str) else tensor
                     for tensor, other in ((a.at(0), a.at(1)), (a.at(1), a.at(0))))  # fmt: skip
    numbers, bounds = (first, second) if a.op.startswith("bucketize") else (second, first)
    if a.named.get("sorter") is not None:
        bounds = a.onnx("GatherElements", bounds, a.cast(a.named["sorter"], "int64"), axis=-1)
    right = a.named.get("right", False) or a.named.get("side") == "right"
    return _counted(a, numbers, bounds, "less_equal" if right else "less", a.dtype)


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
    bag = a.onnx("Unsqueeze", a.g.map("sub", _counted(a, position, begins, "less_equal"), 1), a.whole([1]))

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


BAGS: Mapping[str, Rule] = {
    **{f"{name}.{kind}": _between for name in ("bucketize", "searchsorted") for kind in ("Tensor", "Scalar")},
    "masked_scatter.default": _filled_under_mask,
    "_embedding_bag.default": _bags, "_embedding_bag_forward_only.default": _bags,
    "tril_indices.default": _triangle, "triu_indices.default": _triangle,
    "hypot.default": lambda a: a.g.map("sqrt", a.g.map("add", *(a.g.map("mul", leg, leg) for leg in (a.at(0), a.at(1))))),
}  # fmt: skip
