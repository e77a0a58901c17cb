"""Online softmax of few rows: the first product with its depth along the lanes, exponentials with keys along them."""

from __future__ import annotations

from dataclasses import replace

from haotuner.codegen.builder import Cell, Value
from haotuner.codegen.expressions import Expression
from haotuner.codegen.online_softmax_schedule import padded
from haotuner.codegen.online_softmax_tiles import FP32, SCALES, SCORES, Tiles
from haotuner.codegen.values import Frame


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
