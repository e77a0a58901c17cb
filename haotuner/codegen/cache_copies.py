"""Program of copies: fills the boxes of ``cache_read.py`` and reads elements of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from haotuner.codegen.builder import Builder, Value
from haotuner.codegen.cache_read import CacheRead
from haotuner.codegen.expressions import INDEX, Expression, Load
from haotuner.codegen.values import Frame, Values, maskable


class Copies(Values):
    """Evaluation of a tiled fold's terms, whose operands may be copies."""

    def __init__(self, machine: Builder, reads: Mapping[str, tuple[CacheRead, int]], lanes: int) -> None:
        super().__init__(machine)
        self._reads, self._width = reads, lanes
        self._start: dict[str, Value] = {}  # of the tile, along the axis that a copy follows

    def allocate(self) -> None:
        """Memory of every copy."""
        for name, (read, tile) in self._reads.items():
            self.machine.scratch(name, read.floats(tile), "fp32")

    def fill(self, read: CacheRead, frame: Frame, start: Value, extent: int | Value, *, clear: bool) -> None:
        """Copy the elements that a tile reads: from ``start`` on, so many points of the axis that the copy follows.

        ``clear``: whether vectors read beyond them, where memory holds anything: sums of subnormals are slow.
        """
        _, tile = self._reads[read.name]
        self._start[read.name] = start
        if clear:
            self._clear(read)
        first = {variable.name: self._number(0) for variable, _ in read.terms} | {read.tile_variable.name: start}
        corner = [self.evaluate(index, Frame({**frame.variables, **first})) for index in read.indices]
        fixed = read.spans(1)
        spans = [span if not slopes[-1] else self._span(span, slopes[-1], extent)
                 for span, slopes in zip(fixed, read.slopes, strict=True)]  # fmt: skip
        self._fill(read, corner, spans, read.strides(tile), 0, {}, self._number(0))

    def _clear(self, read: CacheRead) -> None:
        """Zeros in all elements of a copy."""
        vectors, rest = divmod(read.floats(self._reads[read.name][1]), self._width)
        zero, number = self.machine.number(0, "fp32"), self._number

        def put(position: Value, lanes: int) -> None:
            self.machine.store(read.name, [position], [1], zero, lanes, None)

        self.machine.loop(number(vectors), lambda i: put(self._index("mul", i, number(self._width)), self._width))
        if rest:
            self.machine.loop(number(rest), lambda i: put(self._index("add", number(vectors * self._width), i), 1))

    def _span(self, least: int, slope: int, extent: int | Value) -> int | Value:
        if isinstance(extent, int):
            return least + slope * (extent - 1)
        return self._index("add", self._index("mul", extent, self._number(slope)), self._number(least - slope))

    def _fill(
        self, read: CacheRead, corner: list[Value], spans: list[Any], strides: tuple[int, ...], level: int,
        at: dict[str, Value], offset: Value,
    ) -> None:  # fmt: skip
        """The loops over a box from ``level`` on: the last goes by vectors."""
        axis, machine = read.order[level], self.machine
        variable, span = read.variables[axis], spans[axis]
        size = self._number(span) if isinstance(span, int) else span
        if level < len(read.order) - 1:

            def body(i: Value) -> None:
                inner = {**at, variable.name: self._index("add", corner[axis], i)}
                inner_offset = self._index("add", offset, self._index("mul", i, self._number(strides[axis])))
                self._fill(read, corner, spans, strides, level + 1, inner, inner_offset)

            if span == 1:
                body(self._number(0))
            else:
                machine.loop(size, body)
            return
        along, wide = frozenset({variable.name}), self._width
        vectors = self._index("floordiv", size, self._number(wide))
        masked = wide > 1 and maskable(read.value, (), along, padded=machine.predicates)

        def vector(base: Value, lanes: int, mask: Value) -> None:
            start = self._index("add", corner[axis], base)
            frame = Frame({**at, variable.name: start}, lanes=lanes, along=along if lanes > 1 else frozenset(), mask=mask)
            value = self.evaluate(read.value, frame)
            machine.store(read.name, [self._index("add", offset, base)], [1], value, lanes, mask)

        machine.loop(vectors, lambda step: vector(self._index("mul", step, self._number(wide)), wide, None))
        if isinstance(span, int) and span % wide == 0:
            return
        first_left = self._index("mul", vectors, self._number(wide))
        tail = self._index("sub", size, first_left)
        if masked:
            count = self._index("min", tail, self._number(1))
            machine.loop(count, lambda _: vector(first_left, wide, machine.mask(first_left, size, wide)))
        else:
            machine.loop(tail, lambda i: vector(self._index("add", first_left, i), 1, None))

    def _lowered(self, e: Expression, frame: Frame) -> Value:
        if not isinstance(e, Load) or e.tensor not in self._reads:
            return super()._lowered(e, frame)
        read, tile = self._reads[e.tensor]
        *terms, tile_step = read.steps(tile)
        position = self._index("sub", frame.variables[read.tile_variable.name], self._start[e.tensor])
        position = self._index("mul", position, self._number(tile_step))
        for (variable, _), step in zip(read.terms, terms, strict=True):
            part = self._index("mul", frame.variables[variable.name], self._number(step))
            position = self._index("add", position, part)
        wide = read.tile_variable.name in frame.along
        return self.machine.load(e.tensor, [position], [tile_step if wide else 0], frame.lanes, None)

    def _number(self, value: int) -> Value:
        return self.machine.number(value, INDEX)

    def _index(self, function: str, value: Value, other: Value) -> Value:
        return self.machine.apply(function, [value, other], INDEX, 1)
