"""The search for ops of any dynamic axes: micro-kernels race at shapes spread over the traffic, then each cell gets one.

A race in rounds (successive halving: Jamieson & Talwalkar, AISTATS 2016). All candidates are timed at a few shapes, the
better half at more of them, until those that are left have been timed at all. An integer program keeps a few
(``plan/assign.py``), which are timed in every way in which threads may share a call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.index import backend_for
from haotuner.codegen.kinds import has_graph
from haotuner.cost.model import CostModel
from haotuner.cost.roofline import roofline_us
from haotuner.errors import HaotunerError, NothingLegal, UsageError
from haotuner.measure.measurer import Measurer
from haotuner.plan.assign import assign_within
from haotuner.plan.cover import MAX_KEPT
from haotuner.plan.table import CellTable, Sharing, cell_table
from haotuner.search.cost_extrapolation import (
    compared,
    expected_at,
    expected_by_family,
    extrapolated,
    has_first_programs,
    of_a_call,
    predicted_by_each,
    predicts_cells,
    too_long,
)
from haotuner.search.cost_extrapolation import predicted_us as predicted_us
from haotuner.search.explore import Explorable, explored
from haotuner.search.failures import FailedKernels
from haotuner.search.pruner import ALWAYS, Us, eliminated, worth_timing
from haotuner.search.repeated_times import RepeatedTimes
from haotuner.search.select.funnel import Funnel, joined, select
from haotuner.search.stages import Sharers
from haotuner.search.task import Clock, Task, Tuned, Watch, now
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.demand import Expectation
from haotuner.spec.device import Device
from haotuner.spec.family import Family, weight_form
from haotuner.spec.kernel import MicroKernel, shares_terms
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape

NAME = "cells"
FIRST_SHAPES, SHAPES = 3, 16  # at which the race begins, and at which those that are left have been timed
LONG_SHAPES = 8  # at least, beside these: their calls are too long for a race, so expectations stand for their times
PREDICTED_FIRST, PREDICTED_SHAPES = 8, 32  # the same where nothing is timed, as on a GPU that is not there
LEAVERS = 2  # one of so many candidates stays after a round
TURN = 4  # candidates that are timed at one shape after the other before the next ones are
UNTIMED = 1.02  # times the best time of a shape, at least, what was not timed there is taken for: ties go to times
FEW = 4  # kernels with a time: of fewer nobody can tell whether they are slow or the machine is
EXPLORED = 4  # shapes at which a policy's programs are timed
BUILDING = 0.5  # of the time left at a round, for building what it times; a short turn must time something, too
EXPLORING = 0.6  # of the time of the race, for a policy; the race takes the rest


def suits(op: Op, families: Sequence[Family], device: Device) -> bool:
    """Any op of the family that leaves something to know at run time."""
    return bool(op.dynamic) and families[0].serves(op)


def tune(task: Task, lab: Measurer, families: Sequence[Family], watch: Watch, model: CostModel | None) -> Tuned:
    """Tune one op. Always ends with a plan that can be served, unless every candidate failed (HaotunerError)."""
    begin, effort, family = now(), task.effort, families[0]
    families = [family_ for family_ in families if family_ is family or beside(family_, task)]
    clock = Clock(begin + task.budget_s * EXPLORING * effort.confirm_share, watch)
    result = _explored(task, lab, family, clock) if task.search else []
    sharers = Sharers.of(task, lab.device, family, result)
    result = sharers.without(result)
    funnel = joined(list(_funnels(task, lab.device, families, model, result)))
    clock.move(begin + task.budget_s * effort.confirm_share)
    race = Race(task, lab, families, [c.kernel for c in funnel.candidates], model, clock)
    stopped = race.run()
    race.confirm()
    kernels, regret = race.keep()
    clock = clock.next_phase(begin + task.budget_s * effort.measure_share, "plan")
    race.beside(sharers, clock)
    tables = tuple(race.table(kernels, threads, clock) for threads in task.threads)
    kernels += [
        kernel for kernel in sharers.kernels if any(sharers.composition(kernel) in table.entries for table in tables)
    ]
    return Tuned(
        task=task,
        family=family,
        strategy=NAME,
        funnel=funnel,
        kernels=tuple(kernels),
        tables=tables,
        measured=len({composition.parts for us in race.every() for composition, time_us in us.items() if time_us}),
        timings=sum(len(time_us) for us in race.every() for time_us in us.values()),
        seconds=now() - begin,
        stopped="signal" if clock.given_up else "budget" if clock.expired else stopped,
        regret=regret,
    )


def _explored(task: Task, lab: Measurer, family: Family, clock: Clock) -> list[MicroKernel]:
    """Kernels that a policy found; UsageError of a family that has no space of schedules."""
    if not isinstance(family, Explorable):
        raise UsageError(
            f"--search {task.search}: {family.name} has no space of schedules; leave the option out for {task.op.name}"
        )
    return explored(task, lab, family, compared(task, lab.device, EXPLORED), clock)


def expectation(task: Task, family: Family, device: Device, model: CostModel | None) -> Expectation:
    """The score of kernels for selection: the share of the roofline expected at a few shapes, a column for each."""
    shapes = expected_at(task, device, PREDICTED_FIRST if predicts_cells(task, device) else FIRST_SHAPES)

    def score(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        expected = predicted_by_each(task, family, device, model, kernels, shapes)
        roof = np.asarray(roofline_us(of_a_call(device), task.op, shapes), np.float64)
        result = np.asarray(roof / expected, np.float64)
        return result if len(result) > 1 else np.asarray(result[0], np.float64)

    return score


class Race:
    """Candidates of one op, what they took, and the shapes at which they are compared: the ``timed`` ones come first."""

    def __init__(
        self,
        task: Task,
        lab: Measurer,
        families: Sequence[Family],
        candidates: Sequence[MicroKernel],
        model: CostModel | None,
        clock: Clock,
    ) -> None:
        self.task, self.lab, self.clock = task, lab, clock
        self._families = {family.name: family for family in families}
        self._layout = families[0].layout  # of the only family where bits may not depend on what serves
        self._shared = bool(getattr(families[0], "shares_programs", False))
        self._carried = extrapolated(task, lab.device, families, model)
        most = PREDICTED_SHAPES if predicts_cells(task, lab.device) else SHAPES
        self.timed = compared(task, lab.device, most)
        self.shapes = [*self.timed, *too_long(task, lab.device, self.timed, max(most - len(self.timed), LONG_SHAPES))]
        self.shares = self._shares()
        candidates = [candidate for family in families for candidate in candidates if candidate.family == family.name]
        each = [[candidate for candidate in candidates if candidate.family == family.name] for family in families]
        expected_of = expected_by_family(task, lab.device, families, each, model, self.shapes)
        expected, hopeful = (
            np.concatenate(expected_of),
            np.concatenate([worth_timing(composition) for composition in expected_of]),
        )
        turns = [index for some in each for index in range(len(some))]  # families take turns: time may run out
        order = sorted(range(len(candidates)), key=lambda at: turns[at])
        tried = [(candidates[at], at) for at in order if hopeful[at].any()]
        self.candidates = {Composition.of(kernel.name, share=SERIAL): kernel for kernel, _ in tried}
        self._expected = {Composition.of(kernel.name, share=SERIAL): expected[at] for kernel, at in tried}
        self._hopeless = {
            (Composition.of(kernel.name, share=SERIAL), shape)
            for kernel, at in tried
            for shape, some in zip(self.shapes, hopeful[at].tolist(), strict=True)
            if not some
        }
        self.us: Us = {composition: {} for composition in self.candidates}
        self._repeated = RepeatedTimes(self.us)
        self.failed = FailedKernels()
        self._starved = False  # most kernels timed out
        self._of_many: dict[int, Us] = {}  # by threads
        self._staged: Mapping[Composition, Mapping[Shape, float]] = {}  # on all threads

    def _shares(self) -> dict[Shape, float]:
        """Share of the traffic that each shape of the race stands for: that of the shapes nearest to it."""
        every = self.task.traffic.shapes()
        own = np.log([[extent for _, extent in shape.axes] for shape in self.shapes])
        places = np.log([[extent for _, extent in shape.axes] for shape in every])
        nearest = np.linalg.norm(places[:, None] - own, axis=2).argmin(axis=1)
        result = dict.fromkeys(self.shapes, 0.0)
        for position, (_, share) in zip(nearest.tolist(), self.task.traffic, strict=True):
            result[self.shapes[position]] += share
        return result

    def run(self) -> str:
        """Race until those that are left have been timed at every shape of a race; "converged" or "budget"."""
        foreseen, count = self.foreseen, FIRST_SHAPES
        left = list(dict.fromkeys([*foreseen, *self.candidates]))
        first = left[: self.task.effort.least_kernels]
        ready = left if self._shared else first  # what is shared is compiled once, for however many
        self.lab.prepare(self._to_build(ready if first else (), self.timed[:1]), self.clock.goes_on)
        self._time(first, self.timed[:1], 1, whatever=True)  # so that a plan rests on something, however short the time
        self.lab.prepare(self._to_build(dict.fromkeys(foreseen), self.timed), self.clock.within(BUILDING))
        for compositions, shape in zip(foreseen, self.timed, strict=False):
            self._time([compositions], [shape], 1)
        while True:
            self.lab.prepare(self._to_build(left, self.timed[:count]), self.clock.within(BUILDING))
            self._time(left, self.timed[:count], 1)
            if self.clock.expired or self.clock.given_up:
                return "budget"
            left = [composition for composition in left if self._kernel(composition) not in self.failed]
            if count >= len(self.timed):
                return "converged"
            left = self._stay(left, self.timed[:count])
            count *= 2

    def confirm(self) -> None:
        """Time once more, in another process, what a plan would serve at each shape, until it stands.

        The best of many noisy times is the luckiest, too. What a plan without measurements serves is confirmed beside it.
        """
        for _ in range(self.task.effort.confirm_rounds):
            sound = [composition for composition in self.candidates if self._kernel(composition) not in self.failed]
            timed = [composition for composition in sound if self.us[composition]]
            if not timed or not self.clock.goes_on():
                return
            us = self._filled(timed)
            serving = self._assigned(timed, us)
            best = [timed[serving[at]] for at in us[serving].argmin(axis=0).tolist()]
            pairs = dict.fromkeys((*zip(best, self.shapes, strict=True), *zip(self.foreseen, self.shapes, strict=True)))
            fresh = [(c, s) for c, s in pairs if s in self.us[c] and not self._repeated.repeated(c, s)]
            if not fresh:
                return
            trials = [replace(self._trial(composition, shape), repeat=1) for composition, shape in fresh]
            if any(self.lab.known(trial) is None for trial in trials):
                self.lab.renew()
            records = self.lab.measure(trials, self.clock.goes_on)
            for (composition, shape), record in zip(fresh, records, strict=False):
                if isinstance(record.outcome, Timed):
                    self._repeated.repeat(composition, shape, record.outcome)
                else:
                    self.failed.note(self._kernel(composition), record)
            if len(records) < len(trials):
                return

    @cached_property
    def foreseen(self) -> list[Composition]:
        """Compositions of a plan without measurements at each shape of the race: timed first, it is not lost for less."""
        every = list(self.candidates)
        expected = np.array([self._expected[composition] for composition in every])
        chosen = self._assigned(every, expected)
        return [every[chosen[at]] for at in expected[chosen].argmin(axis=0).tolist()]

    def _assigned(self, of: Sequence[Composition], us: NDArray[np.float64]) -> list[int]:
        """Places of the few to keep. ``us``: of shape ``(compositions, shapes)``."""
        kernels, shares = (
            [self.candidates[composition] for composition in of],
            np.array([self.shares[shape] for shape in self.shapes]),
        )
        layouts = [self._layout(kernel) if self.task.one_order else () for kernel in kernels]
        forms = [weight_form(self._families[kernel.family], kernel, self.task.op) for kernel in kernels]
        return assign_within(layouts, us, shares, _most(self.task), forms)

    def _to_build(self, compositions: Iterable[Composition], shapes: Sequence[Shape]) -> list[str]:
        """Kernels whose times at these shapes are not all on record: a run that is taken up again builds little."""
        return [
            self._kernel(composition)
            for composition in compositions
            if any(self.lab.known(self._trial(composition, s)) is None for s in shapes)
        ]

    def every(self) -> list[Us]:
        """All times, those of one thread first."""
        return [self.us, *self._of_many.values()]

    def _times(self, threads: int) -> Us:
        """Times measured on so many threads, in us."""
        return self.us if threads == 1 else self._of_many.setdefault(threads, {})

    def _trial(self, composition: Composition, shape: Shape, threads: int = 1) -> Trial:
        return Trial.of(self.task.op, composition, shape, threads=threads, cache=self.task.cache)

    def _stay(self, left: Sequence[Composition], shapes: Sequence[Shape]) -> list[Composition]:
        """The better part by the mean slow-down, and whoever is the best somewhere."""
        us = np.array([[self.us[composition].get(shape, np.inf) for shape in shapes] for composition in left])
        if not len(us):
            return []
        if not np.isfinite(us).any():  # nothing is measured, as without a device
            return list(left)
        slower = np.log(us / us.min(axis=0)).mean(axis=1)
        most = max(ALWAYS, len(left) // LEAVERS)
        stays = set(np.argsort(slower, kind="stable")[:most].tolist()) | set(us.argmin(axis=0).tolist())
        return [composition for index, composition in enumerate(left) if index in stays]

    def _kernel(self, composition: Composition) -> str:
        return composition.parts[0].kernel

    def _time(
        self, compositions: Iterable[Composition], shapes: Sequence[Shape], threads: int, *, whatever: bool = False
    ) -> None:
        """Time what has no time yet, a few at every shape and then the next.

        ``whatever``: whatever is expected of them, and the first one even when the time is up.
        """
        every, us = list(compositions), self._times(threads)
        turns = [every[at : at + TURN] for at in range(0, len(every), TURN)]
        for composition, shape in ((composition, shape) for turn in turns for shape in shapes for composition in turn):
            if shape in us.get(composition, {}) or self._kernel(composition) in self.failed:
                continue
            if not whatever and ((composition, shape) in self._hopeless or eliminated(composition, every, us)):
                continue
            goes_on = self.clock.not_given_up if whatever and composition == every[0] else self.clock.goes_on
            self._note(composition, self.lab.measure([self._trial(composition, shape, threads)], goes_on), us)
            if self.clock.given_up or (self.clock.expired and not whatever):
                return

    def _note(self, composition: Composition, records: Sequence[Record], us: Us) -> None:
        for record in records:
            if isinstance(record.outcome, Timed) and us is self.us:
                self._repeated.note(composition, record.trial.shape, record.outcome)
            elif isinstance(record.outcome, Timed):
                us.setdefault(composition, {})[record.trial.shape] = record.outcome.median_us
            else:
                self.failed.note(self._kernel(composition), record)

    def _filled(self, compositions: Sequence[Composition]) -> NDArray[np.float64]:
        """Times at every shape of the race, of shape ``(compositions, shapes)``; what was not timed is a guess.

        A guess is what is expected, at the level of what was timed: the candidate's own as far as it has times, else that of
        all. What has no time at all is never expected to beat what was timed at a shape, nor is anything once the time is
        up: no guess will be checked any more. Where few kernels have a time, or most timed out, what a plan without
        measurements serves does: so a lone slow time is no plan.
        """
        logs = {time_us: self._off(time_us) for time_us in self.us if time_us in self._expected}
        usual = float(np.median(result)) if (result := [off for own in logs.values() for off in own]) else 0.0
        least, few = self._least(), self._starved or sum(map(bool, self.us.values())) < FEW
        times = self._repeated.drawn_to(
            {c: dict(zip(self.shapes, self._expected[c].tolist(), strict=True)) for c in self.candidates if self.us[c]}
        )
        rows = []
        for composition in compositions:
            own, known = logs[composition], times.get(composition, {})
            level = float(np.exp((len(own) * np.median(own) + usual) / (len(own) + 1) if own else usual))
            hopes = bool(own) and not (self.clock.expired or self.clock.given_up)
            expected = level * self._expected[composition]
            hopes |= few and composition in self.foreseen
            guesses = np.maximum(expected, 0.0 if hopes else UNTIMED * least).tolist()
            rows.append([known.get(shape, guess) for shape, guess in zip(self.shapes, guesses, strict=True)])
        return np.array(rows, np.float64)

    def _off(self, composition: Composition) -> list[float]:
        """Logarithms of time by expectation, of each shape at which a candidate was timed."""
        expected, known = self._expected[composition].tolist(), self.us[composition]
        return [float(np.log(known[s] / e)) for s, e in zip(self.shapes, expected, strict=True) if s in known]

    def _untimed(
        self, result: Mapping[Composition, float], ways: Sequence[str], shape: Shape, threads: int
    ) -> dict[Composition, float]:
        """Expected times of calls that threads share, in us, from times of one thread."""
        expect, op = backend_for(self.lab.device).untimed_us, self.task.op
        every = (
            (composition, Composition.of(composition.parts[0].kernel, share=way), us)
            for composition, us in result.items()
            for way in ways
        )
        guessed = {
            to: expect(us, self.candidates[composition], to, shape, op, threads)
            for composition, to, us in every
            if to != composition
        }
        return {composition: us for composition, us in guessed.items() if us < float("inf")}

    def _least(self) -> NDArray[np.float64]:
        """The best time of one thread at each shape; 0 where nothing was timed."""
        times = [
            min((self.us[candidate][s] for candidate in self.candidates if s in self.us[candidate]), default=0.0)
            for s in self.shapes
        ]
        return np.array(times, np.float64)

    def keep(self) -> tuple[list[MicroKernel], float]:
        """The micro-kernels to keep, and the share of time lost against all of them. HaotunerError if all failed."""
        self._starved = self.failed.forget_timeouts(sum(map(bool, self.us.values())))
        sound = [candidate for candidate in self.candidates if self._kernel(candidate) not in self.failed]
        if not sound:
            seen = ", ".join(f"{count} {reason}" for reason, count in sorted(self.lab.failures.items()))
            raise HaotunerError(
                f"{self.task.op.name}: every candidate failed ({seen}); look at them with `haotuner records check`, "
                "or at the toolchain with `haotuner doctor`"
            )
        bare = not self._least().all()  # some shape rests on expectations: then all have a say that are expected to be fast
        timed = sound if bare else [item for item in sound if self.us[item] or item in self.foreseen]
        us, shares = self._filled(timed), np.array([self.shares[shape] for shape in self.shapes])
        chosen = self._assigned(timed, us)
        lost = float(shares @ (us[chosen].min(axis=0) / us.min(axis=0)) / shares.sum() - 1)
        return [self.candidates[timed[position]] for position in chosen], lost

    def beside(self, sharers: Sharers, clock: Clock) -> None:
        """Choose and time what all threads share in stages, beside the race of single threads."""
        self.clock, most = clock, max(self.task.threads)
        if sharers.kernels and clock.goes_on():
            self.lab.prepare([kernel.name for kernel in sharers.kernels], clock.within(BUILDING))
            time = partial(self._time, threads=most)
            self._staged = sharers.timed(self.timed, self.task.op, time, self._times(most))

    def table(self, kernels: Sequence[MicroKernel], threads: int, clock: Clock) -> CellTable:
        """The plan of one thread count, from times where there was time for them, else from one thread's."""
        self.clock = clock
        ways = backend_for(self.lab.device).ways(self.task.op, threads, one_order=self.task.one_order)
        if threads > 1 and clock.goes_on():
            self.lab.gather([kernel.name for kernel in kernels])
        alone = {kernel: Composition.of(kernel.name, share=SERIAL) for kernel in kernels}
        self._time(alone.values(), self.timed, 1)  # a plan compares what was timed with no guess, as far as there is time
        filled = dict(zip(alone, self._filled(list(alone.values())), strict=True))
        times: dict[Shape, dict[Composition, float]] = {}
        us, staged = self._times(threads), self._staged if threads == max(self.task.threads) else {}
        for at, shape in enumerate(self.shapes):
            compositions_ = {way: [Composition.of(kernel.name, share=way) for kernel in kernels] for way in ways}
            for compositions in (compositions_[way] for way in ways if way != SERIAL and at < len(self.timed)):
                self._time(compositions, [shape], threads)
            result = {alone[kernel]: float(filled[kernel][at]) for kernel in kernels} if SERIAL in ways else {}
            shared = [c for way in ways if way != SERIAL for c in compositions_[way]]
            if shared and all(shape in us.get(c, {}) for c in shared):
                result |= {c: us[c][shape] for c in shared}
            times[shape] = result
        if not any(composition.share != SERIAL for time_us in times.values() for composition in time_us):
            # Nothing was timed with threads: all of them on one would leave the others idle.
            for shape, result in times.items():
                result |= self._untimed(result, ways, shape, threads)
        times = _comparable(times)
        for shape, result in times.items() if staged and ways != (SERIAL,) else ():
            result |= {c: own[shape] for c, own in staged.items() if shape in own and len(result) > len(kernels)}
        sharing = Sharing(threads, [way for way in ways if way in self.task.op.dynamic], staged) if staged else None
        table = cell_table(threads, self.task.op.dynamic, times, self.shares, sharing, self._carried)
        timed = {
            (shape, composition)
            for every in (self.us, us, staged)
            for composition, time_us in every.items()
            for shape in time_us
        }
        return replace(
            table, guessed=frozenset((shape, composition) for shape in times for composition in times[shape]) - timed
        )


