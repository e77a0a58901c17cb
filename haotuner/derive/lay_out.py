"""Operands laid out for kernels: affine reads of a tensor as slices, pads, windows and reshapes of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.derive.affine import Affine, at_most, number, plus, substituted
from haotuner.derive.expression import Loop, Read, box_of
from haotuner.derive.kernels import Window
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, canonical, evaluate, is_symbolic, largest, product, same, text
from haotuner.graph.graph import GraphBuilder
from haotuner.graph.primitives import PRIMITIVES

MOST_SLICES = 64  # side by side, of one operand


@dataclass(slots=True)
class Folding(GraphBuilder):
    """Builder that computes a primitive at once if all its operands are constants."""

    def add(self, primitive: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """A primitive's result."""
        if all(tensor in self.constants for tensor in inputs) and primitive != "iota":
            arrays = [self.constants[tensor] for tensor in inputs]
            try:
                value = PRIMITIVES[primitive].compute(arrays, attributes, lambda extent: evaluate(extent, {}))
            except UsageError:  # its extents are of a request
                return GraphBuilder.add(self, primitive, *inputs, name=name, **attributes)
            return self.constant(np.ascontiguousarray(value), name=name)
        return GraphBuilder.add(self, primitive, *inputs, name=name, **attributes)

    def cut(self, tensor: str, axis: int, start: Extent, stop: Extent, step: int = 1) -> str:
        """Elements of an axis, with zeros where it has none."""
        extent = self.types[tensor].shape[axis]
        before = _missing(plus(0, start, -1))
        after = _missing(plus(stop, extent, -1))
        if before != 0 or after != 0:
            rank = self.types[tensor].rank
            pads = [[width if at == axis else 0 for at in range(rank)] for width in (before, after)]
            tensor = self.add("pad", tensor, before=tuple(pads[0]), after=tuple(pads[1]), mode="constant", value=0.0)
            start, stop = plus(start, before), plus(stop, before)
            extent = self.types[tensor].shape[axis]
        if start == 0 and step == 1 and same(stop, extent):
            return tensor
        return self.add("slice", tensor, axes=(axis,), starts=(start,), stops=(stop,), steps=(step,))

    def ordered(self, tensor: str, order: Sequence[int]) -> str:
        """The tensor with its axes in another order."""
        return tensor if list(order) == sorted(order) else self.add("transpose", tensor, order=tuple(order))


def _missing(width: Extent) -> Extent:
    if at_most(width, 0):
        return 0
    return width if at_most(0, width) else largest([width, 0])


def flat(g: Folding, tensor: str, counts: Sequence[int]) -> str:
    """The tensor with runs of so many axes as one axis each; of none as an axis of one element."""
    shape, extents, at = list[Extent](), g.types[tensor].shape, 0
    for count in counts:
        shape.append(product(extents[at : at + count]))
        at += count
    return tensor if tuple(shape) == extents else g.add("reshape", tensor, shape=tuple(shape))


def at_axes(g: Folding, tensor: str, present: Sequence[bool]) -> str:
    """The tensor with axes of one element where it has none."""
    if all(present):
        return tensor
    extents = iter(g.types[tensor].shape)
    return g.add("reshape", tensor, shape=tuple(next(extents) if has_axis else 1 for has_axis in present))


def gathered(g: Folding, tensor: str, read: Read, loops: Sequence[Loop]) -> str:
    """All elements that a read has for the values of its iterators, an axis for each of them.

    UsageError where an iterator of many values stands in two axes, or an index is no sum of iterators.
    """
    ranges = {loop.name: loop for loop in loops}
    for at, loop in enumerate(loops):
        if sum(loop.name in e.names for e in read.index) > 1:
            return _diagonal(g, tensor, read, loops, at)
    order: list[str] = []  # iterators of the axes that are laid out
    shift = 0  # axes that became none
    for position, (e, (low, _)) in enumerate(zip(read.index, box_of(read.source), strict=True)):
        index_iterators = [str(atom) for atom, _ in e.terms if isinstance(atom, str)]
        if len(index_iterators) != len(e.terms) or set(index_iterators) & set(order):
            raise UsageError(f"an index with {e} has no primitives")
        axis = position - shift
        start = plus(e.const, low, -1)
        if not index_iterators:
            tensor = g.cut(tensor, axis, start, plus(start, 1))
            shape = g.types[tensor].shape
            tensor = g.add("reshape", tensor, shape=(*shape[:axis], *shape[axis + 1 :]))
            shift += 1
            continue
        tensor, taps = _axis(g, tensor, axis, e, start, ranges, len(read.index) - shift)
        order.append(taps[0])
        if len(taps) > 1:
            tensor = _beside(g, tensor, axis, len(taps) - 1)
            order += taps[1:]
            shift -= len(taps) - 1
    return g.ordered(tensor, [order.index(loop.name) for loop in loops])


