"""Expected times of a tuned op's calls at any shape: what was timed near it, carried on by the analysis."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from haotuner.plan.cells import CellTable, nearest
from haotuner.plan.table import PlanTable
from haotuner.search.cost_extrapolation import analysis_us
from haotuner.search.task import Tuned
from haotuner.spec.device import Device
from haotuner.spec.shape import Shape


def table_of(tuned: Tuned, threads: int) -> PlanTable:
    """The plan of a thread count; of another one the first."""
    return next((table for table in tuned.tables if table.threads == threads), tuned.tables[0])


def calls_us(tuned: Tuned, shapes: Sequence[Shape], device: Device, threads: int = 1) -> list[float]:
    """Microseconds of a call at each shape.

    A shape without a time takes what the analysis expects of the kernel that serves it, times how far that is off at the
    shapes around it that have one.
    """
    table = table_of(tuned, threads)
    if not isinstance(table, CellTable):
        limit, result = len(table.entries), []
        for shape in shapes:
            extent = shape[table.axis]
            us = table.at(Shape.of({table.axis: min(extent, limit)})).us
            result.append(us * max(1.0, extent / limit))
        return result
    known = {shape: us for shape, times in table.measured.items() if (us := times.get(table.at(shape), math.inf)) < math.inf}
    if not known:
        known = {shape: min(times.values()) for shape, times in table.measured.items() if times}
    if not known:
        return [math.inf] * len(shapes)
    near, every = list(known), list({*known, *shapes})
    expected = dict(zip(every, _expected_us(tuned, table, every, device), strict=True))
    places = np.log([[extent for _, extent in shape.axes] for shape in near])
    off = np.log([known[shape] / expected[shape] for shape in near])
    result = []
    for shape in shapes:
        around, weight = nearest(places, np.log([extent for _, extent in shape.axes]))
        usual = math.exp(weight @ off[around] / weight.sum())
        result.append(known[shape] if shape in known else expected[shape] * usual)
    return result


def _expected_us(tuned: Tuned, table: CellTable, shapes: Sequence[Shape], device: Device) -> list[float]:
    """Analytic time of the kernel that serves each shape, in us, on one thread: tiles, full or not, and traffic."""
    pairs = [(table.at(shape).kernels[0], shape) for shape in shapes]
    return [float(us) for us in analysis_us(tuned.task, pairs, device)]


def traffic_us(tuned: Tuned, device: Device, threads: int = 1) -> float:
    """Microseconds of a call, the mean over the task's traffic; infinite where nothing was timed."""
    if not tuned.measured:
        return math.inf
    pairs = list(tuned.task.traffic)
    us = calls_us(tuned, [shape for shape, _ in pairs], device, threads)
    return float(sum(share * time_us for time_us, (_, share) in zip(us, pairs, strict=True)))
