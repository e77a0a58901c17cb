"""The search for ops of one dynamic axis whose tiles end it exactly: a few micro-kernels that cover every extent.

Propose, measure, record, learn, stop; time once more what would be kept; then a plan table for every thread count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.model import CostModel
from haotuner.errors import HaotunerError, NothingLegal
from haotuner.measure.measurer import Measurer
from haotuner.plan.compose import Curve, best_us, can_serve, mean_us
from haotuner.plan.cover import Cover, cover, sketch
from haotuner.plan.table import PlanTable
from haotuner.search.observations import MEASURED_ONLY, ObservationTable, expectation, names
from haotuner.search.planning import again, curves, decide, time_candidates
from haotuner.search.probes import Probe, probe
from haotuner.search.propose import foreseen, rounds
from haotuner.search.select.funnel import Funnel, select
from haotuner.search.task import Clock, Effort, Task, Tuned, Watch, now, part
from haotuner.spec.composition import Composition
from haotuner.spec.demand import Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Family, Layout
from haotuner.spec.op import Op
from haotuner.spec.record import Timed, Trial

NAME = "rows"
WHOLE_UP_TO = 16  # rows: up to here one tile as high as the call is often the best, and no other says how fast it is
TOGETHER = 4  # kernels that are built before any of them is timed: a run that is cut short should not only have built
Floats = NDArray[np.float64]


def suits(op: Op, families: Sequence[Family], device: Device) -> bool:
    """One dynamic axis, which the family's tiles end exactly."""
    if len(op.dynamic) != 1:
        return False
    family = families[0]
    first = next(family.points(op, device), None)
    return first is None or family.tile(first).edge.get(op.dynamic[0]) == "exact"  # of no point selection says what is wrong


def tune(task: Task, lab: Measurer, families: Sequence[Family], watch: Watch, model: CostModel | None) -> Tuned:
    """Tune one op. Always ends with a plan that can be served, unless every candidate failed (HaotunerError)."""
    begin, effort, family = now(), task.effort, families[0]
    expected = expectation(task.op, family, lab.device, task.cache, model)
    funnel = _selected(task, lab, family, expected)
    search = Search(task, lab, family, funnel, model, Clock(begin + task.budget_s * effort.search_share, watch))
    stopped = search.run()
    search.clock = search.clock.next_phase(begin + task.budget_s * effort.confirm_share, "plan")
    cover_ = search.keep(whole=search.confirm(), cut_short=stopped == "budget")
    tables = _tables(task, lab, family, cover_, search.clock, begin + task.budget_s * effort.measure_share)
    return Tuned(
        task=task,
        family=family,
        strategy=NAME,
        funnel=funnel,
        kernels=tuple(curve.micro_kernel for curve in cover_.curves),
        tables=tables,
        measured=len(search.judged()),
        timings=len(search.book.us),
        seconds=now() - begin,
        stopped="signal" if search.clock.given_up else ("budget" if search.clock.expired else stopped),
        regret=cover_.regret,
        cover=cover_,
        model={} if search.clock.given_up else search.book.scores(),
    )


def _selected(task: Task, lab: Measurer, family: Family, expected: Expectation) -> Funnel:
    """The candidates: of the few that the task names if they can serve every shape, else of the whole family."""
    if task.among:
        try:
            few = select(task.op, family, lab.device, task.traffic, expected, among=task.among)
        except NothingLegal:
            pass
        else:
            axis = task.op.dynamic[0]
            if any(family.tile(candidate.kernel).extent[axis] == 1 for candidate in few.candidates):
                return few
    return task.selected(family, (), lambda: select(task.op, family, lab.device, task.traffic, expected))


