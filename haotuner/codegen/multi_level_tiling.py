"""The program of a fold whose operands are used again, in tiles of two levels: Ansor's SSRSRS (OSDI 2020, section 4.1).

Outer tiles (S; threads share those around), tiles of the cache (S), terms in parts (R), blocks of registers (S), the terms
of a part (R), rows and vectors in registers (S). What an element has summed up waits in scratch memory between two parts. An
element's terms come in their order, so its bits depend on no tile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from haotuner.codegen.builder import Builder, Cell, Value
from haotuner.codegen.cache_copies import Copies
from haotuner.codegen.expressions import INDEX, Apply, Expression, Fold, Load, Variable, children, dtype_of, free_variables
from haotuner.codegen.register_transpose import emit_register_transpose
from haotuner.codegen.schedule import Plan, tiled_fold
from haotuner.codegen.values import Frame, maskable, offsets
from haotuner.graph.extents import Extent

SUMS, EDGE = "tile of sums", "lanes at an end"  # scratch memory


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


@dataclass(frozen=True, slots=True)
class _Block:
    """Block of registers of a part: its first row, the number of rows, the first column and the mask of each vector.

    ``columns_left``: columns from the masked vector on.
    """

    row: Value
    height: int
    columns: Sequence[Value]
    lanes: int
    masks: Sequence[Value]
    columns_left: Value = None


Body: TypeAlias = Callable[[_Part, _Block], None]


def emit_multi_level_tiling(plan: Plan, machine: Builder) -> None:
    """Say the program of a plan with tiles to a machine: of a fold, or of squares (``register_transpose.py``)."""
    if plan.turns:
        emit_register_transpose(plan, machine)
    else:
        _Tiled(plan, machine).run()


class _Tiled(Copies):
    def __init__(self, plan: Plan, machine: Builder) -> None:
        schedule = plan.schedule
        blocks, vectors, self.terms = schedule.tiles
        self.lanes, self.unroll, self.height = schedule.lanes, schedule.unroll, schedule.rows
        self.tile_rows, self.tile_columns = blocks * schedule.rows, vectors * schedule.lanes * schedule.unroll
        (self.row, self.row_extent), (self.column, self.column_extent) = plan.loops[-2:]
        tiles = {self.row: self.tile_rows, self.column: self.tile_columns}
        super().__init__(machine, {read.name: (read, tiles[read.tile_variable]) for read in plan.reads}, schedule.lanes)
        self.plan, self.fold = plan, tiled_fold(plan)
        self.along = frozenset({self.column.name})
        self.row_parts = list(_shared(self.fold.value, self.column.name))
        self.column_parts = list(_shared(self.fold.value, self.row.name))

    def run(self) -> None:
        """Loops around tiles, then tiles. Columns that are copied are copied once for all rows, so theirs come first."""
        if self.terms:
            self.machine.scratch(SUMS, self.tile_rows * self.tile_columns, self.fold.dtype)
        if not self._even:
            self.machine.scratch(EDGE, self.lanes, dtype_of(self.plan.value))
        self.allocate()
        outer = list(self.plan.loops[:-2])
        copied = [read for read in self.plan.reads if read.tile_variable == self.column]
        if not copied:

            def across(frame: Frame, row: Value, rows: int | Value) -> None:
                body = partial(self._tile, frame, row, rows)
                self._split(self.column_extent, self.tile_columns, body)

            self._outer(outer, Frame(), lambda frame: self._rows(frame, partial(across, frame)))
            return
        column_variables = frozenset[str]().union(*(free_variables(index) for index in copied[0].indices))
        inner = [loop for loop in outer if loop[0].name not in column_variables]

        def columns(frame: Frame) -> None:
            self._split(self.column_extent, self.tile_columns, lambda column, wide: panel(frame, column, wide))

        def panel(frame: Frame, column: Value, wide: int | Value) -> None:
            self.fill(copied[0], frame, column, wide, clear=wide != self.tile_columns)
            self._outer(inner, frame, lambda frame: self._rows(
                frame, lambda row, rows: self._tile(frame, row, rows, column, wide)))  # fmt: skip

        self._outer([loop for loop in outer if loop not in inner], Frame(), columns)

    def _outer(self, loops: Sequence[tuple[Variable, Extent]], frame: Frame, body: Callable[[Frame], None]) -> None:
        """The loops around tiles. A method, as ``_terms`` is: see ``emit``'s ``_level``."""
        if not loops:
            body(frame)
            return
        variable, extent = loops[0]
        count = self.machine.size(extent)
        self.machine.loop(count, lambda i: self._outer(loops[1:], frame.inner(**{variable.name: i}), body))

    def _rows(self, frame: Frame, body: Callable[[Value, int | Value], None]) -> None:
        """Tiles of rows, after the copies that they read."""

        def tile(row: Value, rows: int | Value) -> None:
            for read in self.plan.reads:
                if read.tile_variable == self.row:
                    self.fill(read, frame, row, rows, clear=False)
            body(row, rows)

        self._split(self.row_extent, self.tile_rows, tile)

    def _split(self, extent: Extent, tile: int, body: Callable[[Value, int | Value], None]) -> None:
        """Whole tiles of an axis, then one of what is left."""
        number, size = self._number, self.machine.size(extent)
        if isinstance(extent, int):
            if extent >= tile:
                self.machine.loop(number(extent // tile), lambda i: body(self._index("mul", i, number(tile)), tile))
            if extent % tile:
                body(number(extent // tile * tile), extent % tile)
            return
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

    def _blocks(self, part: _Part, body: Body) -> None:
        """Blocks of registers that cover a part, rows outside."""
        number, height = self._number, self.height
        if isinstance(part.rows, int):
            full_blocks, rows_left = divmod(part.rows, height)
            if full_blocks:
                self.machine.loop(
                    number(full_blocks), lambda i: self._across(part, self._index("mul", i, number(height)), height, body)
                )
            if rows_left:
                self._across(part, number(full_blocks * height), rows_left, body)
            return
        count = self._index("floordiv", part.rows, number(height))
        self.machine.loop(count, lambda i: self._across(part, self._index("mul", i, number(height)), height, body))
        first_left = self._index("mul", count, number(height))
        if height > 1:
            rest = self._index("sub", part.rows, first_left)
            self.machine.loop(rest, lambda i: self._across(part, self._index("add", first_left, i), 1, body))

    def _across(self, part: _Part, row: Value, height: int, body: Body) -> None:
        """The blocks of a part that have these rows."""
        number, lanes, wide = self._number, self.lanes, self.lanes * self.unroll
        masked = lanes > 1 and self.plan.schedule.masked and self._can_mask
        columns = self._number(part.columns) if isinstance(part.columns, int) else part.columns

        def full_block(step: Value) -> None:
            vectors(self._index("mul", step, number(wide)), self.unroll)

        def vectors(base: Value, count: int, last: bool = False) -> None:
            starts = [self._index("add", base, number(offset)) for offset in offsets(count, lanes, 1)]
            masks = [None] * count
            columns_left = None
            if last:
                masks[-1] = self.machine.mask(starts[-1], columns, lanes)
                columns_left = self._index("min", self._index("sub", columns, starts[-1]), number(lanes))
            body(part, _Block(row, height, starts, lanes, masks, columns_left))

        def single(base: Value) -> None:
            body(part, _Block(row, height, [base], 1, [None]))

        if isinstance(part.columns, int):
            count, rest = divmod(part.columns, wide)
            if count:
                self.machine.loop(number(count), full_block)
            full = -(-rest // lanes) if masked else rest // lanes
            if full:
                vectors(number(count * wide), full, last=masked and rest % lanes > 0)
            if not masked and rest % lanes:
                first_left = number(part.columns - rest % lanes)
                self.machine.loop(number(rest % lanes), lambda i: single(self._index("add", first_left, i)))
            return
        count = self._index("floordiv", columns, number(wide))
        self.machine.loop(count, full_block)
        first_left = self._index("mul", count, number(wide))
        width = lanes if masked else 1
        columns_left = self._index("add", self._index("sub", columns, first_left), number(width - 1))

        def tail_block(step: Value) -> None:
            base = self._index("add", first_left, self._index("mul", step, number(width)))
            if masked:
                vectors(base, 1, last=True)
            else:
                single(base)

        self.machine.loop(self._index("floordiv", columns_left, number(width)), tail_block)

    @property
    def _can_mask(self) -> bool:
        """True if masked instructions can leave lanes out: of the fold's terms and of what is made of its result."""
        copied = {read.name for read in self.plan.reads}
        padded = self.machine.predicates
        if not self._even and not self.plan.reads:
            return False
        return maskable(self.fold.value, (), self.along, unmasked=copied, padded=padded) and maskable(
            self.plan.value, (), self.along, unmasked=copied, padded=padded
        )

    @property
    def _even(self) -> bool:
        """True if lanes are neighbours in the output."""
        return self.plan.indices[-1] == self.column

    def _started(self, part: _Part, block: _Block) -> None:
        """A block's sums of nothing."""
        neutral = self.machine.neutral(self.fold.how, self.fold.dtype)
        for row in range(block.height):
            for column in block.columns:
                self._put(self._sum_index(block.row, row, column), neutral, block.lanes)

    def _sum(self, part: _Part, block: _Block) -> None:
        """A block's terms of this part; with the last of them its elements of the output."""
        machine, fold, width = self.machine, self.fold, block.lanes
        first = self._index("add", part.row, block.row)
        rows = [self._index("add", first, self._number(row)) for row in range(block.height)]
        columns = [self._index("add", part.column, column) for column in block.columns]
        along = self.along if width > 1 else frozenset()
        frames = [[replace(part.frame.inner(**{self.row.name: row, self.column.name: column}), mask=mask, lanes=width,
                           along=along)
                   for column, mask in zip(columns, block.masks, strict=True)] for row in rows]  # fmt: skip
        cells = []
        for row in range(block.height):
            before = [self._near(SUMS, self._sum_index(block.row, row, column), width) if self.terms
                      else machine.neutral(fold.how, fold.dtype) for column in block.columns]  # fmt: skip
            cells.append([machine.cell(fold.dtype, width, item) for item in before])

        self._terms(part, frames, cells, 0, {})
        for row, (own, accumulators) in enumerate(zip(frames, cells, strict=True)):
            for frame, cell, column in zip(own, accumulators, block.columns, strict=True):
                if part.last:
                    self._store(frame, cell, block.columns_left)
                else:
                    self._put(self._sum_index(block.row, row, column), cell.get(), width)

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
        inner = [[frame.inner(**at) for frame in row_frames] for row_frames in frames]
        by_row = [
            self._ahead(self.row_parts, replace(row_frames[0], lanes=1, along=frozenset(), mask=None))
            for row_frames in inner
        ]
        by_column = [self._ahead(self.column_parts, frame) for frame in inner[0]]
        for row_frames, known, accumulators in zip(inner, by_row, cells, strict=True):
            for frame, more, cell in zip(row_frames, by_column, accumulators, strict=True):
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

    def _store(self, frame: Frame, cell: Cell, columns_left: Value) -> None:
        frame.folds[self.fold] = cell.get()
        value = self.evaluate(self.plan.value, frame)
        indices = [self.scalar(index, frame) for index in self.plan.indices]
        steps = [int(index == self.column and frame.lanes > 1) for index in self.plan.indices]
        if frame.mask is None or self._even:
            self.machine.store(self.plan.output, indices, steps, value, frame.lanes, frame.mask)
            return
        self.machine.store(EDGE, [self._number(0)], [1], value, frame.lanes, None)  # no mask scatters: lane by lane

        def lane(i: Value) -> None:
            lane_indices = [self._index("add", item, i) if step else item for item, step in zip(indices, steps, strict=True)]
            element = self.machine.load(EDGE, [i], [0], 1, None)
            self.machine.store(self.plan.output, lane_indices, [0] * len(lane_indices), element, 1, None)

        self.machine.loop(columns_left, lane)

    def _sum_index(self, i: Value, row: int, column: Value) -> Value:
        """Index of a block's sums in scratch memory."""
        line = self._index("mul", self._index("add", i, self._number(row)), self._number(self.tile_columns))
        return self._index("add", line, column)

    def _near(self, name: str, index: Value, lanes: int) -> Value:
        return self.machine.load(name, [index], [1], lanes, None)

    def _put(self, index: Value, value: Value, lanes: int) -> None:
        self.machine.store(SUMS, [index], [1], value, lanes, None)


def _shared(e: Expression, without: str) -> Iterator[Expression]:
    """The largest parts of a term that do not change with one variable: loads, and what is computed of them."""
    if without not in free_variables(e):
        if isinstance(e, Load) or (isinstance(e, Apply) and dtype_of(e) not in (INDEX, "bool")):
            yield e
        return
    for child in () if isinstance(e, (Fold, Load)) else children(e):
        yield from _shared(child, without)
