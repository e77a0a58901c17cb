"""Rules of operators that take or write elements by index, and of those made of gathers, scatters and sorts.

Rules of Col2Im, Det, MelWeightMatrix, TensorScatter and Unique: each is made of gathers, scatters and sorts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from haotuner.frontends.onnx.data_dependent import places_of
from haotuner.frontends.onnx.layout import cut, padded, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.types import dtype_of_onnx
from haotuner.graph.extents import Extent, canonical, floor_division, largest, product, shown, smallest
from haotuner.graph.typed_extents import never_negative


def _within(c: NodeContext, indices: str, extent: Extent) -> None:
    """UsageError where indices that are known now choose rows that a tensor of this extent has not.

    Requests that give it too few are refused: loops take the nearest row.
    """
    stored = c.g.numbers(indices)
    if (
        stored is None
        or stored.size == 0
        or (not isinstance(extent, int) and not all(isinstance(index, int | np.integer) for index in stored.flat))
    ):
        return
    least, most = int(stored.min()), int(stored.max())
    if not isinstance(extent, int):
        rows = max(most + 1, -least)
        if not never_negative(extent - rows):
            holds = smallest([1, largest([0, canonical(extent - rows + 1)])])
            words = f"the model takes an element at {most if most + 1 == rows else least} of an axis of {shown(extent)}"
            c.g.need(holds, f"{words}; send a request that has {rows} or more there")
        return
    if least < -extent or most >= extent:
        result = least if least < -extent else most
        raise c.bad(f"the index {result}, but there are {extent} rows: {-extent} to {extent - 1}; mend the model's constant")


def _gather(c: NodeContext) -> str:
    axis = c.axis(c.attribute("axis", 0))
    _within(c, c.tensor(1), c.shape()[axis])
    return c.g.add("gather", c.tensor(0), c.g.cast(c.tensor(1), "int64"), axis=axis)


def _from_the_front(c: NodeContext, indices: str, extent: Extent) -> str:
    behind = c.g.map("add", indices, c.g.of_extents([extent], "int64"))
    return c.g.map("select", c.g.map("less", indices, 0), behind, indices)


def _own(c: NodeContext, shape: Sequence[Extent], axis: int) -> str:
    """Each element's own index along an axis, to be broadcast."""
    numbers = c.g.add("iota", extent=shape[axis], dtype="int64")
    return reshaped(c, numbers, (shape[axis], *[1] * (len(shape) - 1 - axis)))


def _flat_places(c: NodeContext, indices: str, axis: int, shape: Sequence[Extent]) -> str:
    """Places in a flat tensor of ``shape`` of elements whose index along ``axis`` is given, the others being their own.

    They have the shape of ``indices``: loops over its axes divide nothing.
    """
    theirs = c.g.types[indices].shape
    _within(c, indices, shape[axis])
    total = c.g.map("mul", _from_the_front(c, indices, shape[axis]), _weight(c, shape, axis))
    for index in range(len(shape)):
        if index != axis:
            total = c.g.map("add", total, c.g.map("mul", _own(c, theirs, index), _weight(c, shape, index)))
    return total


def _weight(c: NodeContext, shape: Sequence[Extent], axis: int) -> str:
    return c.g.of_extents([product(shape[axis + 1 :])], "int64")


def taken_along(c: NodeContext, x: str, indices: str, axis: int) -> str:
    """Numpy's take_along_axis."""
    shape = c.g.types[x].shape
    flat = reshaped(c, x, (product(shape),))
    return c.g.add("gather", flat, _flat_places(c, indices, axis, shape), axis=0)


def _gather_elements(c: NodeContext) -> str:
    return taken_along(c, c.tensor(0), c.g.cast(c.tensor(1), "int64"), c.axis(c.attribute("axis", 0)))