class Search:
    """One op's candidates, what is known of them, and the traffic that counts."""

    def __init__(
        self, task: Task, lab: Measurer, family: Family, funnel: Funnel, model: CostModel | None, clock: Clock
    ) -> None:
        self.task, self.lab, self.effort, self.clock = task, lab, task.effort, clock
        axis = task.op.dynamic[0]
        self.rows = np.array([shape[axis] for shape in task.traffic.shapes()], np.int64)
        self.shares = np.array([share for _, share in task.traffic], np.float64)
        self.ordered = names(funnel.candidates)
        most = int(self.rows.max())
        probes = [probe(c.kernel, task.op, family, lab.device, most, cache=task.cache) for c in funnel.candidates]
        self.book = ObservationTable(task.op, family, lab.device, probes, cache=task.cache, seed=task.seed, model=model)
        self.foreseen = foreseen(self.book, self.ordered, self.rows, self.shares)  # what would be kept without a measurement

    def run(self) -> str:
        """Measure what the search asks for until it stops; says why: "converged", "exhausted" or "budget"."""
        stopped = self._rounds()
        self._race_expected()
        if stopped == "budget" or not self.book.started:
            # What an earlier run recorded counts, even if there was no time to come to it.
            self._recall(self.ordered)
        if not self.judged():
            first = sketch(self.book.layouts(self.ordered), self.rows, self.shares)
            self._whole([curve.kernel for curve in first][: self.effort.least_kernels])
        return stopped

    def judged(self) -> list[str]:
        """Candidates that a plan may be judged by."""
        return self.book.judged(self.ordered)

    def _rounds(self) -> str:
        book, lab, clock, effort = self.book, self.lab, self.clock, self.effort
        if book.started and not clock.goes_on():
            return "budget"  # a first batch would cost a prediction of every opinion
        batches = rounds(book, self.ordered, self.rows, self.shares, self.task.seed, self.foreseen)
        batch = next(batches, {})
        if not book.started:
            self._recall(list(batch))
            self._whole(list(batch)[: effort.least_kernels])
        quiet, best = 0, np.inf
        while batch and clock.goes_on():
            if (
                not book.started
            ):  # single shapes are recalled as they are asked for, so that a run taken up again asks the same
                self._recall(list(batch))
            todo = [(name, book.open(trials)) for name, trials in batch.items() if not book.done(name)]
            for at in range(0, len(todo), TOGETHER):
                some = todo[at : at + TOGETHER]
                unknown = [name for name, trials in some if any(lab.known(trial) is None for trial in trials)]
                lab.prepare(unknown, clock.goes_on)
                for _, trials in some:
                    for record in lab.measure(trials, clock.goes_on):
                        book.note(record)
                    if clock.expired or clock.given_up:
                        return "budget"
            book.learn()
            value = min((mean_us(us, self.shares) for us in self._measured_us()), default=np.inf)
            quiet = quiet + 1 if value > best * (1 - effort.better) else 0
            best = min(best, value)
            if quiet >= patience(book, effort):
                return "converged"
            batch = next(batches, {})
        return "budget" if batch else "exhausted"

    def _whole(self, names_: Sequence[str]) -> None:
        """Whole probes of these kernels while there is time; of one whatever the time, so that a plan rests on something."""
        open_ = [name for name in names_ if not self.book.done(name)]
        if not open_ or not self.clock.not_given_up():
            return
        self.lab.prepare(open_, self.clock.goes_on)
        for name in open_:
            goes_on = self.clock.goes_on if self.judged() else self.clock.not_given_up
            for record in self.lab.measure(self.book.open(self.book.probes[name].trials()), goes_on):
                self.book.note(record)

    def _race_expected(self) -> None:
        """Whole probes of what would be kept without a measurement, and of the best tile of each small call's height."""
        for name in self._expected_best():
            if not self.book.done(name) and self.clock.goes_on():
                trials = self.book.open(self.book.probes[name].trials())
                if any(self.lab.known(trial) is None for trial in trials):
                    self.lab.prepare([name], self.clock.not_given_up)
                for record in self.lab.measure(trials, self.clock.goes_on):
                    self.book.note(record)

    def _recall(self, names_: Sequence[str]) -> None:
        """Note what is already recorded of these kernels; in a search by whole probes of those whose every trial is."""
        for name in names_:
            if self.book.done(name):  # nobody is told of a record twice
                continue
            records = [self.lab.known(trial) for trial in self.book.open(self.book.probes[name].trials())]
            if self.book.started or all(record is not None for record in records):
                for record in records:
                    if record is not None:
                        self.book.note(record)
                        self.clock.not_given_up(record)

    def _measured_us(self) -> list[Floats]:
        """For each layout the least time of every shape, by measured times alone; none if nothing is measured.

        Predictions change from round to round, and what a start promised too much is never beaten.
        """
        layouts = self.book.layouts(self.judged(), MEASURED_ONLY)
        return [best_us(layout, self.rows)[0] for layout in layouts.values()]

    def confirm(self) -> bool:
        """Time those once more that would be kept, until the set stands: the best of many noisy times is the luckiest, too.

        In other processes, where code and data lie elsewhere, and as compositions of one region, so that the second time is
        a record of its own. Of a kernel that was timed at some shapes of its probe only, the others come first. False if it
        was cut short before a set stood.
        """
        book, lab, clock = self.book, self.lab, self.clock
        confirmed: set[str] = set()
        for _ in range(self.effort.confirm_rounds):
            if clock.given_up:
                return False
            layouts = book.layouts(self.judged(), self.effort.caution)
            sketched = sketch(layouts, self.rows, self.shares)
            fresh, stands = [curve.kernel for curve in sketched if curve.kernel not in confirmed], False
            if not fresh and confirmed and clock.goes_on():  # the sketch stands; the exact program may still choose others
                exact = cover(layouts, self.rows, self.shares).curves
                fresh = [curve.kernel for curve in exact if curve.kernel not in confirmed]
            # What would be kept without a measurement is confirmed, too, whatever noise said of it.
            if not fresh and confirmed and clock.goes_on():
                fresh = [name for name in self._expected_best() if name not in confirmed and book.measured(name)]
                stands = True
            if not fresh:
                break
            once_more = {name: _as_regions(book.probes[name]) for name in fresh}
            if any(lab.known(trial) is None for trials in once_more.values() for trial in trials) and clock.goes_on():
                lab.renew()
            for name, trials in once_more.items():
                for record in lab.measure(book.open(book.probes[name].trials()), clock.goes_on):
                    book.note(record)
                records = lab.measure(trials, clock.goes_on) if book.measured(name) else []
                for (_, trial), record in zip(book.probes[name].lead, records, strict=False):
                    if isinstance(record.outcome, Timed):
                        book.confirm(trial, record.outcome.median_us)
                if len(records) < len(trials) and name not in book.failed:
                    return stands
            confirmed.update(fresh)
        return True

    def _expected_best(self) -> list[str]:
        """Kernels that a plan without measurements keeps, and for small calls the tile of their height that looks best."""
        book, axis_rows = self.book, {int(m) for m in self.rows if m <= WHOLE_UP_TO}
        best: dict[int, tuple[float, str]] = {}
        for curve in book.curves(self.ordered):
            if curve.rows in axis_rows:
                best[curve.rows] = min((curve.lead_us[0][1], curve.kernel), best.get(curve.rows, (np.inf, "")))
        return list(dict.fromkeys([*self.foreseen, *(name for _, (_, name) in sorted(best.items()))]))

    def keep(self, *, whole: bool, cut_short: bool = False) -> Cover:
        """The kernels to keep. ``whole``: of those alone whose whole probe was timed.

        ``cut_short``, or most kernels timed out: what would be kept without a measurement and has no time yet takes part by
        its prediction, on the scale of what was timed. So a short search is no worse than none. Nothing else takes part so:
        the best of many predictions is the luckiest. From predictions alone the greedy set will do, within 0.2 % of the
        exact one.
        """
        book = self.book
        cut_short = book.forget_timeouts() or cut_short
        known = book.finished(self.ordered) if whole else self.judged()
        missing = [name for name in self.foreseen if name not in known and name not in book.failed]
        if known and missing and (cut_short or not whole):
            book.level()
            known += missing
        cover_found = cover(
            self._complete(known), self.rows, self.shares, exact=bool(self.judged()) and not self.clock.given_up
        )
        if everything := self._measured_us():  # kept kernels alone may be timed whole; all that has a time counts
            least = float(self.shares @ np.min(everything, axis=0))
            cover_found = replace(cover_found, unlimited_us=min(cover_found.unlimited_us, least))
        return cover_found

    def _complete(self, known: Sequence[str]) -> dict[Layout, list[Curve]]:
        """Layouts that can cover every shape, of known kernels if there are any.

        A run that was stopped before anything was measured still gets a plan, from predictions alone; the caller sees
        ``measured == 0``. HaotunerError when every candidate failed, or every one of those with one row.
        """
        book = self.book
        for layouts in (
            book.layouts(known, self.effort.caution),
            book.layouts(() if self.judged() else self.foreseen),
            book.layouts(self.ordered),
        ):
            result = {layout: curves for layout, curves in layouts.items() if can_serve(curves)}
            if result:
                return result
        seen = ", ".join(f"{count} {reason}" for reason, count in sorted(self.lab.failures.items()))
        all_failed = book.failed.issuperset(self.ordered)
        what = "candidate" if all_failed else f"kernel of one row, which some {self.task.op.dynamic[0]} cannot do without,"
        raise HaotunerError(
            f"{book.op.name}: every {what} failed ({seen}); look at them with `haotuner records check`, "
            "or at the toolchain with `haotuner doctor`"
        )


