"""Rules of ATen operators that write or join values where indices say: sums, products, extremes and means; counts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import canonical, largest
from haotuner.graph.types import FLOATS, numpy_dtype

_HOW = {"sum": "add", "add": "add", "mean": "add", "prod": "mul", "multiply": "mul", "amax": "max", "amin": "min"}


def _neutral(how: str, dtype: str) -> Any:
    """Neutral element of joining."""
    if how in ("add", "mul"):
        return int(how == "mul")
    if dtype in FLOATS:
        return -np.inf if how == "max" else np.inf
    kind = np.iinfo(numpy_dtype(dtype))
    return int(kind.min if how == "max" else kind.max)


def joined_at(a: AtenContext, index: str, values: str, axis: int, reduce: str, *, own: bool) -> str:
    """The first tensor with values joined to its elements; ``own``: to their own values, else these are left out.

    ``index`` has the places along the axis, in the shape of ``values``; ``reduce`` is torch's word, of those of ``_HOW``.
    """
    how, x = _HOW.get(reduce), a.at(0)
    if how is None:
        raise UsageError(f"{a.op}: reduce={reduce!r} has no rule; {', '.join(_HOW)} have")

    def met(start: int) -> str:
        """Number of values that go to each place, and ``start`` more."""
        base = a.onnx("Expand", a.cast(start, a.dtype), a.whole(list(a.shape())))
        ones = a.onnx("Expand", a.cast(1, a.dtype), a.whole(list(a.g.types[index].shape)))
        return a.onnx("ScatterElements", base, index, ones, axis=axis, reduction="add")

    if not own:
        x = a.g.map("select", a.g.map("equal", met(0), 0), x, a.g.constant(_neutral(how, a.dtype), a.dtype))
    result = a.onnx("ScatterElements", x, index, values, axis=axis, reduction=how)
    if reduce != "mean":
        return result
    count = a.g.map("max", met(int(own)), 1)
    return a.g.map("div" if a.dtype in FLOATS else "floordiv", result, count)


def _rows(a: AtenContext) -> tuple[str, str, int]:
    """Of rows along an axis: the index of every element, the values, the axis."""
    axis, rank = a.axis(a.at(1)), len(a.shape())
    values = a.cast(a.at(3), a.dtype)
    lined = a.onnx("Reshape", a.cast(a.at(2), "int64"), a.whole([-1, *[1] * (rank - 1 - axis)]))
    return a.onnx("Expand", lined, a.whole(list(a.g.types[values].shape))), values, axis


def _rows_added(a: AtenContext) -> str:
    index, values, axis = _rows(a)
    if a.named.get("alpha", 1) != 1:
        values = a.g.map("mul", values, a.named["alpha"])
    return joined_at(a, index, values, axis, "add", own=True)


def _rows_joined(a: AtenContext) -> str:
    index, values, axis = _rows(a)
    return joined_at(a, index, values, axis, a.at(4), own=bool(a.setting("include_self", 5, True)))


def _scattered(a: AtenContext) -> str:
    axis, index = a.axis(a.at(1)), a.cast(a.at(2), "int64")
    values, sizes = a.at(3), a.g.types[index].shape
    if isinstance(values, str) and a.g.types[values].rank:
        values = a.cast(values, a.dtype)
        for position, (own, extent) in enumerate(zip(a.g.types[values].shape, sizes, strict=True)):
            if own != extent:  # torch takes as many as there are indices
                values = a.onnx("Slice", values, a.whole(0), a.whole(extent), a.whole(position))
    else:
        values = a.onnx("Expand", a.cast(values, a.dtype), a.whole(list(sizes)))
    reduce = "add" if a.op.startswith("scatter_add") else a.setting("reduce", 4)
    if reduce is None:
        return a.onnx("ScatterElements", a.at(0), index, values, axis=axis)
    return joined_at(a, index, values, axis, reduce, own=bool(a.setting("include_self", 5, True)))


def _counted(a: AtenContext) -> str:
    """bincount: how often each number is there, or the sum of its weights; the largest number tells how many there are."""
    x, weights = a.cast(a.at(0), "int64"), a.at(1)
    most = a.g.map("add", a.onnx("ReduceMax", x, keepdims=0), 1)
    (result,) = a.g.whole_numbers(a.onnx("Reshape", most, a.whole(1)), "how many numbers are counted")
    none = a.onnx("Expand", a.cast(0, a.dtype), a.whole(canonical(largest([result, a.setting("minlength", 2, 0)]))))
    ones = a.onnx("Expand", a.cast(1, a.dtype), a.whole(list(a.shape())))
    return a.onnx("ScatterElements", none, x, ones if weights is None else a.cast(weights, a.dtype), axis=0, reduction="add")


SCATTERED: Mapping[str, Rule] = {
    "index_add.default": _rows_added, "index_reduce.default": _rows_joined, "bincount.default": _counted,
    **{f"scatter.{kind}": _scattered for kind in ("src", "value", "reduce", "value_reduce")},
    "scatter_add.default": _scattered, "scatter_reduce.two": _scattered,
}  # fmt: skip