def _slices(c: NodeContext, indices: str, batch: int) -> tuple[str, tuple[Extent, ...], tuple[Extent, ...], int]:
    """GatherND and ScatterND: rows by the first axes -> row numbers, their shape, a row's shape, axes indexed."""
    shape, theirs = c.shape(), c.g.types[indices].shape
    depth = theirs[-1]
    if not isinstance(depth, int):
        raise c.bad("indices whose last extent is not fixed")
    leading = shape[: batch + depth]
    total: str | None = None
    for index in range(depth):
        part = cut(c, indices, len(theirs) - 1, index, index + 1)
        _within(c, part, shape[batch + index])
        part = _from_the_front(c, reshaped(c, part, theirs[:-1]), shape[batch + index])
        part = c.g.map("mul", part, c.g.of_extents([product(leading[batch + index + 1 :])], "int64"))
        total = part if total is None else c.g.map("add", total, part)
    assert total is not None
    for position in range(batch):
        own = c.g.map("mul", _own(c, theirs[:-1], position), c.g.of_extents([product(leading[position + 1 :])], "int64"))
        total = c.g.map("add", total, own)
    return total, theirs[:-1], shape[batch + depth :], batch + depth


def _gather_nd(c: NodeContext) -> str:
    batch = c.attribute("batch_dims", 0)
    places, _, row, axes = _slices(c, c.g.cast(c.tensor(1), "int64"), batch)
    flat = reshaped(c, c.tensor(0), (product(c.shape()[:axes]), *row))
    return c.g.add("gather", flat, places, axis=0)


def _scatter_nd(c: NodeContext) -> str:
    places, outer, row, _ = _slices(c, c.g.cast(c.tensor(1), "int64"), 0)
    size, count = product(row), product(outer)
    first = reshaped(c, c.g.map("mul", places, c.g.of_extents([size], "int64")), (count, 1))
    within = c.g.add("iota", extent=size, dtype="int64")
    flat = reshaped(c, c.g.map("add", first, within), (canonical(count * size),))
    return _written(c, flat)


def _written(c: NodeContext, places: str) -> str:
    shape = c.shape()
    total = c.g.types[places].shape[0]
    flat, new = reshaped(c, c.tensor(0), (product(shape),)), reshaped(c, c.tensor(2), (total,))
    return reshaped(c, c.g.add("scatter", flat, places, new, how=c.attribute("reduction", "none")), shape)


def _scatter_elements(c: NodeContext) -> str:
    places = _flat_places(c, c.g.cast(c.tensor(1), "int64"), c.axis(c.attribute("axis", 0)), c.shape())
    return _written(c, reshaped(c, places, (product(c.g.types[places].shape),)))


def _max_unpool(c: NodeContext) -> str:
    """Each element where its pool found it, which a place in the flat result says; the others are 0.

    ``output_shape`` is a larger result, at whose begin that of the windows lies.
    """
    sizes = list(c.required("kernel_shape"))
    rank, image = len(sizes), c.shape()[2:]
    strides, pads = list(c.attribute("strides", [1] * rank)), list(c.attribute("pads", [0] * 2 * rank))
    if not len(image) == len(strides) == rank or len(pads) != 2 * rank:
        raise c.bad(f"kernel_shape {sizes}, strides {strides} and pads {pads} do not go with an image of {len(image)} axes")
    if c.type(1).dtype != "int64" or len(c.shape(1)) != rank + 2:
        raise c.bad(f"places of {c.type(1)} for {c.type()}")
    inner = [
        canonical((extent - 1) * stride - before - after + size)
        for extent, stride, size, before, after in zip(image, strides, sizes, pads[:rank], pads[rank:], strict=True)
    ]
    shape = (*c.shape()[:2], *inner)
    count = product(c.shape())
    flat, new = reshaped(c, c.tensor(1), (count,)), reshaped(c, c.tensor(0), (count,))
    nothing = c.g.add("broadcast", c.g.constant(0, c.type().dtype), shape=(product(shape),))
    result = reshaped(c, c.g.add("scatter", nothing, _from_the_front(c, flat, product(shape)), new, how="none"), shape)
    if not c.has_input(2):
        return result
    more = [canonical(extent - own) for extent, own in zip(c.numbers(2), shape, strict=True)]
    return padded(c, result, (0,) * len(shape), more, "constant", 0.0)


def _one_hot(c: NodeContext) -> str:
    depth = c.numbers(1)[0]
    axis = c.axis(c.attribute("axis", -1), 1)
    indices = _from_the_front(c, c.g.add("cast", c.tensor(0), dtype="int64"), depth)
    shape = list(c.shape())
    spread = reshaped(c, indices, (*shape[:axis], 1, *shape[axis:]))
    classes = reshaped(c, c.g.add("iota", extent=depth, dtype="int64"), (depth, *[1] * (len(shape) - axis)))
    values = [reshaped(c, cut(c, c.tensor(2), 0, at, at + 1), ()) for at in (0, 1)]
    return c.g.map("select", c.g.map("equal", spread, classes), values[1], values[0])


