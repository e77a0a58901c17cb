"""Rules of ATen operators that say where elements lie: parts, joins, rolls, views by strides."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent, canonical, floor_division, largest, product, same, smallest


def sliced(a: AtenContext, x: str, axis: int, start: Extent, stop: Extent, step: int = 1) -> str:
    """A part along an axis."""
    return a.onnx("Slice", x, a.whole(start), a.whole(stop), a.whole(axis), a.whole(step))


def _split(a: AtenContext) -> list[str]:
    axis, sizes = a.axis(a.at(2, 0)), a.at(1)
    if not isinstance(sizes, list):
        extent = a.shape()[axis]
        if not isinstance(extent, int):
            raise UsageError(f"{a.op}: how many parts there are depends on the request; split into a given number of them")
        sizes = [min(sizes, extent - start) for start in range(0, extent, sizes)]
    return a.several("Split", a.at(0), a.whole(sizes), axis=axis)


def _unbound(a: AtenContext) -> list[str]:
    axis = a.axis(a.at(1, 0))
    return [a.onnx("Gather", a.at(0), a.g.constant(index, "int64"), axis=axis) for index in range(int(a.shape()[axis]))]


def _flipped(a: AtenContext) -> str:
    x = a.at(0)
    for axis in a.at(1):
        x = sliced(a, x, a.axis(axis), -1, -(2**63) + 1, -1)
    return str(x)


def _rolled(a: AtenContext) -> str:
    """The end before the beginning."""
    x, shifts, axes = a.at(0), a.at(1), a.at(2, [])
    shifts = shifts if isinstance(shifts, list) else [shifts]
    axes = axes if isinstance(axes, list) else [axes]
    if not axes:
        flat = _rolled_along(a, a.onnx("Reshape", x, a.whole(-1)), 0, shifts[0])
        return a.onnx("Reshape", flat, a.whole(a.shape()))
    for axis, shift in zip(axes, shifts, strict=True):
        x = _rolled_along(a, x, a.axis(axis), shift)
    return str(x)


def _rolled_along(a: AtenContext, x: str, axis: int, shift: Extent) -> str:
    extent = a.g.types[x].shape[axis]
    if same(extent, 0):
        return x
    moved = canonical(shift - extent * floor_division(shift, extent))
    if same(moved, 0):
        return x
    cut = canonical(extent - moved)
    return a.onnx("Concat", sliced(a, x, axis, cut, extent), sliced(a, x, axis, 0, cut), axis=axis)


def _repeated(a: AtenContext) -> str:
    times, x = list(a.at(1)), a.at(0)
    more = len(times) - len(a.shape())
    x = a.onnx("Reshape", x, a.whole([1] * more + list(a.shape()))) if more else x
    return a.onnx("Tile", x, a.whole(times))


def _written(a: AtenContext, part: str, axis: int, start: Extent, step: int) -> str:
    """The tensor with a part along an axis in place of its own."""
    x, extent, count = a.at(0), a.shape()[axis], a.g.types[part].shape[axis]
    if step == 1:
        pieces = [sliced(a, x, axis, 0, start), part, sliced(a, x, axis, canonical(start + count), extent)]
        selected = [piece for piece in pieces if not same(a.g.types[piece].shape[axis], 0)]
        return a.onnx("Concat", *selected, axis=axis) if selected else x
    places = a.g.map("add", a.g.map("mul", a.g.add("iota", extent=count, dtype="int64"), step), a.cast(start, "int64"))
    lined = a.onnx("Reshape", places, a.whole([count, *[1] * (len(a.shape()) - 1 - axis)]))
    every = a.onnx("Expand", lined, a.whole(list(a.g.types[part].shape)))
    return a.onnx("ScatterElements", x, every, part, axis=axis)


def _slice_written(a: AtenContext) -> str:
    axis, step = a.axis(a.at(2, 0)), a.at(5, 1)
    start, extent = a.at(3, 0), a.shape()[axis]
    start = canonical(start + extent) if isinstance(start, int) and start < 0 else start
    return _written(a, _like(a, a.at(1)), axis, start, step)


def _select_written(a: AtenContext) -> str:
    axis, position = a.axis(a.at(2)), a.at(3)
    position = canonical(position + a.shape()[axis]) if isinstance(position, int) and position < 0 else position
    return _written(a, a.onnx("Unsqueeze", _like(a, a.at(1)), a.whole(axis)), axis, position, 1)


def _like(a: AtenContext, part: str) -> str:
    return a.cast(part, a.g.types[a.at(0)].dtype)


def _copied(a: AtenContext) -> str:
    return a.onnx("Expand", a.cast(a.at(1), a.dtype), a.whole(list(a.shape())))


def _strided(a: AtenContext) -> str:
    """A view by strides of a tensor as it lies in memory, where it is a reshape: each axis steps over those behind it."""
    sizes, strides = list(a.at(1)), list(a.at(2))
    behind: Extent = 1
    for size, stride in zip(reversed(sizes), reversed(strides), strict=True):
        if not same(size, 1) and not same(stride, behind):
            raise UsageError(f"{a.op}: strides {strides} of sizes {sizes} are no reshape and have no rule")
        behind = canonical(behind * size)
    if not same(behind, product(a.shape())):
        raise UsageError(f"{a.op}: sizes {sizes} hold not all of {list(a.shape())}, which has no rule")
    return a.onnx("Reshape", a.at(0), a.whole(sizes))


def _unfolded(a: AtenContext) -> str:
    axis, size, step = a.axis(a.at(1)), a.at(2), a.at(3)
    return a.g.add("window", a.at(0), axes=(axis,), sizes=(size,), strides=(step,), dilations=(1,))


def _diagonal(a: AtenContext) -> str:
    """Along the last axis of the result."""
    offset, rank = a.at(1, a.named.get("offset", 0)), len(a.shape())
    rows, columns = a.axis(a.at(2, a.named.get("dim1", 0))), a.axis(a.at(3, a.named.get("dim2", 1)))
    others = [axis for axis in range(rank) if axis not in (rows, columns)]
    x = a.onnx("Transpose", a.at(0), perm=[*others, rows, columns])
    high, wide = a.shape()[rows], a.shape()[columns]
    down, right = max(-offset, 0), max(offset, 0)
    lengths = [canonical(high - down), canonical(wide - right)]
    count = largest([smallest(lengths), 0])
    steps = a.g.map("mul", a.g.add("iota", extent=count, dtype="int64"), a.whole_scalar(canonical(wide + 1)))
    places = a.g.map("add", steps, a.whole_scalar(canonical(down * wide + right)))
    flat = a.onnx("Reshape", x, a.whole([*(a.shape()[axis] for axis in others), canonical(high * wide)]))
    return a.onnx("Gather", flat, places, axis=rank - 2)


def _mirrored(mode: str) -> Rule:
    def rule(a: AtenContext) -> str:
        rank, pairs = len(a.shape()), list(a.at(1))
        before: list[Any] = [0] * rank
        after: list[Any] = [0] * rank
        for index in range(len(pairs) // 2):
            before[rank - 1 - index], after[rank - 1 - index] = pairs[2 * index], pairs[2 * index + 1]
        return a.onnx("Pad", a.at(0), a.whole(before + after), mode=mode)

    return rule


def _shuffled(op: str) -> Rule:
    def rule(a: AtenContext) -> str:
        *outer, channels, high, wide = a.shape()
        x = a.at(0) if len(outer) == 1 else a.onnx("Reshape", a.at(0), a.whole([product(outer), channels, high, wide]))
        result = a.onnx(op, x, blocksize=a.at(1), mode="CRD")
        return result if len(outer) == 1 else a.onnx("Reshape", result, a.whole([*outer, *a.g.types[result].shape[1:]]))

    return rule


PLACES: Mapping[str, Rule] = {
    "split_with_sizes.default": _split, "split.Tensor": _split, "unbind.int": _unbound,
    "flip.default": _flipped, "roll.default": _rolled, "repeat.default": _repeated,
    "slice_scatter.default": _slice_written, "select_scatter.default": _select_written, "copy.default": _copied,
    "as_strided.default": _strided, "unfold.default": _unfolded, "diagonal.default": _diagonal,
    **{f"{name}_pad{rank}d.default": _mirrored(mode) for name, mode in (("reflection", "reflect"), ("replication", "edge"))
       for rank in (1, 2, 3)},
    "pixel_shuffle.default": _shuffled("DepthToSpace"),
}  # fmt: skip
