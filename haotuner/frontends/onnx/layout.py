"""Rules of operators that say where elements lie: reshape, slice, concat and what is made of them; shapes as numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.types import dtype_of_onnx
from haotuner.graph.extents import (
    Extent,
    canonical,
    ceiling_division,
    floor_division,
    is_zero,
    largest,
    product,
    quotient,
    same,
    shown,
    smallest,
)
from haotuner.graph.typed_extents import never_negative
from haotuner.graph.types import broadcast


def _reshape(c: NodeContext) -> str:
    before = c.shape()
    zero_is_kept = not c.attribute("allowzero", 0)
    if c.has_input(1) and c.tensor(1) in c.g.inputs:
        return reshaped(c, c.tensor(0), c.g.whole_numbers(_fed_shape(c, zero_is_kept=zero_is_kept), f"{c.op}: input 1"))
    requested = c.numbers(1) if c.has_input(1) else list(c.required("shape"))
    shape: list[Extent] = [before[index] if item == 0 and zero_is_kept else item for index, item in enumerate(requested)]
    left = [index for index, extent in enumerate(shape) if extent == -1]
    if len(left) > 1:
        raise c.bad(f"shape {requested} leaves more than one extent open")
    if left:
        _need_elements(c, before, shape, zero_is_kept=zero_is_kept)
        rest = product(extent for extent in shape if extent != -1)
        shape[left[0]] = 0 if rest == 0 else _quotient(before, shape, left[0])
    return reshaped(c, c.tensor(0), shape)


def _need_elements(c: NodeContext, before: Sequence[Extent], shape: Sequence[Extent], *, zero_is_kept: bool) -> None:
    """Have requests refused that put a 0 beside an open extent: it would stand for the axis before, and not for nothing."""
    for index, extent in enumerate(shape):
        own = before[index] if zero_is_kept and index < len(before) else 1
        if isinstance(extent, int) or same(extent, own) or never_negative(extent - 1):
            continue
        words = (
            f"the model reshapes a tensor to an extent of {shown(extent)} and an open one; send a request where it is not 0"
        )
        c.g.need(smallest([1, largest([extent, is_zero(own)])]), words)


def _fed_shape(c: NodeContext, *, zero_is_kept: bool) -> str:
    """A shape that comes with the request, with what its 0 and -1 stand for in their places."""
    g, before, shape = c.g, c.shape(), c.tensor(1)
    count = c.shape(1)[0]
    if zero_is_kept and isinstance(count, int):
        own = g.of_extents(_objects([*before[:count], *[0] * (count - len(before))]), "int64")
        shape = g.map("select", g.map("equal", shape, 0), own, shape)
    open_one = g.map("equal", shape, -1)
    rest = g.add("reduce", g.map("select", open_one, 1, shape), how="prod", axes=(0,), keepdims=True)
    whole = g.of_extents(_objects([product(before)]), "int64")
    return g.map("select", open_one, g.map("floordiv", whole, g.map("max", rest, 1)), shape)


def _quotient(before: Sequence[Extent], after: Sequence[Extent], left: int) -> Extent:
    """The open extent: what both sides have in common is left out first, so that no division of a dimension stays."""
    mine, theirs = list(before), [item for index, item in enumerate(after) if index != left]
    for their in list(theirs):
        result = next((index for index, other in enumerate(mine) if same(their, other)), None)
        if result is not None:
            del mine[result]
            theirs.remove(their)
    return floor_division(product(mine), product(theirs))


def reshaped(c: NodeContext, x: str, shape: Sequence[Extent]) -> str:
    """The tensor in another shape; itself where the shape is its own."""
    own = c.g.types[x].shape
    if len(own) == len(shape) and all(same(extent, other) for extent, other in zip(own, shape, strict=True)):
        return x
    return c.g.add("reshape", x, shape=tuple(shape))


def _flatten(c: NodeContext) -> str:
    axis = c.attribute("axis", 1)
    axis = axis + c.type().rank if axis < 0 else axis
    return reshaped(c, c.tensor(0), (product(c.shape()[:axis]), product(c.shape()[axis:])))


def transposed(c: NodeContext, x: str, order: Sequence[int]) -> str:
    """Axes in another order; the tensor itself where it is the same."""
    return x if list(order) == list(range(len(order))) else c.g.add("transpose", x, order=tuple(order))


def cut(c: NodeContext, x: str, axis: int, start: Extent, stop: Extent) -> str:
    """Slice from ``start`` up to ``stop`` along one axis."""
    return c.g.add("slice", x, axes=(axis,), starts=(start,), stops=(stop,), steps=(1,))


def _transpose(c: NodeContext) -> str:
    return transposed(c, c.tensor(0), c.attribute("perm", list(reversed(range(c.type().rank)))))


def _squeeze(c: NodeContext) -> str:
    axes = c.settings("axes", 1)
    chosen = {c.axis(axis) for axis in axes} if axes is not None else {index for index, e in enumerate(c.shape()) if e == 1}
    return reshaped(c, c.tensor(0), [extent for index, extent in enumerate(c.shape()) if index not in chosen])


def _unsqueeze(c: NodeContext) -> str:
    axes = c.settings("axes", 1) or []
    chosen = {c.axis(axis, len(axes)) for axis in axes}
    old = iter(c.shape())
    return reshaped(c, c.tensor(0), [1 if index in chosen else next(old) for index in range(c.type().rank + len(axes))])


def joined(c: NodeContext, parts: Sequence[str], axis: int) -> str:
    """Tensors behind one another; what rounds them to bytes later rounds the parts (``quantised.py``)."""
    if len(parts) == 1:
        return parts[0]
    result = c.g.add("concat", *parts, axis=axis)
    c.g.joined[result] = tuple(parts), axis
    return result


def _concat(c: NodeContext) -> str:
    parts = [operand for operand in c.inputs if operand is not None]
    axis = c.axis(c.required("axis"))
    return joined(c, parts, axis)


def _split(c: NodeContext) -> list[str]:
    axis = c.axis(c.attribute("axis", 0))
    extent = c.shape()[axis]
    if c.has_input(1) or "split" in c.attributes:
        sizes: Sequence[Extent] = c.numbers(1) if c.has_input(1) else c.attributes["split"]
    else:
        count = c.attribute("num_outputs", c.outputs)
        step = ceiling_division(extent, count)
        sizes = [step] * (count - 1) + [canonical(extent - step * (count - 1))]
    result, start = [], canonical(0)
    for size in sizes:
        stop = canonical(start + size)
        result.append(cut(c, c.tensor(0), axis, start, stop))
        start = stop
    return result


def inside(c: NodeContext, position: Extent, extent: Extent, low: Extent, high: Extent) -> Extent:
    """A slice's bound, counted from the end where it is negative, brought between ``low`` and ``high``."""
    if isinstance(position, int) and abs(position) >= 2**31 - 1:  # the usual way to say: to the end
        return high if position > 0 else low
    negative = position < 0
    if negative not in (True, False):
        least = position.subs(
            {symbol: symbol + 1 for symbol in position.free_symbols}
        ).expand()  # of requests that hold anything
        if least.is_nonnegative or least.is_negative:
            negative = bool(least.is_negative)
        else:
            negative = smallest([largest([canonical(-position), 0]), 1])  # 1 where it is
            return smallest([largest([canonical(position + negative * extent), low]), high])
    moved = canonical(position + extent) if negative else position
    return smallest([largest([moved, low]), high])


