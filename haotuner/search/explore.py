"""Explore a space of schedules with a policy: which programs the race of ``cells.py`` then looks at.

Rounds of a few programs, each timed at a few shapes that are far from each other; what came out is told to the policy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import demand
from haotuner.cost.roofline import expected_us
from haotuner.generate.schedule import Schedule
from haotuner.generate.space import Point, Space
from haotuner.measure.laboratory import Laboratory
from haotuner.search.clock import Clock
from haotuner.search.policies.index import POLICIES
from haotuner.search.task import Task
from haotuner.words.composition import SERIAL, Composition
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.record import Timed, Trial
from haotuner.words.shape import Shape

ROUND = 8  # programs: two builders, one library each
QUIET = 4  # rounds without a better program before the exploration ends
BETTER = 0.005  # log units of the mean: a smaller gain is noise
HOPELESS = 20.0  # times the best expectation at some shape: such a program is not timed, it may take seconds
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


def explored(task: Task, lab: Laboratory, family: Explorable, shapes: Sequence[Shape], clock: Clock) -> list[MicroKernel]:
    """Programs that a policy found, best first; empty where none could be timed."""
    space = family.space(task.op, lab.device)
    one = lab.device.with_units(1)

    def expected(points: Sequence[Point]) -> NDArray[np.float64]:
        pairs = [(family.kernel_of(space.schedule(point), task.op), shape) for point in points for shape in shapes]
        us = expected_us(one, demand(one, family, task.op, pairs, weights=task.cache))
        return np.log(us).reshape(len(points), len(shapes))

    policy = POLICIES[task.search](space, expected, task.seed)
    logs: dict[Point, NDArray[np.float64]] = {}
    best, quiet, least_said = np.inf, 0, np.full(len(shapes), np.inf)
    while quiet < QUIET and clock.goes_on():
        asked = policy.ask(ROUND)
        if not asked:
            break
        said = dict(zip(asked, expected(asked), strict=True))
        least_said = np.minimum(least_said, np.min(list(said.values()), axis=0))
        hopeless = [point for point in asked if (said[point] - least_said).max() > np.log(HOPELESS)]
        kernels = {point: family.kernel_of(space.schedule(point), task.op) for point in asked if point not in hopeless}
        lab.prepare([kernel.name for kernel in kernels.values()])
        told = [(point, np.inf) for point in hopeless]
        for point, kernel in kernels.items():
            found = _logs(task, lab, kernel, shapes, clock)
            if found is None:
                break
            told.append((point, float(found.mean())))
            if np.isfinite(told[-1][1]):
                logs[point] = found
        policy.tell(told)
        least = min((score for _, score in told), default=np.inf)
        quiet = 0 if least < best - BETTER else quiet + 1
        best = min(best, least)
    points = sorted(logs, key=lambda point: float(logs[point].mean()))
    somewhere = [min(points, key=lambda point: float(logs[point][at])) for at in range(len(shapes) if points else 0)]
    return [family.kernel_of(space.schedule(point), task.op) for point in dict.fromkeys([*points[:FOUND], *somewhere])]


def _logs(
    task: Task, lab: Laboratory, kernel: MicroKernel, shapes: Sequence[Shape], clock: Clock
) -> NDArray[np.float64] | None:
    """Logarithm of a program's time at each shape, infinite if it failed; None if the time was over before that."""
    alone = Composition.of(kernel.name, share=SERIAL)
    found = np.full(len(shapes), np.inf)
    for at, shape in enumerate(shapes):
        records = lab.measure([Trial.of(task.op.name, alone, shape, cache=task.cache)], clock.goes_on)
        if not records:
            return None
        outcome = records[0].outcome
        if not isinstance(outcome, Timed):
            return np.full(len(shapes), np.inf)
        found[at] = np.log(outcome.median_us)
    return found