def _top_k(c: NodeContext) -> list[str]:
    axis = c.axis(c.attribute("axis", -1))
    count = c.numbers(1)[0] if c.has_input(1) else c.required("k")
    largest = c.attribute("largest", 1)
    if largest not in (0, 1):
        raise c.bad(f"largest={largest}; it is 0 or 1")
    order = c.g.add("arg_sort", c.tensor(0), axis=axis, falling=bool(largest))
    chosen = cut(c, order, axis, 0, count)
    return [taken_along(c, c.tensor(0), chosen, axis), chosen]


def _reverse_sequence(c: NodeContext) -> str:
    """Each batch's first elements in reverse."""
    time, batch, shape = c.attribute("time_axis", 0), c.attribute("batch_axis", 1), c.shape()
    if {time, batch} != {0, 1}:
        raise c.bad(f"time_axis {time} and batch_axis {batch}; one must be 0 and the other 1")
    own, lengths = _own(c, shape, time), reshaped(c, c.tensor(1), (shape[batch], *[1] * (len(shape) - 1 - batch)))
    turned = c.g.map("sub", c.g.map("sub", lengths, 1), own)
    places = c.g.map("select", c.g.map("less", own, lengths), turned, own)
    return taken_along(c, c.tensor(0), c.g.add("broadcast", places, shape=shape), time)


INDEXING: Mapping[str, Rule] = {
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GatherND": _gather_nd,
    "ScatterND": _scatter_nd,
    "ScatterElements": _scatter_elements,
    "Scatter": _scatter_elements,
    "OneHot": _one_hot,
    "MaxUnpool": _max_unpool,
    "TopK": _top_k,
    "ReverseSequence": _reverse_sequence,
}


LARGEST_MATRIX = 32  # rows of a determinant, each of which is some twenty steps


def _col2im(c: NodeContext) -> str:
    """Sums of blocks where they overlap: written into the image with its pads, which are cut off."""
    g, image, sizes = c.g, c.numbers(1), c.whole(2)
    rank = len(image)
    strides, dilations = c.attribute("strides", [1] * rank), c.attribute("dilations", [1] * rank)
    pads = list(c.attribute("pads", [0] * 2 * rank))
    n, wide = c.shape()[:2]
    channels = floor_division(wide, prod(sizes))
    padded = [canonical(extent + pads[a] + pads[rank + a]) for a, extent in enumerate(image)]
    steps = [
        canonical(floor_division(canonical(padded[a] - dilations[a] * (sizes[a] - 1) - 1), strides[a]) + 1)
        for a in range(rank)
    ]
    total = ""
    for axis in range(rank):  # (block, ..., step, ...)
        first = g.map("mul", g.add("iota", extent=steps[axis], dtype="int64"), strides[axis])
        taps = g.constant(np.arange(sizes[axis], dtype=np.int64) * dilations[axis])
        shape = [1] * axis + [sizes[axis]] + [1] * (rank - 1)
        position = g.map("add", reshaped(c, taps, (*shape, *[1] * (rank - axis))),
                      reshaped(c, first, (steps[axis], *[1] * (rank - 1 - axis))))  # fmt: skip
        part = g.map("mul", position, g.of_extents(np.array(product(padded[axis + 1 :]), object), "int64"))
        total = g.map("add", total, part) if total else part
    each = g.map("mul", g.add("iota", extent=canonical(n * channels), dtype="int64"),
                 g.of_extents(np.array(product(padded), object), "int64"))  # fmt: skip
    places = g.map("add", reshaped(c, each, (canonical(n * channels), *[1] * 2 * rank)), total)
    count = product((n, channels, *sizes, *steps))
    flat, new = reshaped(c, places, (count,)), reshaped(c, c.tensor(0), (count,))
    nothing = g.add("broadcast", g.constant(0, c.type().dtype), shape=(product((n, channels, *padded)),))
    result = reshaped(c, g.add("scatter", nothing, flat, new, how="add"), (n, channels, *padded))
    for axis in range(rank):
        if pads[axis] or pads[rank + axis]:
            result = cut(c, result, 2 + axis, pads[axis], canonical(pads[axis] + image[axis]))
    return result