def _slice(c: NodeContext) -> str:
    starts: Sequence[Extent] = c.numbers(1) if c.has_input(1) else c.required("starts")
    ends: Sequence[Extent] = c.numbers(2) if c.has_input(2) else c.required("ends")
    axes = c.settings("axes", 3) or list(range(len(starts)))
    steps = c.whole(4) if c.has_input(4) else [1] * len(starts)
    first, last, selected = [], [], []
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        position = c.axis(axis)
        extent = c.shape()[position]
        if step > 0:
            begin, stop = inside(c, start, extent, 0, extent), inside(c, end, extent, 0, extent)
            stop = stop if same(begin, 0) else largest([begin, stop])
        else:
            begin = inside(c, start, extent, 0, extent - 1)
            stop = smallest([inside(c, end, extent, -1, extent - 1), begin])
        first.append(begin)
        last.append(stop)
        selected.append(position)
    whole = all(
        same(b, 0) and same(s, c.shape()[a]) and t == 1 for b, s, a, t in zip(first, last, selected, steps, strict=True)
    )
    if whole:
        return c.tensor(0)
    return c.g.add("slice", c.tensor(0), axes=tuple(selected), starts=tuple(first), stops=tuple(last), steps=tuple(steps))


def padded(c: NodeContext, x: str, before: Sequence[Extent], after: Sequence[Extent], mode: str, value: float) -> str:
    """Pads; negative ones cut."""
    cut = [(isinstance(b, int) and b < 0, isinstance(a, int) and a < 0) for b, a in zip(before, after, strict=True)]
    if any(b or a for b, a in cut):
        axes = tuple(index for index, sides in enumerate(cut) if any(sides))
        shape = c.g.types[x].shape
        for a in axes:
            _leaves_elements(c, shape[a], -sum(pad for pad, off in zip((before[a], after[a]), cut[a], strict=True) if off))
        x = c.g.add(
            "slice",
            x,
            axes=axes,
            starts=tuple(-before[a] if cut[a][0] else 0 for a in axes),
            stops=tuple(canonical(shape[a] + after[a]) if cut[a][1] else shape[a] for a in axes),
            steps=(1,) * len(axes),
        )
        before = [0 if cut[a][0] else item for a, item in enumerate(before)]
        after = [0 if cut[a][1] else item for a, item in enumerate(after)]
    if all(same(item, 0) for item in (*before, *after)):
        return x
    return c.g.add("pad", x, before=tuple(before), after=tuple(after), mode=mode, value=value)


