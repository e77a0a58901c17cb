"""Emitter of a plan's program to a *machine*: the compiler's builder, or an interpreter that runs it at once and counts.

Every reduction is computed as far out as its free variables allow. One that does not depend on the vector lanes runs over
vectors of its own last axis, in several accumulators that are added in a fixed order; one that does runs lane by lane. So
results do not depend on how the output was cut among threads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from haotuner.codegen.builder import Builder, Cell, Value
from haotuner.codegen.expressions import (
    INDEX,
    Apply,
    Expression,
    Fold,
    Load,
    Merged,
    Variable,
    children,
    free_variables,
    has_folds,
    parts,
)
from haotuner.codegen.multi_level_tiling import emit_multi_level_tiling
from haotuner.codegen.multi_stage import emit_multi_stage
from haotuner.codegen.online_softmax_emit import emit_online
from haotuner.codegen.online_softmax_schedule import OnlinePlan
from haotuner.codegen.schedule import FOLDS, CachedRow, Plan, shareable
from haotuner.codegen.split_reduction import emit_split_reduction
from haotuner.codegen.values import Frame, Store, Values, extents_of, is_ready, maskable, missing_folds, offsets, stores_of
from haotuner.graph.extents import Extent

AnyPlan: TypeAlias = Plan | OnlinePlan


def emit(plan: AnyPlan, machine: Builder) -> None:
    """Say the program of a plan to a machine."""
    if isinstance(plan, OnlinePlan):
        emit_online(plan, machine)
        return

    def whole(machine: Builder) -> None:
        if plan.schedule.tiles:
            emit_multi_level_tiling(plan, machine)
        else:
            _Emitter(plan, machine).run()

    if plan.schedule.parts > 1 and shareable(plan.graph, plan.schedule.lane_axis):
        emit_split_reduction(plan, machine, whole)
    elif plan.schedule.parts > 1:
        emit_multi_stage(plan, machine)
    else:
        whole(machine)


@dataclass(frozen=True, slots=True)
class _Nest:
    """State that the loops of a nest share."""

    sinks: Sequence[Store]
    rows: Sequence[Store]
    keeps: Sequence[CachedRow]
    cells: Mapping[Fold, list[Cell]]
    names: Sequence[set[str]]  # of the variables from each axis on


class _Emitter(Values):
    def __init__(self, plan: Plan, machine: Builder) -> None:
        Values.__init__(self, machine, plan.graph)
        self.plan = plan
        self.lanes = plan.schedule.lanes
        self._peeled = plan.schedule.peeled and self.lanes > 1
        self._folds = [node.output for node in plan.graph.nodes if node.primitive in FOLDS]
        self._unions: dict[
            Any, tuple[list[Store], list[Store]]
        ] = {}  # by identity; the first keeps what the key names alive

    def run(self) -> None:
        points, rows = stores_of(self.plan)
        self._nest(points, Frame(), keeps=self.plan.keeps, rows=rows)

    # Nests

    def _nest(
        self, sinks: Sequence[Store], frame: Frame, keeps: Sequence[CachedRow] = (), rows: Sequence[Store] = ()
    ) -> dict[Fold, Value]:
        """Sinks of equal extents at every point of their axes; values of their folds. ``rows``: of outer axes alone."""
        count = len(sinks[0].axes)
        if not count:  # a single point
            return self._point(sinks, frame)
        cells = self._cells(sinks)
        names = [{variable.name for sink in sinks for variable, _ in sink.axes[index:]} for index in range(count)]
        self._level(_Nest(sinks, rows, keeps, cells, names), 0, [frame])
        return self._results(sinks, cells)

    def _level(self, nest: _Nest, index: int, heres: Sequence[Frame]) -> None:
        """The loop of one axis of a nest, and what stands inside.

        A method: a closure that calls itself is garbage that a collection alone finds, and with it all that it knows.
        """
        sinks, inside, last = nest.sinks, nest.names[index], len(nest.names) - 1
        extent = sinks[0].axes[index][1]
        heres = [here.inner() for here in heres]
        ready = [
            keep for keep in nest.keeps if is_ready(keep, inside) and not (index and is_ready(keep, nest.names[index - 1]))
        ]
        if index == last and self._peeled:
            self._ahead(sinks, heres, extent)
        for here in heres:
            self._outside([*sinks, *(row for row in nest.rows if len(row.axes) >= index)], inside, here, ready)
            for row in (row for row in nest.rows if len(row.axes) == index):
                self._store(row, here, here.variables)
        if index == last:
            self._lanes(sinks, nest.cells, heres, extent)
            return

        def body(starts: Sequence[Value]) -> None:
            rows = [{sink.axes[index][0].name: i for sink in sinks} for i in starts]
            self._level(nest, index + 1, [here.inner(**row) for here in heres for row in rows])

        writes = sinks[0].fold is None and sinks[0].indices is self.plan.indices
        self._stepped(extent, self.plan.schedule.rows if writes and index == last - 1 else 1, body)

    def _stepped(self, extent: Extent, tile: int, body: Callable[[Sequence[Value]], None]) -> None:
        """A loop that takes so many points of an axis at a time, then those that are left one by one."""
        machine = self.machine
        size = machine.size(extent)
        if tile == 1:
            machine.loop(size, lambda i: body([i]))
            return
        steps = machine.apply("floordiv", [size, machine.number(tile, INDEX)], INDEX, 1)

        def whole(step: Value) -> None:
            base = machine.apply("mul", [step, machine.number(tile, INDEX)], INDEX, 1)
            body([machine.apply("add", [base, machine.number(index, INDEX)], INDEX, 1) for index in range(tile)])

        machine.loop(steps, whole)
        if isinstance(extent, int) and extent % tile == 0:
            return
        done = machine.apply("mul", [steps, machine.number(tile, INDEX)], INDEX, 1)
        left = machine.apply("sub", [size, done], INDEX, 1)
        machine.loop(left, lambda i: body([machine.apply("add", [done, i], INDEX, 1)]))

    def _unroll(self, sinks: Sequence[Store]) -> int:
        """Vectors an iteration of a nest: of its first fold's own, else those of the program."""
        own, fold = self.plan.schedule.folds, sinks[0].fold
        index = self._folds.index(fold.tensor) if fold is not None and fold.tensor in self._folds else len(own)
        return own[index] if index < len(own) else self.plan.schedule.unroll

    def _point(self, sinks: Sequence[Store], frame: Frame) -> dict[Fold, Value]:
        here = frame.inner()
        self._outside(sinks, set(), here, [])
        for sink in sinks:
            self._store(sink, here, here.variables)
        return {}

    def _cells(self, sinks: Sequence[Store]) -> dict[Fold, list[Cell]]:
        lanes = {sink.fold: self.lanes for sink in sinks if sink.fold}
        return {
            fold: [self._accumulator(fold, self.lanes) for _ in range(self._unroll(sinks))]
            for fold in lanes
            if fold is not None
        }

    def _accumulator(self, fold: Fold, lanes: int) -> Cell:
        return self.machine.cell(fold.dtype, lanes, self.machine.neutral(fold.how, fold.dtype))

    def _results(self, sinks: Sequence[Store], cells: Mapping[Fold, list[Cell]]) -> dict[Fold, Value]:
        result = {}
        for fold, accumulators in cells.items():
            left = [cell.get() for cell in accumulators]
            while len(left) > 1:  # in pairs: fewer results wait for each other than one after the other
                rest = left[len(left) // 2 * 2 :]
                pairs = zip(left[::2], left[1::2], strict=False)
                left = [
                    self.machine.join(self.how(fold), cell, other, fold.dtype, self.lanes) for cell, other in pairs
                ] + rest
            total = self.machine.horizontal(self.how(fold), left[0], fold.dtype, self.lanes)
            result[fold] = self.machine.cell(fold.dtype, 1, total).get()
        return result

    # What is computed outside of the loops that do not concern it

    def _outside(self, sinks: Sequence[Store], inside: set[str], here: Frame, keeps: Sequence[CachedRow]) -> None:
        """Folds that need none of the loops inside; then what else is worth computing once."""
        while True:
            waiting = self._waiting([sink.value for sink in sinks], inside, here)
            ready = [fold for fold in waiting if not self._waiting([self._value(fold, here)], set(), here, but=fold)]
            if not ready:
                break
            group = [fold for fold in ready if extents_of(fold) == extents_of(ready[0])]
            merged = [Store(fold.axes, self._value(fold, here), fold=fold) for fold in group]
            first = [keep for keep in keeps if any(fold in self.plan.first for fold in group)]
            merged += [Store(keep.axes, keep.value, indices=keep.indices) for keep in first]
            keeps = [keep for keep in keeps if keep not in first]
            here.folds.update(self._nest(self._united(merged), here))
            here.known.clear()
        if inside:
            for sink in sinks:
                self._hoist(sink.value, inside, here)

    def _united(self, sinks: list[Store]) -> list[Store]:
        """Copies of sinks over the first one's variables, so that what they share is one expression, computed once."""
        key = tuple((id(sink.value), sink.fold) for sink in sinks)
        if key not in self._unions:
            names, merged = [variable for variable, _ in sinks[0].axes], Merged()
            united = []
            for sink in sinks:
                new = dict(zip((variable.name for variable, _ in sink.axes), names, strict=True))
                value, indices = merged.renamed(sink.value, new), tuple(merged.renamed(index, new) for index in sink.indices)
                united.append(replace(sink, axes=sinks[0].axes, value=value, indices=indices))
            self._unions[key] = (sinks, united)
        return self._unions[key][1]

    def _value(self, fold: Fold, here: Frame) -> Expression:
        return self.plan.first.get(fold, fold.value)

    def _waiting(self, values: Sequence[Expression], inside: set[str], here: Frame, but: Fold | None = None) -> list[Fold]:
        """Folds in some expressions that are not computed yet and need no variable of the loops inside, inner ones first."""
        result: list[Fold] = []
        seen: set[int] = set()
        for value in values:
            missing_folds(value, here.folds, self.plan.first, seen, result)
        bound = here.variables.keys() - inside
        return [fold for fold in result if fold is not but and free_variables(fold) <= bound]

    def _hoist(self, e: Expression, inside: set[str], here: Frame) -> None:
        """Compute the largest parts that need no variable inside, once: each goes into a variable of the program."""
        if not has_folds(e) or isinstance(e, Fold) or id(e) in here.known:
            return
        if not free_variables(e) & inside:
            if isinstance(e, Apply):
                here.known[id(e)] = self.machine.cell(e.dtype, 1, self.evaluate(e, here)).get()
            return
        for child in children(e):
            self._hoist(child, inside, here)

    # The innermost loop

    def _lanes(
        self, sinks: Sequence[Store], cells: Mapping[Fold, list[Cell]], heres: Sequence[Frame], extent: Extent
    ) -> None:
        """Vectors along the last axis, for several rows at once where nothing is folded into one row's cells."""
        along = frozenset(sink.axes[-1][0].name for sink in sinks)
        machine, lanes, unroll = self.machine, self.lanes, self._unroll(sinks)
        size = machine.size(extent)

        def body(bases: Sequence[Value], width: int, masks: Sequence[Value] = (), pitch: int = 1) -> None:
            frames = [
                replace(here.inner(**dict.fromkeys(along, base)), lanes=width, along=along if width > 1 else frozenset(),
                        mask=mask, pitch=pitch)
                for here in heres for base, mask in zip(bases, masks or [None] * len(bases), strict=True)
            ]  # fmt: skip
            self._inside(sinks, frames)
            if self.plan.schedule.loads_first:
                self._load(sinks, frames)
            for index, frame in enumerate(frames):
                for sink in sinks:
                    self._sunk(sink, cells, index, frame, width)

        def number(value: int) -> Value:
            return machine.number(value, INDEX)

        def whole(step: Value) -> None:
            base = machine.apply("mul", [step, number(lanes * unroll)], INDEX, 1)
            body(self._bases(base, unroll, None), lanes, pitch=pitch)

        pitch = self.plan.schedule.pitch(unroll)
        if extent == 1:
            body([number(0)], 1)
            return
        if lanes == 1 and unroll == 1:
            machine.loop(size, lambda i: body([i], 1))
            return
        steps = machine.apply("floordiv", [size, number(lanes * unroll)], INDEX, 1)
        if self._peeled:  # the first iteration, whose loads every pass shares, stands outside of a loop
            bases = self._bases(number(0), unroll, size)
            body(bases, lanes, [machine.mask(base, size, lanes, pitch) for base in bases], pitch)
            if isinstance(extent, int) and extent <= lanes * unroll:
                return
            steps = machine.apply("max", [steps, number(1)], INDEX, 1)
            behind = machine.apply("sub", [steps, number(1)], INDEX, 1)
            machine.loop(behind, lambda step: whole(machine.apply("add", [step, number(1)], INDEX, 1)))
        else:
            machine.loop(steps, whole)
        done = machine.apply("mul", [steps, number(lanes * unroll)], INDEX, 1)
        left = machine.apply("sub", [size, done], INDEX, 1)
        if isinstance(extent, int) and extent % (lanes * unroll) == 0:
            return
        first = self.plan.schedule.loads_first
        near = first or all(maskable(sink.value, sink.indices, along) for sink in sinks)
        masked = lanes > 1 and self.plan.schedule.masked and near
        together = first and masked  # one iteration more: its loads wait for memory once
        width = lanes * unroll if together else lanes if masked else 1
        rounds = machine.apply(
            "floordiv", [machine.apply("add", [left, number(width - 1)], INDEX, 1), number(width)], INDEX, 1
        )

        def rest(step: Value) -> None:
            base = machine.apply("add", [done, machine.apply("mul", [step, number(width)], INDEX, 1)], INDEX, 1)
            bases, apart = (self._bases(base, unroll, size), pitch) if together else ([base], 1)
            body(
                bases, min(lanes, width), [machine.mask(base, size, lanes, apart) for base in bases] if masked else (), apart
            )

        machine.loop(rounds, rest)

    def _bases(self, first: Value, unroll: int, limit: Value) -> Sequence[Value]:
        """Bases of the vectors of an iteration; ``limit``: the extent where some may not exist."""
        machine, pitch = self.machine, self.plan.schedule.pitch(unroll)
        result = [
            machine.apply("add", [first, machine.number(offset, INDEX)], INDEX, 1)
            for offset in offsets(unroll, self.lanes, pitch)
        ]
        return machine.together(first, result, pitch, limit)

    def _ahead(self, sinks: Sequence[Store], heres: Sequence[Frame], extent: Extent) -> None:
        """Loads of the first iteration, before anything is folded that it needs: they wait for memory once."""
        if extent == 1:
            return
        unroll, size = self._unroll(sinks), self.machine.size(extent)
        along = frozenset(sink.axes[-1][0].name for sink in sinks)
        pitch, bases = self.plan.schedule.pitch(unroll), self._bases(self.machine.number(0, INDEX), unroll, size)
        masks = [self.machine.mask(base, size, self.lanes, pitch) for base in bases]
        frames = [
            replace(here.inner(**dict.fromkeys(along, base)), lanes=self.lanes, along=along, mask=mask, pitch=pitch)
            for here in heres
            for base, mask in zip(bases, masks, strict=True)
        ]
        self._load(sinks, frames)

    def _load(self, sinks: Sequence[Store], frames: Sequence[Frame]) -> None:
        """Loads of an iteration, emitted before it computes: loads wait for memory together."""
        for frame in frames:
            for sink in sinks:
                for part in parts(sink.value, into_folds=False):
                    if isinstance(part, Load) and free_variables(part) & frame.along:
                        self.evaluate(part, frame)

    def _sunk(self, sink: Store, cells: Mapping[Fold, list[Cell]], index: int, frame: Frame, width: int) -> None:
        if sink.fold is None:
            self._store(sink, frame, frame.variables)
            return
        fold = sink.fold
        value = self.evaluate(sink.value, frame)
        cell = cells[fold][index]
        if width == self.lanes:
            if frame.mask is not None:
                neutral = self.machine.neutral(fold.how, fold.dtype)
                value = self.machine.apply("select", [frame.mask, value, neutral], fold.dtype, width)
            cell.set(self.machine.join(self.how(fold), cell.get(), value, fold.dtype, width))
            return
        single = self.machine.ramp(self.machine.number(0, INDEX), self.lanes)  # one element joins the first lane
        first = self.machine.apply("equal", [single, self.machine.number(0, INDEX)], "bool", self.lanes)
        neutral = self.machine.neutral(fold.how, fold.dtype)
        spread = self.machine.apply("select", [first, value, neutral], fold.dtype, self.lanes)
        cell.set(self.machine.join(self.how(fold), cell.get(), spread, fold.dtype, self.lanes))

    def _inside(self, sinks: Sequence[Store], frames: Sequence[Frame]) -> None:
        """Folds that depend on the lanes, for all vectors of an iteration at once: each lane folds its own."""
        while True:
            waiting = self._waiting([sink.value for sink in sinks], set(), frames[0])
            ready = [fold for fold in waiting if not self._waiting([fold.value], set(), frames[0], but=fold)]
            if not ready:
                return
            fold = ready[0]
            if not free_variables(fold) & frames[0].along:
                rows: dict[tuple[int, ...], dict[Fold, Value]] = {}  # by the values of what the fold depends on
                for frame in frames:
                    key = tuple(id(frame.variables[name]) for name in sorted(free_variables(fold)))
                    if key not in rows:
                        alike = replace(frame, lanes=1, along=frozenset(), mask=None, known={}, folds=dict(frame.folds))
                        rows[key] = self._nest([Store(fold.axes, fold.value, fold=fold)], alike)
                    frame.folds.update(rows[key])
                    frame.known.clear()
                continue
            cells = [self._accumulator(fold, frame.lanes) for frame in frames]

            self._own(fold, cells, 0, frames)
            for cell, frame in zip(cells, frames, strict=True):
                frame.folds[fold] = cell.get()
                frame.known.clear()

    def _own(self, fold: Fold, cells: Sequence[Cell], index: int, inner: Sequence[Frame]) -> None:
        """A fold that depends on the lanes, from one of its axes on: a cell for each frame."""
        if index == len(fold.axes):
            self._inside([Store((), fold.value)], inner)
            for cell, frame in zip(cells, inner, strict=True):
                value = self.evaluate(fold.value, frame)
                cell.set(self.machine.join(self.how(fold), cell.get(), value, fold.dtype, frame.lanes))
            return
        variable, extent = fold.axes[index]
        self.machine.loop(
            self.machine.size(extent),
            lambda i: self._own(fold, cells, index + 1, [frame.inner(**{variable.name: i}) for frame in inner]),
        )

    def _store(self, sink: Store, frame: Frame, variables: Mapping[str, Value]) -> None:
        value = self.evaluate(sink.value, frame)
        indices = [self.scalar(index, frame) for index in sink.indices]
        steps = [frame.pitch * int(isinstance(index, Variable) and index.name in frame.along) for index in sink.indices]
        self.machine.store(sink.tensor or self.plan.output, indices, steps, value, frame.lanes, frame.mask)