def _det(c: NodeContext) -> str:
    """Elimination with the largest pivot of each column."""
    g, shape = c.g, c.shape()
    rows = shape[-1]
    if not isinstance(rows, int) or shape[-2] != rows or rows > LARGEST_MATRIX:
        raise c.bad(f"matrices of {c.type()}; expected square ones of at most {LARGEST_MATRIX} rows, a fixed number")
    outer = product(shape[:-2])
    left, result = reshaped(c, c.tensor(0), (outer, rows, rows)), ""
    for size in range(rows, 0, -1):
        column = reshaped(c, cut(c, left, 2, 0, 1), (outer, size))
        chosen = g.add("arg_reduce", g.map("abs", column), how="max", axis=1, keepdims=True)
        own = g.constant(np.arange(size, dtype=np.int64)[None])
        order = g.map("select", g.map("equal", own, chosen), 0, g.add("broadcast", own, shape=(outer, size)))
        order = g.map("select", g.map("equal", own, 0), g.add("broadcast", chosen, shape=(outer, size)), order)
        order = g.add("broadcast", reshaped(c, order, (outer, size, 1)), shape=(outer, size, size))
        left = taken_along(c, left, order, 1)
        pivot = cut(c, cut(c, left, 1, 0, 1), 2, 0, 1)
        swapped = g.map("greater", reshaped(c, chosen, (outer, 1, 1)), 0)
        factor = g.map("select", swapped, g.map("neg", pivot), pivot)
        result = g.map("mul", result, factor) if result else factor
        if size > 1:
            safe = g.map("select", g.map("equal", pivot, 0.0), 1.0, pivot)
            below = g.map("div", cut(c, cut(c, left, 1, 1, size), 2, 0, 1), safe)
            row = cut(c, cut(c, left, 1, 0, 1), 2, 1, size)
            rest = cut(c, cut(c, left, 1, 1, size), 2, 1, size)
            left = g.map("sub", rest, g.map("mul", below, row))
    if not result:
        result = g.add("broadcast", g.constant(1.0, c.type().dtype), shape=(outer,))
    return reshaped(c, result, shape[:-2])


