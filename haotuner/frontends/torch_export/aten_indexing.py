"""Rules of ATen operators that take, write or join elements by index, or by a mask."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import canonical, largest
from haotuner.graph.types import FLOATS, broadcast, numpy_dtype


def _index_tensors(a: AtenContext) -> dict[int, str]:
    """Tensors of whole numbers by the axis that each indexes: a mask has one for each of its axes."""
    result: dict[int, str] = {}
    axis = 0
    for tensor in a.at(1):
        if tensor is None:
            axis += 1
        elif a.g.types[tensor].dtype in ("bool", "uint8"):
            rank = a.g.types[tensor].rank
            indices = a.onnx("NonZero", tensor)
            for row in range(rank):
                result[axis + row] = a.onnx("Gather", indices, a.g.constant(row, "int64"), axis=0)
            axis += rank
        else:
            result[axis] = a.cast(tensor, "int64")
            axis += 1
    return result


def _joined(a: AtenContext, indices: Sequence[str]) -> tuple[str, int]:
    """Indices side by side on a last axis, all of one shape, and the rank of that shape."""
    rank = max(a.g.types[index].rank for index in indices)
    spread = indices[0]
    for index in indices[1:]:
        spread = a.g.map("add", spread, a.g.map("mul", index, 0))
    shape = a.whole(list(a.g.types[spread].shape)) if rank else None
    wide = [a.onnx("Expand", index, shape) if shape else index for index in indices]
    last = [a.onnx("Unsqueeze", item, a.whole(-1)) for item in wide]
    return (last[0] if len(last) == 1 else a.onnx("Concat", *last, axis=-1)), rank


def _orders(axes: Sequence[int], rank: int, depth: int) -> tuple[list[int], list[int]]:
    """The order that brings the indexed axes to the front, and that which brings the indices' to where torch has them.

    Torch leaves them where the first was if they are neighbours, and has them in front if not.
    """
    others = [axis for axis in range(rank) if axis not in axes]
    neighbours = list(axes) == list(range(axes[0], axes[0] + len(axes)))
    first = axes[0] if neighbours else 0
    back = [*range(depth, depth + first), *range(depth), *range(depth + first, depth + len(others))]
    return [*axes, *others], back


def _indexed(a: AtenContext) -> str:
    inputs = _index_tensors(a)
    axes = sorted(inputs)
    if len(axes) == 1:
        return a.onnx("Gather", a.at(0), inputs[axes[0]], axis=axes[0])
    places, depth = _joined(a, [inputs[axis] for axis in axes])
    front, back = _orders(axes, len(a.shape()), depth)
    return a.onnx("Transpose", a.onnx("GatherND", a.onnx("Transpose", a.at(0), perm=front), places), perm=back)


def _index_written(a: AtenContext) -> str:
    """Values at indices; where one mask chooses and there is one value, a selection."""
    x, values = a.at(0), a.cast(a.at(2), a.dtype)
    add = bool(a.setting("accumulate", 3, False))
    masks = [tensor for tensor in a.at(1) if tensor is not None]
    single = a.g.types[values].rank == 0
    if single and len(a.at(1)) == 1 and a.g.types[masks[0]].dtype == "bool" and not add:
        mask = a.g.types[masks[0]]
        spread = a.onnx("Reshape", masks[0], a.whole([*mask.shape, *[1] * (len(a.shape()) - mask.rank)]))
        return a.g.map("select", spread, values, x)
    inputs = _index_tensors(a)
    axes = sorted(inputs)
    places, depth = _joined(a, [inputs[axis] for axis in axes])
    front, back = _orders(axes, len(a.shape()), depth)
    turned = a.onnx("Transpose", x, perm=front)
    outer, row = a.g.types[places].shape[:-1], a.g.types[turned].shape[len(axes) :]
    whole = [*outer, *row]
    values = a.onnx("Expand", values, a.whole([whole[item] for item in back]))
    values = a.onnx("Transpose", values, perm=[back.index(index) for index in range(len(back))])
    written = a.onnx("ScatterND", turned, places, values, reduction="add" if add else "none")
    return a.onnx("Transpose", written, perm=[front.index(axis) for axis in range(len(front))])


def _top(a: AtenContext) -> list[str]:
    x, axis = a.at(0), a.at(2, -1)
    return a.several("TopK", x, a.whole(a.at(1)), axis=axis, largest=int(a.at(3, True)))


def _sorted(a: AtenContext) -> list[str]:
    stable = "stable" in a.op
    axis = a.setting("dim", 2 if stable else 1, -1)
    falling = bool(a.setting("descending", 3 if stable else 2, False))
    axis = a.axis(axis)
    return a.several("TopK", a.at(0), a.whole(a.shape()[axis]), axis=axis, largest=int(falling))


def _extreme(how: str) -> Rule:
    def rule(a: AtenContext) -> list[str]:
        settings: dict[str, Any] = {"keepdims": int(a.at(2, False))}
        return [
            a.onnx(f"Reduce{how}", a.at(0), a.whole(a.axis(a.at(1))), **settings),
            a.onnx(f"Arg{how}", a.at(0), axis=a.axis(a.at(1)), **settings),
        ]

    return rule


def _taken_under_mask(a: AtenContext) -> str:
    """masked_select: flat, as many as the mask has."""
    shape = broadcast([a.shape(0), a.shape(1)], a.op)
    x, mask = (a.onnx("Reshape", a.onnx("Expand", a.at(index), a.whole(list(shape))), a.whole(-1)) for index in (0, 1))
    return a.onnx("Compress", x, mask, axis=0)


def _each_repeated(a: AtenContext) -> str:
    """repeat_interleave: of numbers how often each place comes, the places. Where one ends the count goes up by one."""
    ends = a.onnx("CumSum", a.cast(a.at(0), "int64"), a.whole_scalar(0))
    total = a.named.get("output_size")
    if total is None:
        last = a.onnx("Gather", ends, a.whole(-1), axis=0)
        (total,) = a.g.whole_numbers(last, "how often rows are repeated")
    none = a.onnx("Expand", a.cast(0, "int64"), a.whole(canonical(total + 1)))
    ones = a.onnx("Expand", a.cast(1, "int64"), a.whole(list(a.shape())))
    at_ends = a.onnx("ScatterElements", none, ends, ones, axis=0, reduction="add")
    selected = a.onnx("Slice", at_ends, a.whole(0), a.whole(total), a.whole(0))
    return a.cast(a.onnx("CumSum", selected, a.whole_scalar(0)), a.dtype)


def _nonzero(a: AtenContext) -> str:
    x = a.at(0) if a.g.types[a.at(0)].dtype not in FLOATS else a.g.map("not", a.g.map("equal", a.at(0), 0.0))
    return a.onnx("Transpose", a.onnx("NonZero", x), perm=[1, 0])


def _histogram(a: AtenContext) -> str:
    """histc: how many elements lie in each of equal bins; those outside and NaNs in none, those at the end in the last."""
    bins, low, high = a.setting("bins", 1, 100), a.setting("min", 2, 0), a.setting("max", 3, 0)
    own = a.g.types[a.at(0)].dtype
    dtype = own if own in ("fp32", "fp64") else "fp64"  # whole numbers of either are exact
    x = a.cast(a.onnx("Reshape", a.at(0), a.whole(-1)), dtype)
    if low == high:  # torch takes the data's own
        least, most = (a.onnx(f"Reduce{how}", x, keepdims=0) for how in ("Min", "Max"))
        alone = a.g.map("equal", least, most)
        first = a.g.map("select", alone, a.g.map("sub", least, 1.0), least)
        last = a.g.map("select", alone, a.g.map("add", most, 1.0), most)
    else:
        first, last = a.cast(low, dtype), a.cast(high, dtype)
    inside = a.onnx("And", a.onnx("GreaterOrEqual", x, first), a.onnx("LessOrEqual", x, last))
    scaled = a.g.map("div", a.g.map("mul", a.g.map("sub", x, first), float(bins)), a.g.map("sub", last, first))
    position = a.g.map("min", a.cast(a.g.map("select", inside, scaled, 0.0), "int64"), bins - 1)
    none = a.onnx("Expand", a.cast(0, a.dtype), a.whole(bins))
    return a.onnx("ScatterElements", none, position, a.cast(inside, a.dtype), axis=0, reduction="add")


INDEXING: Mapping[str, Rule] = {
    "histc.default": _histogram,
    "index.Tensor": _indexed, "index_put.default": _index_written,
    "topk.default": _top, "sort.default": _sorted, "sort.stable": _sorted,
    "max.dim": _extreme("Max"), "min.dim": _extreme("Min"), "nonzero.default": _nonzero,
    "masked_select.default": _taken_under_mask, "repeat_interleave.Tensor": _each_repeated,
    "max.default": lambda a: a.onnx("ReduceMax", a.at(0), keepdims=0),
    "min.default": lambda a: a.onnx("ReduceMin", a.at(0), keepdims=0),
}  # fmt: skip


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


def _bincount(a: AtenContext) -> str:
    """bincount: how often each number is there, or the sum of its weights; the largest number tells how many there are."""
    x, weights = a.cast(a.at(0), "int64"), a.at(1)
    most = a.g.map("add", a.onnx("ReduceMax", x, keepdims=0), 1)
    (result,) = a.g.whole_numbers(a.onnx("Reshape", most, a.whole(1)), "how many numbers are counted")
    none = a.onnx("Expand", a.cast(0, a.dtype), a.whole(canonical(largest([result, a.setting("minlength", 2, 0)]))))
    ones = a.onnx("Expand", a.cast(1, a.dtype), a.whole(list(a.shape())))
    return a.onnx("ScatterElements", none, x, ones if weights is None else a.cast(weights, a.dtype), axis=0, reduction="add")


SCATTERED: Mapping[str, Rule] = {
    "index_add.default": _rows_added, "index_reduce.default": _rows_joined, "bincount.default": _bincount,
    **{f"scatter.{kind}": _scattered for kind in ("src", "value", "reduce", "value_reduce")},
    "scatter_add.default": _scattered, "scatter_reduce.two": _scattered,
}  # fmt: skip
