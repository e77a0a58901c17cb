"""Register transpose in programs that read across the lanes: squares are loaded along their own axis, then transposed.

So every load and every store moves neighbours, and a cache line is used whole while it is near (Lam, Rothberg and Wolf,
ASPLOS 1991: tiles of both axes). Squares are taken in tiles: so many along the axis that loads follow, so many along the
output's. Behind the last whole square elements are masked; a row or a column that does not exist is read as the last one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from haotuner.codegen.builder import Builder, Value
from haotuner.codegen.expressions import INDEX, Variable
from haotuner.codegen.schedule import Plan, transposed_load_of
from haotuner.codegen.values import Frame, Values
from haotuner.graph.extents import Extent


def emit_register_transpose(plan: Plan, machine: Builder) -> None:
    """Say the program of a plan whose squares are turned to a machine."""
    _Turned(plan, machine).run()


class _Turned(Values):
    def __init__(self, plan: Plan, machine: Builder) -> None:
        super().__init__(machine)
        self.plan, self.lanes = plan, plan.schedule.lanes
        self.high, self.wide, _ = plan.schedule.tiles
        self.turn = transposed_load_of(plan.loops, plan.value, plan.indices)

    def run(self) -> None:
        """All other axes one by one, then squares."""
        outer = [loop for loop in self.plan.loops if loop not in (self.turn.row, self.turn.column)]
        self._level(outer, Frame())

    def _level(self, left: Sequence[tuple[Variable, Extent]], frame: Frame) -> None:
        """The loops that are left, and squares inside of them."""
        if not left:
            self._squares(frame)
            return
        (variable, extent), *inner = left
        self.machine.loop(self.machine.size(extent), lambda i: self._level(inner, frame.inner(**{variable.name: i})))

    def _squares(self, frame: Frame) -> None:
        """Tiles of whole squares, whole squares beside them, then what is left of columns and of rows."""
        rows, columns = self._count(self.turn.row[1], 1), self._count(self.turn.column[1], 1)
        high, wide = self._count(self.turn.row[1], self.high), self._count(self.turn.column[1], self.wide)
        high_end, wide_end = self._times(high, self.high), self._times(wide, self.wide)

        def whole(row: Value, column: Value) -> None:
            self._square(frame, self._times(row, self.lanes), self._times(column, self.lanes), whole=True)

        def partly(row: Value, column: Value) -> None:
            self._square(frame, self._times(row, self.lanes), self._times(column, self.lanes), whole=False)

        def tile(i: Value, j: Value) -> None:
            row, column = self._times(i, self.high), self._times(j, self.wide)
            ends = (self._index("add", row, self._number(self.high)), self._index("add", column, self._number(self.wide)))
            self._each((row, ends[0]), (column, ends[1]), whole, self.high, self.wide)

        zero = self._number(0)
        self._each((zero, high), (zero, wide), tile)
        if self.high > 1:
            self._each((high_end, rows), (zero, columns), whole)
        if self.wide > 1:
            self._each((zero, high_end), (wide_end, columns), whole)
        if not self._divides(self.turn.column[1]):
            self._each((zero, rows), (columns, self._ceiling(self.turn.column[1])), partly)
        if not self._divides(self.turn.row[1]):
            self._each((rows, self._ceiling(self.turn.row[1])), (zero, self._ceiling(self.turn.column[1])), partly)

    def _each(
        self,
        rows: tuple[Value, Value],
        columns: tuple[Value, Value],
        body: Callable[[Value, Value], None],
        high: int | None = None,
        wide: int | None = None,
    ) -> None:
        """Every row, and every column of it; ``high``, ``wide``: how many there are, where that is known."""
        (first, last), (left, right) = rows, columns
        count = self._index("sub", last, first) if high is None else self._number(high)
        across = self._index("sub", right, left) if wide is None else self._number(wide)

        def line(i: Value) -> None:
            row = self._index("add", first, i)
            self.machine.loop(across, lambda j: body(row, self._index("add", left, j)))

        self.machine.loop(count, line)

    def _square(self, frame: Frame, row: Value, column: Value, *, whole: bool) -> None:
        """As many rows as columns as lanes: loads along the rows' axis, stores along the columns'."""
        machine, lanes, turn = self.machine, self.lanes, self.turn
        (down, rows), (along, columns) = ((item[0].name, machine.size(item[1])) for item in (turn.row, turn.column))
        mask = None if whole else machine.mask(row, rows, lanes)
        across = [self._place(column, at, columns, whole) for at in range(lanes)]
        turned: dict[int, Sequence[Value]] = {}
        for load in turn.loads:
            own = [
                replace(frame.inner(**{down: row, along: item}), lanes=lanes, along=frozenset({down}), mask=mask)
                for item in across
            ]
            vectors = [machine.cell(load.dtype, lanes, self.evaluate(load, item)).get() for item in own]
            turned[id(load)] = machine.transposed(vectors, load.dtype)
        for at in range(lanes):
            here = frame.inner(**{down: self._place(row, at, rows, whole), along: column})
            masked = None if whole else self._mask(row, at, rows, column, columns)
            here = replace(here, lanes=lanes, along=frozenset({along}), mask=masked)
            here.known.update({load: vectors[at] for load, vectors in turned.items()})
            value = self.evaluate(self.plan.value, here)
            indices = [self.scalar(index, here) for index in self.plan.indices]
            steps = [int(index == turn.column[0]) for index in self.plan.indices]
            machine.store(self.plan.output, indices, steps, value, lanes, masked)

    def _place(self, first: Value, at: int, size: Value, whole: bool) -> Value:
        """A row or a column of a square; the last there is, where it may not exist."""
        position = self._index("add", first, self._number(at))
        return position if whole else self._index("min", position, self._index("sub", size, self._number(1)))

    def _mask(self, row: Value, at: int, rows: Value, column: Value, columns: Value) -> Value:
        """The columns that exist; none in a row that does not."""
        left = self._index("sub", rows, self._index("add", row, self._number(at)))
        there = self._index("max", self._index("min", left, self._number(1)), self._number(0))
        return self.machine.mask(column, self._index("mul", columns, there), self.lanes)

    def _count(self, extent: Extent, squares: int) -> Value:
        """Number of whole tiles of so many squares that an axis has."""
        return self._index("floordiv", self.machine.size(extent), self._number(self.lanes * squares))

    def _ceiling(self, extent: Extent) -> Value:
        """Number of squares of an axis, with the last one that is not whole."""
        more = self._index("add", self.machine.size(extent), self._number(self.lanes - 1))
        return self._index("floordiv", more, self._number(self.lanes))

    def _divides(self, extent: Extent) -> bool:
        return isinstance(extent, int) and extent % self.lanes == 0

    def _times(self, value: Value, factor: int) -> Value:
        return self._index("mul", value, self._number(factor))

    def _number(self, value: int) -> Value:
        return self.machine.number(value, INDEX)

    def _index(self, function: str, value: Value, other: Value) -> Value:
        return self.machine.apply(function, [value, other], INDEX, 1)