def _mel_weight_matrix(c: NodeContext) -> str:
    """Triangles over the bins of a spectrum, evenly far apart in mel."""
    bands, length, rate = (int(c.floats(index)[0]) for index in range(3))
    low, high = (2595 * np.log1p(c.floats(position)[0] / 700) / np.log(10) for position in (3, 4))
    mels = np.arange(bands + 2) * ((high - low) / (bands + 2)) + low
    bins = ((length + 1) * (700 * np.expm1(mels / 2595 * np.log(10))) // rate).astype(int)
    result = np.zeros((length // 2 + 1, bands))
    for band, (first, middle, last) in enumerate(zip(bins, bins[1:], bins[2:], strict=False)):
        if first == middle:
            result[middle, band] = 1
        else:
            result[first : middle + 1, band] = (np.arange(first, middle + 1) - first) / (middle - first)
        if last > middle:
            result[middle:last, band] = (last - np.arange(middle, last)) / (last - middle)
    return c.g.constant(result, dtype_of_onnx(c.attribute("output_datatype", 1), c.op))


def _tensor_scatter(c: NodeContext) -> str:
    """A cache with new rows from each batch's own place on; ``circular``: behind the last row comes the first."""
    g, shape, new = c.g, c.shape(), c.shape(1)
    axis, mode = c.axis(c.attribute("axis", -2)), c.attribute("mode", "linear")
    if mode not in ("linear", "circular") or axis == 0:
        raise c.bad(f"mode {mode!r} along axis {axis}; expected linear or circular, and an axis behind the batch")
    steps = reshaped(c, g.add("iota", extent=new[axis], dtype="int64"), (new[axis], *[1] * (len(new) - 1 - axis)))
    if c.has_input(2):
        steps = g.map("add", steps, reshaped(c, g.cast(c.tensor(2), "int64"), (shape[0], *[1] * (len(new) - 1))))
    if mode == "circular":
        steps = g.map("mod", steps, g.of_extents(np.array(shape[axis], object), "int64"))
    places = g.add("broadcast", steps, shape=new)
    attributes = {"axis": axis}
    result = INDEXING["ScatterElements"](replace(c, inputs=(c.tensor(0), places, c.tensor(1)), attributes=attributes))
    assert isinstance(result, str)
    return result


def _unique(c: NodeContext) -> list[str]:
    """Values, or slices of an axis, each once: sorted, or as they come first."""
    g, x = c.g, c.tensor(0)
    if "axis" in c.attributes:
        axis = c.axis(c.attributes["axis"])
        shape = c.shape()
        others = [index for index in range(len(shape)) if index != axis]
        lines = transposed(c, x, (axis, *others))
        count, wide = shape[axis], product(shape[position] for position in others)
        order, same_as_before = _sorted_rows(c, reshaped(c, lines, (count, wide)), count, wide)
    else:
        axis, count = 0, product(c.shape())
        x = reshaped(c, x, (count,))
        order = g.add("arg_sort", x, axis=0, falling=False)
        line = g.add("gather", x, order, axis=0)
        before = g.add("gather", line, _previous(c, count), axis=0)
        same_as_before = g.map("equal", line, before)
    own = g.add("iota", extent=count, dtype="int64")
    first = g.map("or", g.map("not", same_as_before), g.map("equal", own, 0))
    group = g.map("sub", g.add("scan", g.cast(first, "int64"), how="sum", axis=0), 1)  # of each place in the order
    places = places_of(replace(c, inputs=(first,), attributes={}))
    kinds = g.types[places].shape[1]
    places = reshaped(c, places, (kinds,))
    indices = g.add("gather", order, places, axis=0)
    ends = g.add("scatter", _zeros(c, kinds), group, _ones(c, count), how="add")
    inverse = g.add("scatter", _zeros(c, count), order, group, how="none")
    if not c.attribute("sorted", 1):
        turned = g.add("arg_sort", indices, axis=0, falling=False)
        rank = g.add("scatter", _zeros(c, kinds), turned, g.add("iota", extent=kinds, dtype="int64"), how="none")
        indices, ends = (g.add("gather", item, turned, axis=0) for item in (indices, ends))
        inverse = g.add("gather", rank, inverse, axis=0)
    return [g.add("gather", x, indices, axis=axis), indices, inverse, ends][: max(1, c.outputs)]


def _previous(c: NodeContext, count: Extent) -> str:
    return c.g.map("max", c.g.map("sub", c.g.add("iota", extent=count, dtype="int64"), 1), 0)


def _zeros(c: NodeContext, count: Extent) -> str:
    return c.g.add("broadcast", c.g.constant(0, "int64"), shape=(count,))


def _ones(c: NodeContext, count: Extent) -> str:
    return c.g.add("broadcast", c.g.constant(1, "int64"), shape=(count,))


def _sorted_rows(c: NodeContext, rows: str, count: Extent, wide: Extent) -> tuple[str, str]:
    """The order of rows, the first column counting most, and of each in it whether it equals the one before.

    Each is compared with all others at the first column where both differ.
    """
    g = c.g
    left, other = reshaped(c, rows, (count, 1, wide)), reshaped(c, rows, (1, count, wide))
    differ = g.map("not", g.map("equal", left, other))
    first = g.add("arg_reduce", g.cast(differ, "int64"), how="max", axis=2, keepdims=True)
    mine, theirs = (
        reshaped(c, taken_along(c, g.add("broadcast", side, shape=(count, count, wide)), first, 2), (count, count))
        for side in (left, other)
    )
    places = g.add("iota", extent=count, dtype="int64")
    sooner = g.map("less", reshaped(c, places, (1, count)), reshaped(c, places, (count, 1)))
    equal = g.map("equal", mine, theirs)
    before = g.map("or", g.map("less", theirs, mine), g.map("and", equal, sooner))
    rank = g.add("reduce", g.cast(before, "int64"), how="sum", axes=(1,), keepdims=False)
    order = g.add("scatter", _zeros(c, count), rank, places, how="none")
    behind = g.add("gather", order, _previous(c, count), axis=0)
    flat = reshaped(c, equal, (product((count, count)),))
    at = g.map("add", g.map("mul", order, g.of_extents(np.array(count, object), "int64")), behind)
    return order, g.add("gather", flat, at, axis=0)


REARRANGED: Mapping[str, Rule] = {
    "Col2Im": _col2im,
    "Det": _det,
    "MelWeightMatrix": _mel_weight_matrix,
    "TensorScatter": _tensor_scatter,
    "Unique": _unique,
}
