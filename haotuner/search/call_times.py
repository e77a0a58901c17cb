"""What a tuned op's calls are expected to take at any shape: what was timed near it, carried on by the roofline."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from haotuner.cost.roofline import roofline_us
from haotuner.plan.cells import CellTable
from haotuner.plan.table import PlanTable
from haotuner.search.task import Tuned
from haotuner.words.device import Device
from haotuner.words.shape import Shape


def table_of(tuned: Tuned, threads: int) -> PlanTable:
    """The plan of a thread count; of another one the first."""
    return next((table for table in tuned.tables if table.threads == threads), tuned.tables[0])


def calls_us(tuned: Tuned, shapes: Sequence[Shape], device: Device, threads: int = 1) -> list[float]:
    """Microseconds of a call at each shape. Of shapes without a time: those of the nearest with one, by their rooflines."""
    table, op = table_of(tuned, threads), tuned.task.op
    if not isinstance(table, CellTable):
        limit, found = len(table.entries), []
        for shape in shapes:
            extent = shape[table.axis]
            us = table.at(Shape.of({table.axis: min(extent, limit)})).us
            found.append(us * max(1.0, extent / limit))
        return found
    known = {shape: us for shape, times in table.measured.items() if (us := times.get(table.at(shape), math.inf)) < math.inf}
    if not known:
        known = {shape: min(times.values()) for shape, times in table.measured.items() if times}
    if not known:
        return [math.inf] * len(shapes)
    near = list(known)
    least = dict(zip([*near, *shapes], roofline_us(device, op, [*near, *shapes]).tolist(), strict=True))
    places = np.log([[extent for _, extent in shape.axes] for shape in near])
    found = []
    for shape in shapes:
        own = np.log([extent for _, extent in shape.axes])
        nearest = near[int(np.linalg.norm(places - own, axis=1).argmin())]
        found.append(known[shape] if shape in known else known[nearest] * least[shape] / least[nearest])
    return found


def traffic_us(tuned: Tuned, device: Device, threads: int = 1) -> float:
    """Microseconds of a call, the mean over the task's traffic; infinite where nothing was timed."""
    if not tuned.measured:
        return math.inf
    pairs = list(tuned.task.traffic)
    us = calls_us(tuned, [shape for shape, _ in pairs], device, threads)
    return float(sum(share * one for one, (_, share) in zip(us, pairs, strict=True)))
