"""Rules of operators that take or write elements by index. All become a gather or scatter of a flat tensor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from haotuner.frontends.onnx.layout import cut, padded, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import Extent, canonical, product


def _within(c: NodeContext, indices: str, extent: Extent) -> None:
    """UsageError where indices that are known now choose rows that a tensor of this extent has not."""
    stored = c.g.numbers(indices)
    if stored is None or stored.size == 0 or not isinstance(extent, int):
        return
    least, most = int(stored.min()), int(stored.max())
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
    if not c.given(2):
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
    count = c.numbers(1)[0] if c.given(1) else c.required("k")
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
