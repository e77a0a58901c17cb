"""A program whose rows are cut although their folds are read again: a stage for each level of folds, then one that writes.

Few long rows of a softmax or a norm. Each stage folds parts of the rows into numbers of its own; the next ones join these
first, every part for itself and in the axis's order, so nothing waits for one joiner. Between stages all parts must be done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import prod

from haotuner.codegen.builder import Builder, Value
from haotuner.codegen.expressions import INDEX, Expression, Fold, Variable
from haotuner.codegen.online_softmax_emit import record
from haotuner.codegen.online_softmax_schedule import OnlinePlan
from haotuner.codegen.schedule import Plan, levels_of_folds, shareable
from haotuner.codegen.split_reduction import PARTIAL
from haotuner.codegen.values import Frame, Store, Values, offsets, stores_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """Numbers that whoever runs a program in stages must know of it."""

    along: str  # the dimension that is cut
    calls: int  # stages, the one that writes the last
    partials: int  # numbers that a part leaves of a row
    parts: int
    row: int = 0  # elements of the output that are a row; 0: those along the dimension

    @staticmethod
    def of(plan: Plan | OnlinePlan) -> StagePlan | None:
        """Stages of a plan; None of one that has no parts, or whose parts are joined by their caller."""
        if isinstance(plan, OnlinePlan):
            return StagePlan._of_keys(plan) if plan.schedule.parts > 1 else None
        levels = levels_of_folds(plan) if plan.schedule.parts > 1 else ()
        if not levels or shareable(plan.graph, plan.schedule.lane_axis):
            return None
        along = str(plan.loops[-1][1])
        return StagePlan(along=along, calls=len(levels) + 1, partials=sum(map(len, levels)), parts=plan.schedule.parts)

    @staticmethod
    def _of_keys(plan: OnlinePlan) -> StagePlan:
        columns = plan.sums.column[1]
        assert isinstance(columns, int), "the rule asks for known extents"
        return StagePlan(along=str(plan.sums.key[1]), calls=2, partials=record(plan), parts=plan.schedule.parts, row=columns)


def emit_multi_stage(plan: Plan, machine: Builder) -> None:
    """Say all stages and their parts to a machine that knows all sizes."""
    levels, count = levels_of_folds(plan), plan.schedule.parts
    rows = prod(int(machine.size(extent)) for _, extent in plan.loops[:-1])
    machine.scratch(PARTIAL, max(1, count * rows * sum(map(len, levels))), "fp32")
    parts = machine.number(count, INDEX)
    for stage in range(len(levels) + 1):
        for index in range(count):
            emit_stage(plan, machine, stage, machine.number(index, INDEX), parts)


def emit_stage(plan: Plan, machine: Builder, stage: int, part: Value, parts: Value) -> None:
    """Say a part of one stage: the last one writes the output, each before folds a level."""
    _Stage(plan, machine, stage, part, parts).run()


class _Stage(Values):
    def __init__(self, plan: Plan, machine: Builder, stage: int, part: Value, parts: Value) -> None:
        super().__init__(machine, plan.graph)
        self.plan, self.stage, self.part, self.parts = plan, stage, part, parts
        self.levels = levels_of_folds(plan)
        self.points, self.rows = stores_of(plan)
        self.folds = [fold for level in self.levels for fold in level]
        self.lanes, self.unroll = plan.schedule.lanes, plan.schedule.unroll

    def run(self) -> None:
        self._outer(0, Frame(), self._number(0))

    def _outer(self, index: int, frame: Frame, row: Value) -> None:
        """The loops around a row, from one on; ``row``: its number so far."""
        if index == len(self.plan.loops) - 1:
            self._row(frame, row)
            return
        variable, extent = self.plan.loops[index]
        size = self.machine.size(extent)
        before = self._index("mul", row, size)
        self.machine.loop(
            size, lambda i: self._outer(index + 1, frame.inner(**{variable.name: i}), self._index("add", before, i))
        )

    def _row(self, frame: Frame, row: Value) -> None:
        machine = self.machine
        for fold in (item for level in self.levels[: self.stage] for item in level):
            cell = machine.cell(fold.dtype, 1, machine.neutral(fold.how, fold.dtype))

            def joined(p: Value, fold: Fold = fold, cell: object = cell) -> None:
                own = machine.load(PARTIAL, [self._partial_index(fold, p, row)], [0], 1, None)
                cell.set(machine.join(self.how(fold), cell.get(), own, fold.dtype, 1))  # type: ignore[attr-defined]

            machine.loop(self.parts, joined)
            frame.folds[fold] = machine.cell(fold.dtype, 1, cell.get()).get()
        frame.known.clear()
        if self.stage == len(self.levels):
            first = self._index("max", self._index("sub", self._number(1), self.part), self._number(0))
            if self.rows:  # one part says what is a row's
                machine.loop(first, lambda _: self._once(frame))
            self._along(frame, [self.plan.loops[-1][0]], self._write)
            return
        level = self.levels[self.stage]
        cells = {fold: [machine.cell(fold.dtype, self.lanes, machine.neutral(fold.how, fold.dtype))
                        for _ in range(self.unroll)] for fold in level}  # fmt: skip

        def folded(index: int, here: Frame) -> None:
            for fold in level:
                value = self.evaluate(fold.value, here)
                if here.mask is not None:
                    neutral = machine.neutral(fold.how, fold.dtype)
                    value = machine.apply("select", [here.mask, value, neutral], fold.dtype, self.lanes)
                cell = cells[fold][index]
                cell.set(machine.join(self.how(fold), cell.get(), value, fold.dtype, self.lanes))

        self._along(frame, [fold.axes[0][0] for fold in level], folded)
        for fold, own in cells.items():
            whole = own[0].get()
            for cell in own[1:]:
                whole = machine.join(self.how(fold), whole, cell.get(), fold.dtype, self.lanes)
            whole = machine.horizontal(self.how(fold), whole, fold.dtype, self.lanes)
            machine.store(PARTIAL, [self._partial_index(fold, self.part, row)], [0], whole, 1, None)

    def _along(self, frame: Frame, variables: Sequence[Variable], body: Callable[[int, Frame], None]) -> None:
        """The part's iterations along the last axis; the one behind all whole ones is masked."""
        machine, number, wide = self.machine, self._number, self.lanes * self.unroll
        size = machine.size(self.plan.loops[-1][1])
        steps = self._index("floordiv", self._index("add", size, number(wide - 1)), number(wide))
        whole = self._index("floordiv", size, number(wide))
        begin, end = (self._index("floordiv", self._index("mul", steps, at), self.parts)
                      for at in (self.part, self._index("add", self.part, number(1))))  # fmt: skip
        middle = self._index("max", self._index("min", end, whole), begin)

        def iteration(step: Value, *, masked: bool) -> None:
            base = self._index("mul", step, number(wide))
            for index, offset in enumerate(offsets(self.unroll, self.lanes, 1)):
                at = self._index("add", base, number(offset))
                inner = frame.inner(**{variable.name: at for variable in variables})
                along = frozenset(variable.name for variable in variables)
                mask = machine.mask(at, size, self.lanes) if masked else None
                body(index, replace(inner, lanes=self.lanes, along=along, mask=mask, known={}))

        machine.loop(self._index("sub", middle, begin), lambda i: iteration(self._index("add", begin, i), masked=False))
        machine.loop(self._index("sub", end, middle), lambda i: iteration(self._index("add", middle, i), masked=True))

    def _once(self, frame: Frame) -> None:
        for sink in self.rows:
            self._store(sink, frame)

    def _write(self, index: int, here: Frame) -> None:
        for sink in self.points:
            self._store(sink, here)

    def _store(self, sink: Store, here: Frame) -> None:
        value = self.evaluate(sink.value, here)
        indices = [self.scalar(index, here) for index in sink.indices]
        steps = [int(isinstance(index, Variable) and index.name in here.along) for index in sink.indices]
        self.machine.store(sink.tensor or self.plan.output, indices, steps, value, here.lanes, here.mask)

    def _partial_index(self, fold: Expression, part: Value, row: Value) -> Value:
        """Index of a part's number of a row."""
        at = next(index for index, fold_ in enumerate(self.folds) if fold_ is fold)
        line = self._index("add", self._index("mul", self._number(at), self.parts), part)
        rows = self._number(1)
        for _, extent in self.plan.loops[:-1]:
            rows = self._index("mul", rows, self.machine.size(extent))
        return self._index("add", self._index("mul", line, rows), row)

    def _number(self, value: int) -> Value:
        return self.machine.number(value, INDEX)

    def _index(self, function: str, value: Value, other: Value) -> Value:
        return self.machine.apply(function, [value, other], INDEX, 1)
