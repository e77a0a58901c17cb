"""Online softmax with rows along the lanes: maxima and sums need no joining of lanes, and only rows are transposed."""

from __future__ import annotations

from dataclasses import replace

from haotuner.codegen.builder import Builder, Cell, Value
from haotuner.codegen.expressions import INDEX, Expression, Load, Variable, free_variables
from haotuner.codegen.online_softmax_tiles import FP32, SCALES, SCORES, Tiles
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

    def _made(self, e: Expression, frame: Frame) -> Value:
        if isinstance(e, Variable) and e.name == self.name:
            return frame.variables[self.name]
        if isinstance(e, Load) and self.name in free_variables(e):
            return self.machine.load(e.tensor, [self.evaluate(index, frame) for index in e.indices], None, frame.lanes, None)
        return super()._made(e, frame)