def beside(family: Family, task: Task) -> bool:
    """True if a second family takes part: where times decide or a model of its own does, and bits may depend on what serves.

    By analysis alone one family is not held against another: where a convolution has few channels, it thinks too well of
    minimal filtering. One that has the first one's programs is (``search/cost_extrapolation.py``).
    """
    known = family.name in task.others or has_first_programs(family)
    return (task.budget_s > 0 or known) and not task.one_order and not task.search


def _funnels(
    task: Task, device: Device, families: Sequence[Family], model: CostModel | None, among: Sequence[MicroKernel]
) -> Iterator[Funnel]:
    """Candidates of each family; of one beside the first perhaps none."""
    if task.one_order:
        among = [point for point in among or families[0].points(task.op, device) if not shares_terms(point)]
    models = [model, *(task.others.get(family.name) for family in families[1:])]
    for index, (family, own) in enumerate(zip(families, models, strict=True)):
        of = () if index else among
        score = expectation(task, family, device, own)
        with contextlib.suppress(NothingLegal) if index else contextlib.nullcontext():
            yield task.selected(family, of, partial(select, task.op, family, device, task.traffic, score, among=of))


def _most(task: Task) -> int:
    """Kernels that a plan may have: one where bits may not depend on the cell, and kernels differ in the order of terms."""
    return 1 if task.one_order and has_graph(task.op.meaning) else MAX_KEPT


def _comparable(times: Mapping[Shape, dict[Composition, float]]) -> dict[Shape, dict[Composition, float]]:
    """Only shapes at which as much was timed as anywhere: the best of a few is not the best."""
    most = max((len(time_us) for time_us in times.values()), default=0)
    return {shape: time_us for shape, time_us in times.items() if len(time_us) == most and time_us}