def _leaves_elements(c: NodeContext, extent: Extent, off: int) -> None:
    """UsageError where negative pads take more elements off than an axis has; requests where they would are refused."""
    rest = canonical(extent - off)
    if isinstance(rest, int) and rest < 0:
        raise c.bad(f"negative pads take {off} elements off an axis of {extent}; correct the model's pads")
    if not isinstance(rest, int) and not never_negative(rest):
        holds = smallest([1, largest([0, canonical(rest + 1)])])
        words = f"the model's negative pads take {off} elements off an axis of {shown(extent)}; send a larger request"
        c.g.need(holds, words)


def _pad(c: NodeContext) -> str:
    pads: Sequence[Extent] = c.numbers(1) if c.has_input(1) else c.required("pads")
    rank = c.type().rank
    axes = [c.axis(axis) for axis in c.whole(3)] if c.has_input(3) else list(range(rank))
    before: list[Extent] = [0] * rank
    after: list[Extent] = [0] * rank
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[len(axes) + index]
    mode = c.attribute("mode", "constant")
    if mode == "constant" and c.has_input(2) and c.g.numbers(c.tensor(2)) is None:
        return _padded_with(c, before, after, reshaped(c, c.tensor(2), ()))
    value = c.floats(2)[0] if c.has_input(2) else c.attribute("value", 0.0)
    return padded(c, c.tensor(0), before, after, mode, value)


def _padded_with(c: NodeContext, before: Sequence[Extent], after: Sequence[Extent], value: str) -> str:
    """Pads of a number that comes with the request."""
    inside = c.g.add("broadcast", c.g.constant(1, "bool"), shape=c.shape())
    result, inner = (padded(c, x, before, after, "constant", 0.0) for x in (c.tensor(0), inside))
    return c.g.map("select", inner, result, value)


