"""The program of a fold whose operands are used again, in tiles of two levels: Ansor's SSRSRS (OSDI 2020, section 4.1).

Outer tiles (S; threads share those around), tiles of the cache (S), terms in parts (R), blocks of registers (S), the terms
of a part (R), rows and vectors in registers (S). What an element has summed up waits in scratch memory between two parts. An
element's terms come in their order, so its bits depend on no tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from haotuner.codegen.builder import Builder, Cell, Value
from haotuner.codegen.expressions import INDEX, Apply, Expression, Fold, Load, children, dtype_of, free_variables
from haotuner.codegen.register_transpose import emit_register_transpose
from haotuner.codegen.schedule import Plan, tiled_fold
from haotuner.codegen.values import Frame, Values, maskable, offsets

SUMS = "tile of sums"  # scratch memory


@dataclass(frozen=True, slots=True)
class _Part:
    """Rows by columns of the output, where they begin, and the terms that are summed now; ``begin``: the first of them."""

    frame: Frame
    row: Value
    rows: int | Value
    column: Value
    columns: int | Value
    begin: Value
    count: Value
    last: bool


def emit_multi_level_tiling(plan: Plan, machine: Builder) -> None:
    """Say the program of a plan with tiles to a machine: of a fold, or of squares (``register_transpose.py``)."""
    if plan.turns:
        emit_register_transpose(plan, machine)
    else:
        _Tiled(plan, machine).run()


class _Tiled(Values):
    def __init__(self, plan: Plan, machine: Builder) -> None:
        super().__init__(machine)
        self.plan, self.fold = plan, tiled_fold(plan)
        schedule = plan.schedule
        blocks, vectors, self.terms = schedule.tiles
        self.lanes, self.unroll, self.height = schedule.lanes, schedule.unroll, schedule.rows
        self.tile_rows, self.tile_columns = blocks * schedule.rows, vectors * schedule.lanes * schedule.unroll
        (self.row, self.row_extent), (self.column, self.column_extent) = plan.loops[-2:]
        self.along = frozenset({self.column.name})
        self.of_row = list(_shared(self.fold.value, self.column.name))
        self.of_column = list(_shared(self.fold.value, self.row.name))

    def run(self) -> None:
        """All outer axes one by one, then tiles."""
        if self.terms:
            self.machine.scratch(SUMS, self.tile_rows * self.tile_columns, self.fold.dtype)

        self._outer(0, Frame())

    def _outer(self, index: int, frame: Frame) -> None:
        """The loops around a tile, from one on. A method, as ``_terms`` is: see ``emit``'s ``_level``."""
        if index < len(self.plan.loops) - 2:
            variable, extent = self.plan.loops[index]
            count = self.machine.size(extent)
            self.machine.loop(count, lambda i: self._outer(index + 1, frame.inner(**{variable.name: i})))
            return
        size, columns = self.machine.size, self.machine.size(self.column_extent)

        def tiles(row: Value, rows: int | Value) -> None:
            self._split(columns, self.tile_columns, lambda column, wide: self._tile(frame, row, rows, column, wide))

        self._split(size(self.row_extent), self.tile_rows, tiles)

    def _split(self, size: Value, tile: int, body: Callable[[Value, int | Value], None]) -> None:
        """Whole tiles of an axis, then one of what is left."""
        number = self._number
        whole = self._index("floordiv", size, number(tile))
        self.machine.loop(whole, lambda i: body(self._index("mul", i, number(tile)), tile))
        done = self._index("mul", whole, number(tile))
        left = self._index("sub", size, done)
        self.machine.loop(self._index("min", left, number(1)), lambda _: body(done, left))

    def _tile(self, frame: Frame, row: Value, rows: int | Value, column: Value, columns: int | Value) -> None:
        """One tile of the cache: all terms at once, or part by part with the sums so far in scratch memory."""
        number, size = self._number, self.machine.size(self.fold.axes[0][1])
        part = _Part(frame, row, rows, column, columns, number(0), size, last=True)
        if not self.terms:
            self._blocks(part, self._sum)
            return
        before = self._index("max", self._index("sub", size, number(1)), number(0))
        steps = self._index("floordiv", before, number(self.terms))  # the last part has what is left, at least one term
        self._blocks(part, self._started)

        def step(i: Value) -> None:
            begin = self._index("mul", i, number(self.terms))
            self._blocks(replace(part, begin=begin, count=number(self.terms), last=False), self._sum)

        self.machine.loop(steps, step)
        begin = self._index("mul", steps, number(self.terms))
        self._blocks(replace(part, begin=begin, count=self._index("sub", size, begin)), self._sum)

    def _blocks(self, part: _Part, body: Callable[[_Part, Value, int, Sequence[Value], int, Value], None]) -> None:
        """Blocks of registers that cover a part: ``body(part, first row, rows, first columns, lanes, mask)``."""
        number, wide = self._number, self.lanes * self.unroll
        steps = [number(offset) for offset in offsets(self.unroll, self.lanes, 1)]

        def columns(i: Value, height: int) -> None:
            def whole(step: Value) -> None:
                base = self._index("mul", step, number(wide))
                body(part, i, height, [self._index("add", base, step) for step in steps], self.lanes, None)

            if isinstance(part.columns, int):
                self.machine.loop(number(part.columns // wide), whole)
                return
            count = self._index("floordiv", part.columns, number(wide))
            self.machine.loop(count, whole)
            done = self._index("mul", count, number(wide))
            masked = self.lanes > 1 and self.plan.schedule.masked and self._can_mask
            width = self.lanes if masked else 1
            left = self._index("add", self._index("sub", part.columns, done), number(width - 1))

            def rest(step: Value) -> None:
                base = self._index("add", done, self._index("mul", step, number(width)))
                mask = self.machine.mask(base, part.columns, width) if masked else None
                body(part, i, height, [base], width, mask)

            self.machine.loop(self._index("floordiv", left, number(width)), rest)

        if isinstance(part.rows, int):
            self.machine.loop(
                number(part.rows // self.height),
                lambda step: columns(self._index("mul", step, number(self.height)), self.height),
            )
            return
        count = self._index("floordiv", part.rows, number(self.height))
        self.machine.loop(count, lambda step: columns(self._index("mul", step, number(self.height)), self.height))
        done = self._index("mul", count, number(self.height))
        if self.height > 1:
            self.machine.loop(self._index("sub", part.rows, done), lambda i: columns(self._index("add", done, i), 1))

    @property
    def _can_mask(self) -> bool:
        """True if masked instructions can leave lanes out: of the fold's terms and of what is made of its result."""
        along = self.along
        return maskable(self.fold.value, (), along) and maskable(self.plan.value, self.plan.indices, along)

    def _started(self, part: _Part, i: Value, height: int, columns: Sequence[Value], width: int, mask: Value) -> None:
        """A block's sums of nothing."""
        neutral = self.machine.neutral(self.fold.how, self.fold.dtype)
        for row in range(height):
            for column in columns:
                self._put(self._sum_index(i, row, column), neutral, width)

    def _sum(self, part: _Part, i: Value, height: int, columns: Sequence[Value], width: int, mask: Value) -> None:
        """A block's terms of this part; with the last of them its elements of the output."""
        machine, fold = self.machine, self.fold
        rows = [self._index("add", self._index("add", part.row, i), self._number(row)) for row in range(height)]
        places = [self._index("add", part.column, column) for column in columns]
        lanes = {"lanes": width, "along": self.along if width > 1 else frozenset(), "mask": mask}
        frames = [[replace(part.frame.inner(**{self.row.name: row, self.column.name: column}), **lanes) for column in places]
                  for row in rows]  # fmt: skip
        cells = []
        for row in range(height):
            before = [self._near(self._sum_index(i, row, column), width) if self.terms
                      else machine.neutral(fold.how, fold.dtype) for column in columns]  # fmt: skip
            cells.append([machine.cell(fold.dtype, width, item) for item in before])

        self._terms(part, frames, cells, 0, {})
        for row, (own, accumulators) in enumerate(zip(frames, cells, strict=True)):
            for frame, cell, column in zip(own, accumulators, columns, strict=True):
                if part.last:
                    self._store(frame, cell)
                else:
                    self._put(self._sum_index(i, row, column), cell.get(), width)

    def _terms(
        self,
        part: _Part,
        frames: Sequence[Sequence[Frame]],
        cells: Sequence[Sequence[Cell]],
        index: int,
        at: dict[str, Value],
    ) -> None:
        """All terms of a block's sums, over the fold's axes from one on; ``at``: where the others are."""
        axes = self.fold.axes
        if index < len(axes):
            variable, extent = axes[index]
            begin, count = (part.begin, part.count) if index == 0 else (None, self.machine.size(extent))
            self.machine.loop(count, lambda k: self._terms(part, frames, cells, index + 1, {
                **at, variable.name: k if begin is None else self._index("add", begin, k)}))  # fmt: skip
            return
        inner = [[frame.inner(**at) for frame in own] for own in frames]
        by_row = [self._ahead(self.of_row, replace(own[0], lanes=1, along=frozenset(), mask=None)) for own in inner]
        by_column = [self._ahead(self.of_column, frame) for frame in inner[0]]
        for own, known, accumulators in zip(inner, by_row, cells, strict=True):
            for frame, more, cell in zip(own, by_column, accumulators, strict=True):
                frame.known.update({**known, **more})
                cell.set(self._joined(cell, frame))

    def _ahead(self, shared: Sequence[Expression], frame: Frame) -> dict[int, Value]:
        """Values that all blocks of a row or of a column share, computed once a term."""
        width = frame.lanes
        result = {}
        for e in shared:
            lanes = width if free_variables(e) & frame.along else 1
            result[id(e)] = self.machine.cell(dtype_of(e), lanes, self.evaluate(e, frame)).get()
        return result

    def _joined(self, cell: Cell, frame: Frame) -> Value:
        fold, value = self.fold, self.fold.value
        if fold.how == "sum" and fold.dtype == "fp32" and isinstance(value, Apply) and value.function == "mul":
            first, other = (self.evaluate(argument, frame) for argument in value.arguments)
            return self.machine.fma(first, other, cell.get(), fold.dtype, frame.lanes)
        return self.machine.join(fold.how, cell.get(), self.evaluate(value, frame), fold.dtype, frame.lanes)

    def _store(self, frame: Frame, cell: Cell) -> None:
        frame.folds[self.fold] = cell.get()
        value = self.evaluate(self.plan.value, frame)
        indices = [self.scalar(index, frame) for index in self.plan.indices]
        steps = [int(index == self.column and frame.lanes > 1) for index in self.plan.indices]
        self.machine.store(self.plan.output, indices, steps, value, frame.lanes, frame.mask)

    def _sum_index(self, i: Value, row: int, column: Value) -> Value:
        """Index of a block's sums in scratch memory."""
        line = self._index("mul", self._index("add", i, self._number(row)), self._number(self.tile_columns))
        return self._index("add", line, column)

    def _near(self, index: Value, lanes: int) -> Value:
        return self.machine.load(SUMS, [index], [1], lanes, None)

    def _put(self, index: Value, value: Value, lanes: int) -> None:
        self.machine.store(SUMS, [index], [1], value, lanes, None)

    def _number(self, value: int) -> Value:
        return self.machine.number(value, INDEX)

    def _index(self, function: str, value: Value, other: Value) -> Value:
        return self.machine.apply(function, [value, other], INDEX, 1)


def _shared(e: Expression, without: str) -> Iterator[Expression]:
    """The largest parts of a term that do not change with one variable: loads, and what is computed of them."""
    if without not in free_variables(e):
        if isinstance(e, Load) or (isinstance(e, Apply) and dtype_of(e) not in (INDEX, "bool")):
            yield e
        return
    for child in () if isinstance(e, (Fold, Load)) else children(e):
        yield from _shared(child, without)
