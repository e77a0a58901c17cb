"""Emitter of online softmax to a machine: tiles of rows by tiles of keys, nothing of rows x keys in memory.

For each tile of rows, for each tile of keys: scores of the tile, the maximum so far, exponentials and their sum, then the
second product, which takes the sums so far times exp(old maximum - new). A maximum of -inf is taken as 0 there, so that rows
which have seen nothing yet stay at 0; where they never see anything the division gives NaN, as the graph does.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import cast

from haotuner.codegen.builder import Builder, Cell, Value
from haotuner.codegen.expressions import INDEX, Expression
from haotuner.codegen.online_softmax_schedule import ROWS, OnlinePlan, padded
from haotuner.codegen.split_reduction import PARTIAL
from haotuner.codegen.values import Frame, Values

SCORES, SUMS, SCALES = "tile of scores", "sums of rows", "scales of rows"  # scratch memory
FP32 = "fp32"


@dataclass(frozen=True, slots=True)
class Part:
    """Part of the keys' tiles, of how many; whether (1 or 0) its state goes to memory, whether rows are written."""

    index: Value
    count: Value
    leaves: Value
    writes: Value


class Tiles(Values, ABC):
    """Base of programs, whatever runs along the lanes. A tile's scores lie at ``_score(row, key)`` of scratch memory."""

    def __init__(self, plan: OnlinePlan, machine: Builder, part: Part | None = None) -> None:
        super().__init__(machine)
        self.part = part
        self.plan, self.sums, self.schedule = plan, plan.sums, plan.schedule
        self.lanes = plan.schedule.lanes
        self.depth, self.columns = cast(int, plan.sums.depth[1]), cast(int, plan.sums.column[1])
        self.width = padded(self.columns, self.lanes)

    # Numbers of the program

    def _number(self, value: int) -> Value:
        return self.machine.number(value, INDEX)

    def _index(self, function: str, value: Value, other: Value | int) -> Value:
        return self.machine.apply(function, [value, self._number(other) if isinstance(other, int) else other], INDEX, 1)

    def _float(self, function: str, arguments: Sequence[Value], lanes: int) -> Value:
        return self.machine.apply(function, arguments, FP32, lanes)

    def _fixed(self, value: Value) -> Value:
        """An index in a variable, so that it is computed once."""
        return self.machine.cell(INDEX, 1, value).get()

    def _near(self, tensor: str, index: Value, lanes: int) -> Value:
        return self.machine.load(tensor, [index], [1], lanes, None)

    def _put(self, tensor: str, index: Value, value: Value, lanes: int) -> None:
        self.machine.store(tensor, [index], [1], value, lanes, None)

    def _least(self) -> Value:
        return self.machine.neutral("max", FP32)

    def _blocks(self, count: Value, sizes: Sequence[int], body: Callable[[Value, int], None]) -> None:
        """Cover so many points by blocks, the largest first; the last size is 1."""
        done: Value = self._number(0)
        for size in dict.fromkeys(sizes):
            left = self._index("sub", count, done)
            rounds = self._fixed(self._index("floordiv", left, size))
            start = done

            def block(i: Value, size: int = size, start: Value = start) -> None:
                body(self._index("add", start, self._index("mul", i, size)), size)

            self.machine.loop(rounds, block)
            done = self._fixed(self._index("add", start, self._index("mul", rounds, size)))

    # The loops

    def run(self) -> None:
        """Say the whole program."""
        s = self.schedule
        self.machine.scratch(SCORES, s.tile_rows * s.keys, FP32)
        self.machine.scratch(SUMS, s.tile_rows * self.width, FP32)
        self.machine.scratch(SCALES, s.tile_rows, FP32)
        self._prepare()
        self._outer(0, Frame())

    def _prepare(self) -> None:
        """Scratch memory of one's own."""

    def _outer(self, index: int, frame: Frame) -> None:
        if index < len(self.sums.outer):
            variable, extent = self.sums.outer[index]
            self.machine.loop(self.machine.size(extent), lambda i: self._outer(index + 1, frame.inner(**{variable.name: i})))
            return
        count = self.machine.size(self.sums.row[1])
        wide, narrow = self.schedule.tile_rows, self.lanes if self.schedule.along == ROWS else 1
        whole = self._fixed(self._index("floordiv", count, wide))
        self.machine.loop(whole, lambda i: self._rows(frame, self._index("mul", i, wide), wide, None))
        if wide == 1:
            return
        done = self._fixed(self._index("mul", whole, wide))
        left = self._index("sub", count, done)
        rounds = self._index("floordiv", self._index("add", left, narrow - 1), narrow)

        def rest(i: Value) -> None:
            base = self._fixed(self._index("add", done, self._index("mul", i, narrow)))
            valid = self._fixed(self._index("min", self._index("sub", count, base), narrow))
            self._rows(frame, base, narrow, valid if narrow > 1 else None)

        self.machine.loop(rounds, rest)

    def _rows(self, frame: Frame, base: Value, rows: int, valid: Value | None) -> None:
        """A tile of ``rows`` rows from ``base`` on, of which ``valid`` exist (None: all)."""
        state = self._started(frame, base, rows, valid)
        zero = self.machine.number(0, FP32)
        self.machine.loop(
            self._number(rows * self.width // self.lanes),
            lambda i: self._put(SUMS, self._index("mul", i, self.lanes), zero, self.lanes),
        )
        keys, size = self.schedule.keys, self.machine.size(self.sums.key[1])
        stop, full = size, size
        if self.sums.last is not None:
            count = valid if valid is not None else self._number(rows)
            final = self._index("add", base, self._index("sub", count, 1))
            stop, full = (self._seen(frame, row, size) for row in (final, base))

        def tile(score: Expression) -> Callable[[Value], None]:
            def body(i: Value) -> None:
                start = self._fixed(self._index("mul", i, keys))
                count = self._fixed(self._index("min", self._index("sub", stop, start), keys))
                self._tile(frame, state, base, rows, valid, start, count, score)

            return body

        tiles = self._index("floordiv", self._index("add", stop, keys - 1), keys)
        if self.sums.last is None:
            self._tiles(self._number(0), tiles, tiles, tile(self.sums.score))
        else:
            plain, tiles = (self._fixed(item) for item in (self._index("floordiv", full, keys), tiles))
            self._tiles(self._number(0), plain, tiles, tile(self.sums.seen))
            self._tiles(plain, tiles, tiles, tile(self.sums.score))
        if self.part is None:
            self._finish(frame, state, base, rows, valid)
            return
        self.machine.loop(self.part.leaves, lambda _: self._leave(frame, state, base, rows))
        self.machine.loop(self.part.writes, lambda _: self._finish(frame, state, base, rows, valid))

    def _tiles(self, first: Value, end: Value, tiles: Value, body: Callable[[Value], None]) -> None:
        """Tiles of keys from ``first`` to ``end``, those of them that are the part's."""
        if self.part is not None:
            own = [self._fixed(self._index("floordiv", self._index("mul", tiles, at), self.part.count))
                   for at in (self.part.index, self._index("add", self.part.index, 1))]  # fmt: skip
            first = self._fixed(self._index("max", first, own[0]))
            end = self._fixed(self._index("max", self._index("min", end, own[1]), first))
        self.machine.loop(self._index("sub", end, first), lambda i: body(self._index("add", first, i)))

    def _record(self, frame: Frame, row: Value, part: Value) -> Value:
        """Index at which what a part leaves of a row begins."""
        size = self.machine.size
        line = part
        for variable, extent in self.sums.outer:
            line = self._index("add", self._index("mul", line, size(extent)), frame.variables[variable.name])
        line = self._index("add", self._index("mul", line, size(self.sums.row[1])), row)
        return self._index("mul", line, self.width + 2)

    def _leave(self, frame: Frame, state: list[list[Cell]], base: Value, rows: int) -> None:
        """Write a part's state of each row to memory."""
        assert self.part is not None
        for row, (most, total) in enumerate(zip(*state, strict=True)):
            position = self._fixed(self._record(frame, self._index("add", base, row), self.part.index))
            for first in range(0, self.width, self.lanes):
                values = self._near(SUMS, self._number(row * self.width + first), self.lanes)
                self._put(PARTIAL, self._index("add", position, first), values, self.lanes)
            self._put(PARTIAL, self._index("add", position, self.width), most.get(), 1)
            self._put(PARTIAL, self._index("add", position, self.width + 1), total.get(), 1)

    def _seen(self, frame: Frame, row: Value, size: Value) -> Value:
        """Number of keys that a row sees."""
        assert self.sums.last is not None
        last = self.scalar(self.sums.last, frame.inner(**{self.sums.row[0].name: row}))
        return self._fixed(self._index("max", self._index("min", self._index("add", last, 1), size), 0))

    # What depends on what runs along the lanes

    @abstractmethod
    def _started(self, frame: Frame, base: Value, rows: int, valid: Value | None) -> list[list[Cell]]:
        """Cells of the maxima and of the sums so far."""

    @abstractmethod
    def _tile(self, frame: Frame, state: list[list[Cell]], base: Value, rows: int, valid: Value | None, start: Value,
              count: Value, score: Expression) -> None:  # fmt: skip
        """Take a tile of keys into the state."""

    @abstractmethod
    def _totals(self, state: list[list[Cell]], rows: int) -> None:
        """Write the rows' totals to ``SCALES``."""

    @abstractmethod
    def _score(self, row: Value, key: Value, rows: int) -> Value:
        """Index of a score in ``SCORES``."""

    # The second product and the end

    def _second(self, frame: Frame, rows: int, valid: Value | None, start: Value, count: Value) -> None:
        """Sums of a tile's rows: times their scale, plus exponentials times weights."""
        machine, own = self.machine, min(self.schedule.out_rows, rows)
        own = own if rows % own == 0 else 1
        vectors = self.width // self.lanes
        most = max(1, self._accumulators() // own)
        groups = self._number(rows // own)
        if valid is not None:
            groups = self._index("floordiv", self._index("add", valid, own - 1), own)

        def group(i: Value) -> None:
            first = self._fixed(self._index("mul", i, own))
            for at in range(0, vectors, most):
                self._columns(frame, first, own, range(at, min(at + most, vectors)), rows, start, count)

        machine.loop(groups, group)

    def _accumulators(self) -> int:
        """Vectors of sums that stay in registers."""
        return 24 if self.lanes >= 16 else 12

    def _columns(self, frame: Frame, first: Value, own: int, vectors: range, rows: int, start: Value,
                 count: Value) -> None:  # fmt: skip
        machine, lanes = self.machine, self.lanes
        cells: list[list[Cell]] = []
        for row in range(own):
            line = self._index("add", first, row)
            scale = self._near(SCALES, line, 1)
            position = self._index("mul", line, self.width)
            old = [self._near(SUMS, self._index("add", position, v * lanes), lanes) for v in vectors]
            cells.append([machine.cell(FP32, lanes, self._float("mul", [item, scale], lanes)) for item in old])

        def key(j: Value) -> None:
            at = self._index("add", start, j)
            weights = [self.evaluate(self.sums.weight, self._column_frame(frame, at, v)) for v in vectors]
            powers = [self._near(SCORES, self._score(self._index("add", first, row), j, rows), 1) for row in range(own)]
            weights = [machine.cell(FP32, lanes, weight).get() for weight in weights]
            for row, power in enumerate(powers):
                for cell, weight in zip(cells[row], weights, strict=True):
                    cell.set(machine.fma(power, weight, cell.get(), FP32, lanes))

        machine.loop(count, key)
        for row in range(own):
            position = self._index("mul", self._index("add", first, row), self.width)
            for cell, v in zip(cells[row], vectors, strict=True):
                self._put(SUMS, self._index("add", position, v * lanes), cell.get(), lanes)

    def _column_frame(self, frame: Frame, key: Value, vector: int, **more: Value) -> Frame:
        """Frame in which an expression of columns is evaluated: so many lanes of them, those that exist."""
        name, first = self.sums.column[0].name, self._number(vector * self.lanes)
        part = self.columns - vector * self.lanes < self.lanes
        mask = self.machine.mask(first, self._number(self.columns), self.lanes) if part else None
        inner = frame.inner(**{name: first, self.sums.key[0].name: key, **more})
        return replace(inner, lanes=self.lanes, along=frozenset({name}), mask=mask, known={})

    def _finish(self, frame: Frame, state: list[list[Cell]], base: Value, rows: int, valid: Value | None) -> None:
        """Write the output's rows."""
        self._totals(state, rows)

        def row(i: Value) -> None:
            total = self._total(self._near(SCALES, i, 1))
            for v in range(self.width // self.lanes):
                position = self._index("add", self._index("mul", i, self.width), v * self.lanes)
                self._write(frame, self._index("add", base, i), v, total, self._near(SUMS, position, self.lanes))

        self.machine.loop(valid if valid is not None else self._number(rows), row)

    def _total(self, total: Value) -> Value:
        """A row's sum of exponentials; 1 where there are no keys."""
        machine = self.machine
        nothing = machine.apply("equal", [machine.size(self.sums.key[1]), self._number(0)], "bool", 1)
        return machine.cell(FP32, 1, machine.apply("select", [nothing, machine.number(1, FP32), total], FP32, 1)).get()

    def _write(self, frame: Frame, row: Value, v: int, total: Value, weighted: Value) -> None:
        """A vector of a row's columns, from its sums."""
        sums = self.sums
        here = self._column_frame(frame, self._number(0), v, **{sums.row[0].name: row})
        here.folds.update({sums.total: total, sums.weighted: weighted})
        value = self.evaluate(sums.value, here)
        indices = [self.scalar(index, here) for index in sums.indices]
        steps = [int(index is sums.indices[-1]) for index in sums.indices]
        self.machine.store(self.plan.output, indices, steps, value, self.lanes, here.mask)

    def _moved(self, most: Value, lanes: int) -> Value:
        """Shift of the scores: the maximum, 0 where nothing was seen yet."""
        nothing = self.machine.apply("equal", [most, self._least()], "bool", lanes)
        return self._float("select", [nothing, self.machine.number(0, FP32), most], lanes)

    def _advanced(self, most: Cell, total: Cell, tile: Value, lanes: int) -> tuple[Value, Value]:
        """Take a tile's maximum in: what its scores are moved by, and the scale of what was summed before."""
        machine = self.machine
        new = machine.cell(FP32, lanes, machine.join("max", most.get(), tile, FP32, lanes)).get()
        moved = machine.cell(FP32, lanes, self._moved(new, lanes)).get()
        scale = machine.cell(FP32, lanes, self._float("exp", [self._float("sub", [most.get(), moved], lanes)], lanes)).get()
        most.set(new)
        total.set(self._float("mul", [total.get(), scale], lanes))
        return moved, scale