def _expand(c: NodeContext) -> str:
    own, target = list(c.shape()), list(c.numbers(1))
    for at in range(1, min(len(own), len(target)) + 1):  # from the last axis
        if 1 not in (own[-at], target[-at]) and not same(own[-at], target[-at]):
            own[-at], target[-at] = c.g.one_if_shown(own[-at]), c.g.one_if_shown(target[-at])
    shape = broadcast([own, target], c.op)
    for extent, other in zip(shape[len(shape) - len(target) :], target, strict=True):
        _equals_or_is_one(c, extent, other)
    x = c.tensor(0) if tuple(own) == tuple(c.shape()) else reshaped(c, c.tensor(0), own)
    if len(own) == len(shape) and all(same(extent, other) for extent, other in zip(own, shape, strict=True)):
        return x
    return c.g.add("broadcast", x, shape=shape)


def _equals_or_is_one(c: NodeContext, extent: Extent, target: Extent) -> None:
    """Have requests refused that expand an axis to another extent than it is taken to have.

    Numpy's rules would take the larger one where the axis has one element, which nobody knows before the request.
    """
    if same(extent, target) or target == 1:
        return
    equal, single = (is_zero(canonical(target - other)) for other in (extent, 1))
    words = f"the model expands an axis of {shown(extent)} to {shown(target)}; send a request where both are equal"
    c.g.need(largest([equal, single]), words)


def _tile(c: NodeContext) -> str:
    shape, repeats = c.shape(), c.numbers(1)
    spread = [item for extent in shape for item in (1, extent)]
    wide = [item for extent, times in zip(shape, repeats, strict=True) for item in (times, extent)]
    result = c.g.add("broadcast", reshaped(c, c.tensor(0), spread), shape=tuple(wide))
    return reshaped(c, result, [canonical(extent * times) for extent, times in zip(shape, repeats, strict=True)])


def _shape(c: NodeContext) -> str:
    rank = c.type().rank
    start, stop = (
        min(max(at + rank if at < 0 else at, 0), rank) for at in (c.attribute("start", 0), c.attribute("end", rank))
    )
    c.g.shape_reads[c.tensor(0)] = None
    return c.g.of_extents(_objects(c.shape()[start : max(start, stop)]), "int64")


def _objects(values: Sequence[Any]) -> Any:
    result = np.empty(len(values), object)
    result[:] = list(values)
    return result


def _size(c: NodeContext) -> str:
    c.g.shape_reads[c.tensor(0)] = None
    return c.g.of_extents(_objects([product(c.shape())]).reshape(()), "int64")


def _constant_of_shape(c: NodeContext) -> str:
    value = np.asarray(c.attribute("value", np.zeros(1, np.float32))).reshape(())
    return c.g.add("broadcast", c.g.constant(value), shape=tuple(c.numbers(0)))


def _range(c: NodeContext) -> str:
    kind = c.type(0).dtype
    if (step := c.g.numbers(c.tensor(2))) is not None and not np.all(step):
        raise c.bad("a step of 0; it must be another number")
    if "int" in kind:
        (start,), (stop,), (step,) = c.numbers(0), c.numbers(1), c.numbers(2)
        result = c.g.add("iota", extent=_whole_steps(start, stop, step), dtype=kind)
        result = result if step == 1 else c.g.map("mul", result, step if isinstance(step, int) else c.tensor(2))
        first = c.tensor(0)
        return result if same(start, 0) else c.g.map("add", result, first)
    values = c.g.map("mul", c.g.add("iota", extent=_steps(c), dtype=kind), c.tensor(2))
    return c.g.map("add", values, c.tensor(0))


def _steps(c: NodeContext) -> Extent:
    """Number of real numbers in a range: the difference in their own type, divided in double, as ONNX Runtime does."""
    start, stop, step = (c.tensor(index) for index in range(3))
    node = next((node for node in reversed(c.g.nodes) if node.output == stop), None)
    plain = c.g.numbers(start) is not None and c.g.numbers(step) is not None and (*c.floats(0), *c.floats(2)) == (0, 1)
    if plain and node is not None and node.primitive == "cast" and "int" in c.g.types[node.inputs[0]].dtype:
        (last,) = c.g.whole_numbers(node.inputs[0], "Range: its end")
        return largest([last, 0])
    span, each = c.g.cast(c.g.map("sub", stop, start), "fp64"), c.g.cast(step, "fp64")
    count = c.g.map("max", c.g.map("ceil", c.g.map("div", span, each)), 0)
    return c.g.whole_numbers(c.g.cast(count, "int64"), "Range: its end")[0]


