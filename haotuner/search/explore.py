"""Exploration of a space of schedules with a policy: which programs the race of ``grid_search.py`` then looks at.

Rounds of a few programs, each timed at a few shapes that are far from each other; what came out is told to the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.index import backend_for
from haotuner.codegen.schedule import Schedule
from haotuner.codegen.space import Point, Space
from haotuner.codegen.template import Template
from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.errors import UsageError
from haotuner.measure.measurer import Measurer
from haotuner.search.policies.index import POLICIES
from haotuner.search.stages import staged
from haotuner.search.task import Clock, Task
from haotuner.spec.composition import SERIAL, Composition
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Timed, Trial
from haotuner.spec.shape import Shape

ROUND = 8  # programs: two builders, one library each
QUIET = 4  # rounds without a better program before the exploration ends
BETTER = 0.005  # log units of the mean: a smaller gain is noise
HOPELESS = 20.0  # times the best expectation at some shape: such a program is not timed, it may take seconds
PRICED = 2  # shapes at which all that a policy looks at is expected: counting a program takes as long as tens of timings
FOUND = 10  # programs that go on to the race, the best on the mean; the best at each shape besides


@runtime_checkable
class Explorable(Protocol):
    """A family whose kernels are schedules of a space."""

    name: str

    def space(self, op: Op, device: Device) -> Space:
        """Every schedule of an op's program."""
        ...

    def kernel_of(self, schedule: Schedule, op: Op) -> MicroKernel:
        """The micro-kernel of a schedule."""
        ...


def check_template(template: Template, space: Space, op: Op) -> None:
    """UsageError for a template that an op's space does not know, or that leaves no schedule of it."""
    template.check(space.knobs, op.name)
    if not replace(space, template=template).points:
        raise UsageError(f"{template.source}: no schedule of {op.name} has all of these values; allow more of them")


def explored(task: Task, lab: Measurer, family: Explorable, shapes: Sequence[Shape], clock: Clock) -> list[MicroKernel]:
    """Programs that a policy found, best first; empty where none could be timed."""
    ways = Ways.of(task, lab.device, family)
    space = replace(family.space(task.op, lab.device), workers=ways.threads, template=task.template)
    single_unit = lab.device.with_units(1)
    ends = shapes if len(shapes) <= PRICED else (shapes[0], shapes[-1])

    def expected(points: Sequence[Point]) -> NDArray[np.float64]:
        schedules = [space.schedule(point) for point in points]
        pairs = [(family.kernel_of(schedule, task.op), shape) for schedule in schedules for shape in ends]
        us = expected_us(single_unit, demand(single_unit, family, task.op, pairs, weights=task.cache))
        workers = [[ways.workers(schedule, task.op, shape) for shape in ends] for schedule in schedules]
        result: NDArray[np.float64] = np.log(us.reshape(len(points), len(ends)) / np.array(workers))
        return result

    policy = POLICIES[task.search](space, expected, task.seed)
    logs: dict[Point, NDArray[np.float64]] = {}
    best, quiet, least_predicted = np.inf, 0, np.full(len(ends), np.inf)
    while quiet < QUIET and clock.goes_on():
        points_ = policy.ask(ROUND)
        if not points_:
            break
        predicted = dict(zip(points_, expected(points_), strict=True))
        least_predicted = np.minimum(least_predicted, np.min(list(predicted.values()), axis=0))
        hopeless = [point for point in points_ if (predicted[point] - least_predicted).max() > np.log(HOPELESS)]
        schedules = {point: space.schedule(point) for point in points_ if point not in hopeless}
        kernels = {point: family.kernel_of(schedule, task.op) for point, schedule in schedules.items()}
        lab.prepare([kernel.name for kernel in kernels.values()])
        times = [(point, np.inf) for point in hopeless]
        for point, kernel in kernels.items():
            one_way = Composition.of(kernel.name, share=ways.of_schedule(schedules[point]))
            result = _logs(task, lab, one_way, ways, shapes, clock)
            if result is None:
                break
            times.append((point, float(result.mean())))
            if np.isfinite(times[-1][1]):
                logs[point] = result
        policy.tell(times)
        least = min((score for _, score in times), default=np.inf)
        quiet = 0 if least < best - BETTER else quiet + 1
        best = min(best, least)
    points = sorted(logs, key=lambda point: float(logs[point].mean()))
    somewhere = [min(points, key=lambda point: float(logs[point][at])) for at in range(len(shapes) if points else 0)]
    best_first = [family.kernel_of(space.schedule(point), task.op) for point in [*points[:FOUND], *somewhere]]
    return list(dict.fromkeys(best_first))  # programs that differ in what workers share are one kernel


@dataclass(frozen=True, slots=True)
class Ways:
    """Ways to time points of a space: on one thread, or on all where a fold may be shared, and what they then share."""

    threads: int
    rows: str = SERIAL  # the axis of the output that threads share
    terms: str = SERIAL  # the folded axis, or that of rows which are shared in stages

    @staticmethod
    def of(task: Task, device: Device, family: object) -> Ways:
        """Those of a task."""
        threads, backend = max(task.threads), backend_for(device)
        ways = [way for way in backend.ways(task.op, threads, one_order=task.one_order) if way != SERIAL]
        own = task.op.meaning.output.axes({})
        terms = [way for way in ways if way not in own] or [staged(task, device, family)[0]]
        rows = [way for way in ways if way in own]
        return Ways(threads, (rows or [SERIAL])[0], terms[0]) if terms[0] else Ways(1)

    def of_schedule(self, schedule: Schedule) -> str:
        """Axis that threads share in a schedule's program."""
        return self.terms if schedule.parts > 1 else self.rows

    def workers(self, schedule: Schedule, op: Op, shape: Shape) -> float:
        """Threads that have something to do."""
        rows = op.extents(shape).get(self.rows, 1)
        return float(self.threads if schedule.parts > 1 else min(self.threads, rows))


def _logs(
    task: Task, lab: Measurer, composition: Composition, ways: Ways, shapes: Sequence[Shape], clock: Clock
) -> NDArray[np.float64] | None:
    """Logarithm of a program's time at each shape, infinite if it failed; None if the time was over before that."""
    result = np.full(len(shapes), np.inf)
    for at, shape in enumerate(shapes):
        trial = Trial.of(task.op, composition, shape, threads=ways.threads, cache=task.cache)
        records = lab.measure([trial], clock.goes_on)
        if not records:
            return None
        outcome = records[0].outcome
        if not isinstance(outcome, Timed):
            return np.full(len(shapes), np.inf)
        result[at] = np.log(outcome.median_us)
    return result
