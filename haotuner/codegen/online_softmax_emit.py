"""Emitters of online softmax by what runs along the lanes: rows, depth, or parts of the keys.

Online softmax with rows along the lanes: maxima and sums need no joining of lanes, and only rows are transposed.

Online softmax of few rows: the first product with its depth along the lanes, exponentials with keys along them.

Online softmax whose keys are cut: each part leaves its maximum, sum and weighted values, and a join rescales them.

Few queries against many keys (decoding) have few rows to share; blocks share the keys instead. A part is a run of tiles of
keys; what it leaves is the state that the whole program would have there (Dao et al., 2023, Flash-Decoding).
"""

from __future__ import annotations

from dataclasses import replace
from math import prod

from haotuner.codegen.builder import Builder, Cell, Value
from haotuner.codegen.expressions import INDEX, Expression, Load, Variable, free_variables
from haotuner.codegen.online_softmax_schedule import ROWS, OnlinePlan, padded
from haotuner.codegen.online_softmax_tiles import FP32, SCALES, SCORES, Part, Tiles
from haotuner.codegen.split_reduction import PARTIAL
from haotuner.codegen.values import Frame, Values

OPERAND = "rows turned"  # scratch memory


class RowLanes(Tiles):
    """Rows along the lanes: maxima and sums need no joining of lanes. Scores lie key by key."""

    def _prepare(self) -> None:
        self.machine.scratch(OPERAND, self.depth * self.schedule.tile_rows, FP32)

    def _score(self, row: Value, key: Value, rows: int) -> Value:
        return self._index("add", self._index("mul", key, rows), row)

    def _started(self, frame: Frame, base: Value, rows: int, valid: Value | None) -> list[list[Cell]]:
        machine, name, depth = self.machine, self.sums.row[0].name, self.sums.depth[0].name

        def turned(i: Value) -> None:
            row = self._index("add", base, i)

            def one(c: Value) -> None:
                value = self.evaluate(self.sums.left, frame.inner(**{name: row, depth: c}))
                self._put(OPERAND, self._index("add", self._index("mul", c, rows), i), value, 1)

            machine.loop(self._number(self.depth), one)

        machine.loop(valid if valid is not None else self._number(rows), turned)
        if valid is not None:  # lanes without a row hold zeros, whose results nobody reads

            def zeros(i: Value) -> None:
                row, zero = self._index("add", valid, i), machine.number(0, FP32)
                machine.loop(
                    self._number(self.depth),
                    lambda c: self._put(OPERAND, self._index("add", self._index("mul", c, rows), row), zero, 1),
                )

            machine.loop(self._index("sub", self._number(rows), valid), zeros)
        vectors = rows // self.lanes
        zero = machine.number(0, FP32)
        return [[machine.cell(FP32, self.lanes, start) for _ in range(vectors)] for start in (self._least(), zero)]

    def _totals(self, state: list[list[Cell]], rows: int) -> None:
        for v, total in enumerate(state[1]):
            self._put(SCALES, self._number(v * self.lanes), total.get(), self.lanes)

    def _tile(self, frame: Frame, state: list[list[Cell]], base: Value, rows: int, valid: Value | None, start: Value,
              count: Value, score: Expression) -> None:  # fmt: skip
        machine, lanes, vectors = self.machine, self.lanes, rows // self.lanes
        tops = [machine.cell(FP32, lanes, self._least()) for _ in range(vectors)]
        block = self.schedule.block * (2 if vectors < self.schedule.rows else 1)

        def scores(first: Value, size: int) -> None:
            cells = [[machine.cell(FP32, lanes, machine.number(0, FP32)) for _ in range(vectors)] for _ in range(size)]
            heres = [
                frame.inner(**{self.sums.key[0].name: self._index("add", start, self._index("add", first, j))})
                for j in range(size)
            ]

            def step(c: Value) -> None:
                line = self._index("mul", c, rows)
                left = [machine.cell(FP32, lanes, self._near(OPERAND, self._index("add", line, v * lanes), lanes)).get()
                        for v in range(vectors)]  # fmt: skip
                for own, here in zip(cells, heres, strict=True):
                    right = self.evaluate(self.sums.right, here.inner(**{self.sums.depth[0].name: c}))
                    right = machine.cell(FP32, 1, right).get()
                    for cell, item in zip(own, left, strict=True):
                        cell.set(machine.fma(right, item, cell.get(), FP32, lanes))

            machine.loop(self._number(self.depth), step)
            for j, (own, here) in enumerate(zip(cells, heres, strict=True)):
                for v, cell in enumerate(own):
                    value = self._scored(score, here, base, v, valid, cell.get())
                    position = self._score(self._number(v * lanes), self._index("add", first, j), rows)
                    self._put(SCORES, position, value, lanes)
                    tops[v].set(machine.join("max", tops[v].get(), value, FP32, lanes))

        self._blocks(count, (block, max(2, block // 3), 1), scores)
        moved = []
        for v, (most, total, top) in enumerate(zip(*state, tops, strict=True)):
            by, scale = self._advanced(most, total, top.get(), lanes)
            moved.append(by)
            self._put(SCALES, self._number(v * lanes), scale, lanes)

        def power(j: Value) -> None:
            for v, total in enumerate(state[1]):
                position = self._score(self._number(v * lanes), j, rows)
                value = self._float(
                    "exp", [self._float("sub", [self._near(SCORES, position, lanes), moved[v]], lanes)], lanes
                )
                value = machine.cell(FP32, lanes, value).get()
                self._put(SCORES, position, value, lanes)
                total.set(machine.join("sum", total.get(), value, FP32, lanes))

        machine.loop(count, power)
        self._second(frame, rows, valid, start, count)

    def _scored(
        self, score: Expression, here: Frame, base: Value, vector: int, valid: Value | None, product: Value
    ) -> Value:
        """The scores of a vector of rows and one key, from their product; lanes without a row stand in for the last one."""
        machine, lanes, name = self.machine, self.lanes, self.sums.row[0].name
        rows = machine.ramp(self._index("add", base, vector * lanes), lanes)
        if valid is not None and name in free_variables(score):
            rows = machine.apply("min", [rows, self._index("sub", machine.size(self.sums.row[1]), 1)], INDEX, lanes)
        inner = here.inner(**{name: rows})
        known: dict[int, Value] = {}
        inner = replace(inner, lanes=lanes, along=frozenset({name}), folds={self.sums.product: product}, known=known)
        return machine.cell(FP32, lanes, _Spread(machine, name).evaluate(score, inner)).get()


class _Spread(Values):
    """Values where one variable is a vector of indices as it stands."""

    def __init__(self, machine: Builder, name: str) -> None:
        super().__init__(machine)
        self.name = name

    def _lowered(self, e: Expression, frame: Frame) -> Value:
        if isinstance(e, Variable) and e.name == self.name:
            return frame.variables[self.name]
        if isinstance(e, Load) and self.name in free_variables(e):
            return self.machine.load(e.tensor, [self.evaluate(index, frame) for index in e.indices], None, frame.lanes, None)
        return super()._lowered(e, frame)


class DepthLanes(Tiles):
    """Scores lie row by row; maxima and sums of a row are single numbers."""

    def _score(self, row: Value, key: Value, rows: int) -> Value:
        return self._index("add", self._index("mul", row, self.schedule.keys), key)

    def _started(self, frame: Frame, base: Value, rows: int, valid: Value | None) -> list[list[Cell]]:
        machine = self.machine
        zero = machine.number(0, FP32)
        return [[machine.cell(FP32, 1, start) for _ in range(rows)] for start in (self._least(), zero)]

    def _totals(self, state: list[list[Cell]], rows: int) -> None:
        for row, total in enumerate(state[1]):
            self._put(SCALES, self._number(row), total.get(), 1)

    def _tile(self, frame: Frame, state: list[list[Cell]], base: Value, rows: int, valid: Value | None, start: Value,
              count: Value, score: Expression) -> None:  # fmt: skip
        here = [frame.inner(**{self.sums.row[0].name: self._index("add", base, row)}) for row in range(rows)]
        self._products(here, start, count)
        for row, (most, total) in enumerate(zip(*state, strict=True)):
            self._powers(here[row], row, most, total, start, count, score)
        self._second(frame, rows, valid, start, count)

    def _products(self, here: list[Frame], start: Value, count: Value) -> None:
        """First products of all rows with the tile's keys: vectors along the depth, whose lanes are then joined."""
        machine, lanes, depth = self.machine, self.lanes, self.sums.depth[0].name
        vectors = padded(self.depth, lanes) // lanes

        def along(frame: Frame, v: int) -> Frame:
            first = self._number(v * lanes)
            part = self.depth - v * lanes < lanes
            mask = machine.mask(first, self._number(self.depth), lanes) if part else None
            inner = frame.inner(**{depth: first})
            return replace(inner, lanes=lanes, along=frozenset({depth}), mask=mask, known={})

        def products(first: Value, size: int) -> None:
            cells = [[machine.cell(FP32, lanes, machine.number(0, FP32)) for _ in here] for _ in range(size)]
            keys = [self._index("add", start, self._index("add", first, j)) for j in range(size)]
            for v in range(vectors):
                left = [machine.cell(FP32, lanes, self.evaluate(self.sums.left, along(item, v))).get() for item in here]
                for own, key in zip(cells, keys, strict=True):
                    at = along(here[0].inner(**{self.sums.key[0].name: key}), v)
                    right = machine.cell(FP32, lanes, self.evaluate(self.sums.right, at)).get()
                    for cell, item in zip(own, left, strict=True):
                        cell.set(machine.fma(right, item, cell.get(), FP32, lanes))
            for j, own in enumerate(cells):
                for row, cell in enumerate(own):
                    value = machine.horizontal("sum", cell.get(), FP32, lanes)
                    self._put(SCORES, self._score(self._number(row), self._index("add", first, j), len(here)), value, 1)

        self._blocks(count, (self.schedule.block, 1), products)

    def _powers(self, here: Frame, row: int, most: Cell, total: Cell, start: Value, count: Value, score: Expression) -> None:
        """Scores of a row, their maximum, and exponentials: vectors of keys, those beyond the tile left out."""
        machine, lanes, key = self.machine, self.lanes, self.sums.key[0].name
        top, sums = (machine.cell(FP32, lanes, item) for item in (self._least(), machine.number(0, FP32)))
        rounds = self._fixed(self._index("floordiv", self._index("add", count, lanes - 1), lanes))

        def place(i: Value) -> tuple[Value, Value, Value]:
            first = self._index("mul", i, lanes)
            return first, self._score(self._number(row), first, 1), machine.mask(first, count, lanes)

        def scores(i: Value) -> None:
            first, at, mask = place(i)
            inner = here.inner(**{key: self._index("add", start, first)})
            folds = {self.sums.product: self._near(SCORES, at, lanes)}
            inner = replace(inner, lanes=lanes, along=frozenset({key}), mask=mask, folds=folds, known={})
            value = machine.apply("select", [mask, self.evaluate(score, inner), self._least()], FP32, lanes)
            value = machine.cell(FP32, lanes, value).get()
            self._put(SCORES, at, value, lanes)
            top.set(machine.join("max", top.get(), value, FP32, lanes))

        machine.loop(rounds, scores)
        tile = machine.cell(FP32, 1, machine.horizontal("max", top.get(), FP32, lanes)).get()
        moved, scale = self._advanced(most, total, tile, 1)
        self._put(SCALES, self._number(row), scale, 1)

        def powers(i: Value) -> None:
            _, at, mask = place(i)
            value = self._float("exp", [self._float("sub", [self._near(SCORES, at, lanes), moved], lanes)], lanes)
            value = machine.cell(
                FP32, lanes, machine.apply("select", [mask, value, machine.number(0, FP32)], FP32, lanes)
            ).get()
            self._put(SCORES, at, value, lanes)
            sums.set(machine.join("sum", sums.get(), value, FP32, lanes))

        machine.loop(rounds, powers)
        whole = machine.horizontal("sum", sums.get(), FP32, lanes)
        total.set(machine.join("sum", total.get(), whole, FP32, 1))


def record(plan: OnlinePlan) -> int:
    """Numbers that a part leaves of a row: weighted values in whole vectors, the maximum, the sum."""
    columns = plan.sums.column[1]
    assert isinstance(columns, int), "the rule asks for known extents"
    return padded(columns, plan.schedule.lanes) + 2


def emit_parts(plan: OnlinePlan, machine: Builder) -> None:
    """Say all parts and their join to a machine that knows all sizes."""
    count, item = plan.schedule.parts, machine.number(1, "int64")
    rows = prod(int(machine.size(extent)) for _, extent in (*plan.sums.outer, plan.sums.row))
    machine.scratch(PARTIAL, max(1, count * rows * record(plan)), FP32)
    whole = machine.number(count, "int64")
    for index in range(count):
        emit_part(plan, machine, Part(machine.number(index, "int64"), whole, item, machine.number(0, "int64")))
    emit_join(plan, machine, whole)


def emit_part(plan: OnlinePlan, machine: Builder, part: Part) -> None:
    """Say one part."""
    DepthLanes(plan, machine, part).run()


def emit_join(plan: OnlinePlan, machine: Builder, parts: Value) -> None:
    """Say how so many parts are joined, in their order."""
    _Join(plan, machine, Part(machine.number(0, "int64"), parts, parts, parts)).run()


class _Join(DepthLanes):
    """Rows of the output from what the parts left."""

    def run(self) -> None:
        """All rows, one by one."""
        self._outer(0, Frame())

    def _outer(self, index: int, frame: Frame) -> None:
        axes = (*self.sums.outer, self.sums.row)
        if index == len(axes):
            self._row(frame)
            return
        variable, extent = axes[index]
        self.machine.loop(self.machine.size(extent), lambda i: self._outer(index + 1, frame.inner(**{variable.name: i})))

    def _row(self, frame: Frame) -> None:
        machine, lanes = self.machine, self.lanes
        assert self.part is not None
        row = frame.variables[self.sums.row[0].name]

        def left(part: Value, column: int, width: int) -> Value:
            return self._near(PARTIAL, self._index("add", self._record(frame, row, part), column), width)

        top = machine.cell(FP32, 1, self._least())
        machine.loop(self.part.count, lambda p: top.set(machine.join("max", top.get(), left(p, self.width, 1), FP32, 1)))
        moved = machine.cell(FP32, 1, self._moved(top.get(), 1)).get()
        total = machine.cell(FP32, 1, machine.number(0, FP32))
        sums = [machine.cell(FP32, lanes, machine.number(0, FP32)) for _ in range(self.width // lanes)]

        def joined(p: Value) -> None:
            apart = self._float("sub", [left(p, self.width, 1), moved], 1)
            scale = machine.cell(FP32, 1, self._float("exp", [apart], 1)).get()
            total.set(machine.fma(left(p, self.width + 1, 1), scale, total.get(), FP32, 1))
            for v, cell in enumerate(sums):
                cell.set(machine.fma(left(p, v * lanes, lanes), scale, cell.get(), FP32, lanes))

        machine.loop(self.part.count, joined)
        whole = self._total(total.get())
        for v, cell in enumerate(sums):
            self._write(frame, row, v, whole, cell.get())


def emit_online(plan: OnlinePlan, machine: Builder) -> None:
    """Say the program of a plan to a machine."""
    if plan.schedule.parts > 1:
        emit_parts(plan, machine)
        return
    (RowLanes if plan.schedule.along == ROWS else DepthLanes)(plan, machine).run()