def divides(step: Extent, span: Extent) -> bool:
    """True where a range of this span has a step that is a number, or a size that divides it."""
    if isinstance(step, int):
        return True
    steps = quotient(span, step)
    return steps is not None and never_negative(steps)


def _whole_steps(start: Extent, stop: Extent, step: Extent) -> Extent:
    """Number of whole numbers in a range whose step is a number, or a size that divides it."""
    if not isinstance(step, int):
        return floor_division(canonical(stop - start), step)
    span = canonical(stop - start) if step > 0 else canonical(start - stop)
    return largest([ceiling_division(span, abs(step)), 0])


def _depth_to_space(c: NodeContext) -> str:
    b, n, h, w = c.shape()
    size = c.required("blocksize")
    deep = floor_division(n, size * size)
    column_first = c.attribute("mode", "DCR") == "DCR"
    parts = (b, size, size, deep, h, w) if column_first else (b, deep, size, size, h, w)
    order = (0, 3, 4, 1, 5, 2) if column_first else (0, 1, 4, 2, 5, 3)
    result = transposed(c, reshaped(c, c.tensor(0), parts), order)
    return reshaped(c, result, (b, deep, canonical(h * size), canonical(w * size)))


def _space_to_depth(c: NodeContext) -> str:
    b, n, h, w = c.shape()
    size = c.required("blocksize")
    high, wide = floor_division(h, size), floor_division(w, size)
    order = (0, 3, 5, 1, 2, 4) if c.attribute("mode", "DCR") == "DCR" else (0, 1, 3, 5, 2, 4)
    result = transposed(c, reshaped(c, c.tensor(0), (b, n, high, size, wide, size)), order)
    return reshaped(c, result, (b, canonical(n * size * size), high, wide))


def _below(c: NodeContext, rows: Extent, columns: Extent, shift: str | int) -> str:
    """Of each place of a matrix: column - row - shift."""
    down = c.g.add("reshape", c.g.add("iota", extent=rows, dtype="int64"), shape=(rows, 1))
    return c.g.map("sub", c.g.map("sub", c.g.add("iota", extent=columns, dtype="int64"), down), shift)


def _trilu(c: NodeContext) -> str:
    shift: str | int = c.tensor(1) if c.has_input(1) else 0
    if isinstance(shift, str):
        shift = reshaped(c, shift, ())
    selected = c.g.map(
        "greater_equal" if c.attribute("upper", 1) else "less_equal", _below(c, c.shape()[-2], c.shape()[-1], shift), 0
    )
    return c.g.map("select", selected, c.tensor(0), 0)


def _eye_like(c: NodeContext) -> str:
    c.g.shape_reads[c.tensor(0)] = None
    kind = dtype_of_onnx(c.attributes["dtype"], c.op) if "dtype" in c.attributes else c.type().dtype
    return c.g.add("cast", c.g.map("equal", _below(c, c.shape()[0], c.shape()[1], c.attribute("k", 0)), 0), dtype=kind)


LAYOUT: Mapping[str, Rule] = {
    "Reshape": _reshape,
    "Flatten": _flatten,
    "Transpose": _transpose,
    "Squeeze": _squeeze,
    "Unsqueeze": _unsqueeze,
    "Concat": _concat,
    "Split": _split,
    "Slice": _slice,
    "Pad": _pad,
    "Expand": _expand,
    "Tile": _tile,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
    "DepthToSpace": _depth_to_space,
    "SpaceToDepth": _space_to_depth,
    "Trilu": _trilu,
    "EyeLike": _eye_like,
}