def _diagonal(g: Folding, tensor: str, read: Read, loops: Sequence[Loop], at: int) -> str:
    """A read of which one iterator stands in two axes: a slice for each of its values, side by side."""
    loop, rest = loops[at], [*loops[:at], *loops[at + 1 :]]
    if is_symbolic(loop.extent) or loop.extent > MOST_SLICES:
        raise UsageError(f"an axis on which two axes of an operand hang, of {text(loop.extent)} elements, has no primitives")
    parts = []
    for value in range(int(loop.low), int(loop.high)):
        index = tuple(substituted(e, {loop.name: number(value)}, {}) for e in read.index)
        part = gathered(g, tensor, Read(read.source, index), rest)
        parts.append(at_axes(g, part, [position != at for position in range(len(loops))]))
    return parts[0] if len(parts) == 1 else g.add("concat", *parts, axis=at)


def _beside(g: Folding, tensor: str, axis: int, count: int) -> str:
    """The last axes moved behind one of the axes."""
    rank = g.types[tensor].rank
    first, rest = list(range(axis + 1)), list(range(axis + 1, rank - count))
    return g.ordered(tensor, [*first, *range(rank - count, rank), *rest])


def _axis(
    g: Folding, tensor: str, axis: int, e: Affine, start: Extent, ranges: Mapping[str, Loop], rank: int
) -> tuple[str, list[str]]:
    """One axis as those of its iterators, the first where it was and the others last; with their names."""
    terms = [(str(atom), factor) for atom, factor in e.terms]
    if len(terms) == 1:
        (name, factor), loop = terms[0], ranges[terms[0][0]]
        first = plus(start, loop.low, factor)
        last = plus(start, plus(loop.high, -1), factor)
        if factor > 0:
            return g.cut(tensor, axis, first, plus(last, 1), factor), [name]
        tensor = g.cut(tensor, axis, last, plus(first, 1))
        if loop.extent == 1:
            return tensor, [name]
        end = plus(plus(first, last, -1), 0)
        return g.add("slice", tensor, axes=(axis,), starts=(end,), stops=(-1,), steps=(factor,)), [name]
    if any(factor < 0 for _, factor in terms):
        raise UsageError(f"an index with {e} has no primitives")
    terms.sort(key=lambda item: (not is_symbolic(ranges[item[0]].extent), -item[1]))
    main, taps = terms[0], terms[1:]
    if any(is_symbolic(ranges[name].extent) for name, _ in taps):
        raise UsageError(f"an index with {e}, of two ranges that are not fixed, has no primitives")
    first, span = start, 1
    for name, factor in terms:
        first = plus(first, ranges[name].low, factor)
        span = plus(span, plus(ranges[name].extent, -1), factor)
    parts_span = canonical(main[1] * ranges[main[0]].extent)
    if len(taps) == 1 and taps[0][1] == 1 and ranges[taps[0][0]].extent == main[1]:  # parts that do not overlap
        tensor = g.cut(tensor, axis, first, plus(first, parts_span))
        shape = g.types[tensor].shape
        shape = (*shape[:axis], ranges[main[0]].extent, main[1], *shape[axis + 1 :])
        tensor = g.add("reshape", tensor, shape=shape)
        return g.ordered(tensor, [at for at in range(rank + 1) if at != axis + 1] + [axis + 1]), [main[0], taps[0][0]]
    tensor = g.cut(tensor, axis, first, plus(first, span))
    for at, (name, factor) in enumerate(taps):
        stride = main[1] if at == len(taps) - 1 else 1
        tensor = g.add("window", tensor, axes=(axis,), sizes=(ranges[name].extent,), strides=(stride,), dilations=(factor,))
    return tensor, [main[0], *(name for name, _ in taps)]


def windowed_image(
    g: Folding,
    tensor: str,
    read: Read,
    windows: Sequence[Window],
    loops: Mapping[str, Loop],
    batch: Sequence[Loop],
    channels: Sequence[Loop],
) -> str:
    """An image with a batch and channels before its sides, in windows of a convolution."""
    sides = [side.axis for side in windows]
    side_loops = {side.axis: Loop(side.position, *box_of(read.source)[side.axis]) for side in windows}
    index = tuple(Affine(((side_loops[at].name, 1),)) if at in sides else e for at, e in enumerate(read.index))
    image = gathered(g, tensor, Read(read.source, index), [*batch, *channels, *(side_loops[at] for at in sides)])
    image = flat(g, image, [len(batch), len(channels), *[1] * len(sides)])
    first, rank = 2, 2 + len(sides)
    before, after = [0] * rank, [0] * rank
    for at, side in enumerate(windows):
        e, (low, high) = read.index[side.axis], box_of(read.source)[side.axis]
        spot, tap = loops[side.position], loops[side.tap]
        start = plus(plus(plus(e.const, low, -1), spot.low, side.stride), tap.low, side.dilation)
        stop = plus(plus(start, plus(spot.extent, -1), side.stride), plus(tap.extent, -1), side.dilation)
        before[first + at] = plus(0, start, -1)
        after[first + at] = plus(plus(stop, 1), plus(high, low, -1), -1)
    if any(width != 0 for width in (*before, *after)):
        if any(is_symbolic(width) for width in (*before, *after)):
            raise UsageError("a convolution whose pads are not fixed has no primitives")
        image = g.add("pad", image, before=tuple(before), after=tuple(after), mode="constant", value=0.0)
    return g.add(
        "window",
        image,
        axes=tuple(range(first, rank)),
        sizes=tuple(loops[side.tap].extent for side in windows),
        strides=tuple(side.stride for side in windows),
        dilations=tuple(side.dilation for side in windows),
    )