def patience(book: ObservationTable, effort: Effort) -> int:
    """Rounds without a better plan before the search stops: more where a start turns out to be further off than usual."""
    if not book.started:
        return effort.quiet_rounds
    return round(effort.started_quiet_rounds * max(1.0, book.spread / effort.usual_spread) ** 2)


def _as_regions(probe_: Probe) -> list[Trial]:
    """The leading trials of a probe as compositions of one region, timed once more."""
    return [
        Trial.of(t.op, Composition.of(t.kernel, tiles), t.shape, threads=t.threads, cache=t.weights, repeat=1)
        for tiles, t in probe_.lead
    ]


def _tables(task: Task, lab: Measurer, family: Family, cover_: Cover, clock: Clock, until: float) -> tuple[PlanTable, ...]:
    """A plan for every thread count.

    The time that is left is shared by what there is to time, so that none goes without. What remains serves all together.
    """
    clock.move(part(until, task.effort.curves_share))
    timings = curves(lab, task, family, cover_.curves, clock.goes_on)
    clock.move(part(until, task.effort.contend_share))
    timings = time_candidates(lab, timings, clock.goes_on, lambda: clock.given_up)
    clock.move(until)
    if not clock.given_up:
        timings = again(lab, timings, clock.goes_on)
    return tuple(map(decide, time_candidates(lab, timings, clock.goes_on, lambda: clock.given_up)))
