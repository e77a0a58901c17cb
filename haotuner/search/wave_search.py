"""The search for ops of one dynamic axis on devices that run many masked tiles at a time: several families in one search.

Each round builds the kernels that the best plan by present knowledge would use, and a few others, times them where they are
expected near the best, and learns. A few kernels are kept (``plan/assign.py``); then ``search/cell_planning.py`` weighs
compositions of them cell by cell.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np

from haotuner.backends.index import backend_for
from haotuner.cost.expected import over_traffic
from haotuner.cost.machine import machine
from haotuner.cost.model import CostModel
from haotuner.errors import HaotunerError, NothingLegal
from haotuner.measure.measurer import Measurer
from haotuner.plan.assign import assign
from haotuner.plan.grids import Grid
from haotuner.search.cell_planning import table
from haotuner.search.latency_table import Floats, Key, LatencyTable
from haotuner.search.select.funnel import Funnel, select
from haotuner.search.task import Clock, Task, Tuned, Watch, now
from haotuner.spec.composition import Composition, in_parts, sum_parts
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape

NAME = "waves"
SHAPES = 20  # of the traffic at which kernels are compared: a round of blocks more or less is seen between any two
CANDIDATES = 96  # of each family: what is behind them by expectation has never been near the best
BATCH = 4  # kernels a round of each builder: some ten seconds of nvcc
EXPLORE = 0.25  # of a batch goes to kernels that no plan asks for: a model is only as good as its examples
RANKED = 3  # kernels of each shape that are asked for, the best one first
NEAR = 1.4  # a kernel is timed where it is expected within so many times the best...
FEWEST, MOST = 3, 8  # ...at so many shapes
SEARCHING = 0.8  # of the time before the plan is weighed: what decides in the end are compositions timed cell by cell


def suits(op: Op, families: Sequence[Family], device: Device) -> bool:
    """One dynamic axis, whose end the tiles mask, on a device whose units run several tiles at a time."""
    if len(op.dynamic) != 1 or not machine(device).waves_hide_latency:
        return False
    family = families[0]
    first = next(family.points(op, device), None)
    return first is None or family.tile(first).edge.get(op.dynamic[0]) == "masked"


def tune(task: Task, lab: Measurer, families: Sequence[Family], watch: Watch, model: CostModel | None) -> Tuned:
    """Tune one op. Always ends with a plan that can be served, unless every candidate failed (HaotunerError)."""
    begin, effort = now(), task.effort
    funnel, of = selected(task, lab.device, families, model)
    clock = Clock(begin + task.budget_s * effort.confirm_share * SEARCHING, watch)
    search = Search(task, lab, of, model, clock)
    stopped = search.run()
    kernels, regret = search.keep()
    search.clock = clock.next_phase(begin + task.budget_s * effort.measure_share, "plan")
    grids = [search.grids[kernel.name] for kernel in kernels]
    tables = tuple(table(task, lab, grids, search.surface, search.parts, search.clock) for _ in task.threads)
    return Tuned(
        task=task,
        family=families[0],
        strategy=NAME,
        funnel=funnel,
        kernels=tuple(kernels),
        tables=tables,
        measured=len({key[0] for key in search.surface.us}),
        timings=len(search.surface.us),
        seconds=now() - begin,
        stopped="signal" if search.clock.given_up else ("budget" if search.clock.expired else stopped),
        regret=regret,
    )


def selected(
    task: Task, device: Device, families: Sequence[Family], model: CostModel | None
) -> tuple[Funnel, dict[MicroKernel, Family]]:
    """The candidates of all families as one funnel, and the family of each. NothingLegal if no family has one."""
    result: dict[str, Funnel] = {}
    without: list[str] = []
    parts = _parts(task, device)
    for family in families:
        score = over_traffic(task.op, family, device, task.traffic, model, parts=parts)
        try:
            select_family = partial(select, task.op, family, device, task.traffic, score, most=CANDIDATES)
            result[family.name] = task.selected(family, (), select_family)
        except NothingLegal as error:
            without.append(str(error))
    if not result:
        raise NothingLegal("\n".join(without))
    candidates = [candidate for funnel in result.values() for candidate in funnel.candidates]
    refused: Counter[str] = Counter()
    for funnel in result.values():
        refused.update(funnel.refused)
    every = Funnel(
        points=sum(funnel.points for funnel in result.values()),
        legal=sum(funnel.legal for funnel in result.values()),
        candidates=tuple(sorted(candidates, key=lambda c: (-c.score, c.kernel.name))),
        refused=dict(refused),
        examples=tuple(refusal for funnel in result.values() for refusal in funnel.examples),
    )
    named = {family.name: family for family in families}
    return every, {candidate.kernel: named[candidate.kernel.family] for candidate in every.candidates}


class Search:
    """One op's candidates, what is known of them, and the shapes at which they are compared."""

    def __init__(
        self, task: Task, lab: Measurer, of: dict[MicroKernel, Family], model: CostModel | None, clock: Clock
    ) -> None:
        self.task, self.lab, self.clock = task, lab, clock
        self.kernels = {kernel.name: kernel for kernel in of}
        self.grids = {kernel.name: Grid.of(kernel, family, task.op, lab.device) for kernel, family in of.items()}
        self.surface = LatencyTable(task.op, lab.device, of, cache=task.cache, seed=task.seed, model=model)
        self.extents, self.shares = _compared(task)
        self.parts = _parts(task, lab.device)
        self.failed: set[str] = set()
        self.timed: set[str] = set()
        self._random = np.random.default_rng(task.seed)
        self._names = list(self.kernels)

    def run(self) -> str:
        """Rounds until nothing better is found; "converged", "exhausted" or "budget"."""
        effort, quiet, best, took = self.task.effort, 0, np.inf, 0.0
        batch = self._batch(effort.least_kernels) if effort.least_kernels else []
        self._time(batch, whatever=1)  # so that a plan rests on something, however short the time
        while True:
            began = now()
            self.surface.learn()
            value = self._value()
            quiet = quiet + 1 if value > best * (1 - effort.better) else 0
            best = min(best, value)
            if self.clock.given_up or not self.clock.goes_on(needing=took):
                return "budget"
            if quiet >= effort.quiet_rounds and self._settled():
                return "converged"
            batch = self._batch(BATCH * self.lab.builders)
            if not batch:
                return "exhausted"
            self._time(batch)
            took = now() - began

    def _keys(self, name: str, extent: int) -> list[Key]:
        grid = self.grids[name]
        tiles = grid.tiles(extent)
        return [(name, tiles, p, self.task.cache) for p in self.parts if p == 1 or grid.short(tiles, p)]

    def _best(self, names: Sequence[str]) -> tuple[Floats, list[list[Key]]]:
        """Least time of each kernel at each shape over the parts of its sum, ``(kernels, shapes)``, and which that is."""
        keys = [[self._keys(name, extent) for extent in self.extents] for name in names]
        us = iter(self.surface.times([key for row in keys for time_us in row for key in time_us]).tolist())
        least, chosen = [], []
        for row in keys:
            pairs = [min((next(us), key) for key in time_us) for time_us in row]
            least.append([value for value, _ in pairs])
            chosen.append([key for _, key in pairs])
        return np.array(least, np.float64), chosen

    def _sound(self) -> list[str]:
        return [name for name in self._names if name not in self.failed]

    def _batch(self, size: int) -> list[tuple[str, list[Key]]]:
        """At most so many kernels with what to time of each: those that plans ask for first, then others by chance."""
        names = self._sound()
        if not names:
            return []
        us, chosen = self._best(names)
        least = us.min(axis=0)
        todo = {name: self._todo(us[of], least, chosen[of]) for of, name in enumerate(names)}
        if shared := self._shared(names):
            return [(name, list(dict.fromkeys([*keys, *todo[name]]))) for name, keys in shared.items()][:size]
        scores = np.zeros(len(names))
        for at, share in enumerate(self.shares.tolist()):
            for index, of in enumerate(np.argsort(us[:, at], kind="stable")[:RANKED].tolist()):
                scores[of] += share / 2**index
        fresh = [of for of in np.argsort(-scores, kind="stable").tolist() if scores[of] > 0 and todo[names[of]]]
        names_asked = fresh[: max(1, round(size * (1 - EXPLORE)))]
        behind = np.log(us / least).mean(axis=1)
        rest = [
            of for of in np.argsort(behind, kind="stable").tolist() if of not in names_asked and names[of] not in self.timed
        ]
        pool = rest[: max(len(rest) // 2, size)]
        names_asked += [
            pool[position] for position in self._random.permutation(len(pool))[: size - len(names_asked)].tolist()
        ]
        return [(names[of], todo[names[of]]) for of in names_asked if todo[names[of]]]

    def _shared(self, names: Sequence[str]) -> dict[str, list[Key]]:
        """Keys that opinions of the start would time first, by kernel; empty with enough times (``probes.py``)."""
        tasks = [[(name, self.grids[name].tiles(extent), 1, self.task.cache) for name in names] for extent in self.extents]
        result: dict[str, list[Key]] = {}
        for key in self.surface.head(tasks, self.failed):
            result.setdefault(key[0], []).append(key)
        return result

    def _todo(self, own: Floats, least: Floats, chosen: Sequence[Key]) -> list[Key]:
        """Keys at which a kernel is timed: near the best, evenly over the shapes."""
        near = np.flatnonzero(own <= least * NEAR).tolist()
        if len(near) < FEWEST:
            near = sorted(np.argsort(own / least, kind="stable")[:FEWEST].tolist())
        picked = np.unique(np.round(np.linspace(0, len(near) - 1, min(MOST, len(near)))).astype(int)).tolist()
        return [key for key in dict.fromkeys(chosen[near[position]] for position in picked) if key not in self.surface.us]

    def _time(self, batch: Sequence[tuple[str, list[Key]]], *, whatever: int = 0) -> None:
        """Build and time kernels while there is time; the first ``whatever`` of them even without."""
        trials = {name: [trial_of(self.task, key, self.grids[name]) for key in keys] for name, keys in batch}
        unknown = [name for name, trial in trials.items() if any(self.lab.known(trial) is None for trial in trial)]
        self.lab.prepare(unknown, self.clock.goes_on)
        for index, (name, keys) in enumerate(batch):
            goes_on = self.clock.not_given_up if index < whatever else self.clock.goes_on
            for key, trial in zip(keys, trials[name], strict=True):
                for record in self.lab.measure([trial], goes_on):
                    self._note(key, record)
                if name in self.failed:  # it may have cost a process; it is not asked again
                    break

    def _note(self, key: Key, record: Record) -> None:
        if isinstance(record.outcome, Timed):
            self.surface.note(key, record.outcome.median_us)
            self.timed.add(key[0])
        else:
            self.failed.add(key[0])

    def _value(self) -> float:
        """Mean over the traffic of the least measured time of each shape; infinite where nothing is measured."""
        names = [name for name in self._sound() if name in self.timed]
        return float(self.shares @ self._best(names)[0].min(axis=0)) if names else np.inf

    def _settled(self) -> bool:
        """True if the best of every shape that carries much of the traffic is a kernel that was timed."""
        names = self._sound()
        us, _ = self._best(names)
        first = us.argmin(axis=0).tolist()
        return all(names[of] in self.timed or share < 1e-2 for of, share in zip(first, self.shares.tolist(), strict=True))

    def keep(self) -> tuple[list[MicroKernel], float]:
        """The kernels to keep, and the share of time lost against all of them. HaotunerError if all failed."""
        sound = self._sound()
        names = [name for name in sound if name in self.timed] or sound
        if not names:
            seen = ", ".join(f"{count} {reason}" for reason, count in sorted(self.lab.failures.items()))
            raise HaotunerError(
                f"{self.task.op.name}: every candidate failed ({seen}); look at them with `haotuner records check`, "
                "or at the toolchain with `haotuner doctor`"
            )
        us, _ = self._best(names)
        chosen = assign(us, self.shares)
        lost = float(self.shares @ (us[chosen].min(axis=0) / us.min(axis=0)) - 1)
        return [self.kernels[names[position]] for position in chosen], lost


def trial_of(task: Task, key: Key, grid: Grid) -> Trial:
    """Trial of a kernel at whole tiles, with its sum in so many parts."""
    name, tiles, parts, cache = key
    shape = Shape.of({task.op.dynamic[0]: tiles * grid.rows})
    return Trial.of(task.op, Composition.of(name, share=in_parts(parts)), shape, cache=cache)


def _parts(task: Task, device: Device) -> tuple[int, ...]:
    """Into how many parts the sum over k may be split."""
    ways = backend_for(device).ways(task.op, 1, one_order=task.one_order)
    return tuple(dict.fromkeys(sum_parts(way) for way in ways))


def _compared(task: Task) -> tuple[list[int], Floats]:
    """Extents at which kernels are compared, spread over the traffic in log space, and the share that each stands for."""
    axis = task.op.dynamic[0]
    every = [(shape[axis], share) for shape, share in task.traffic]
    extents = sorted({extent for extent, _ in every})
    picked = list(_spread(extents))
    logs = np.log(picked)
    shares = np.zeros(len(picked))
    for extent, share in every:
        shares[int(np.abs(logs - np.log(extent)).argmin())] += share
    return picked, np.asarray(shares, np.float64)


def _spread(extents: Sequence[int]) -> Iterator[int]:
    if len(extents) <= SHAPES:
        yield from extents
        return
    logs = np.log(extents)
    at = np.abs(logs[:, None] - np.linspace(logs[0], logs[-1], SHAPES)).argmin(axis=0)
    yield from (extents[position] for position in sorted(set(at.tolist())))
