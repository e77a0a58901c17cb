"""Cost estimates of kernels at any shape, across families: times are carried from measured shapes.

Shapes at which candidates are compared: where most of the time of the traffic goes first, then far from each other.

Cost estimates of kernels of an op's families, on one scale: the first family, and others beside it.

A plan that rests on predictions alone asks them in every cell (decision 554).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import demand
from haotuner.cost.features import features
from haotuner.cost.machine import machine
from haotuner.cost.model import Analytic, CostModel, ensemble_predictions
from haotuner.cost.roofline import expected_us, roofline_us
from haotuner.microkernels.index import family_of
from haotuner.ops.convolution import is_convolution
from haotuner.plan.table import CellTable, CostExtrapolator, PlanTable, nearest
from haotuner.search.task import Task, Tuned
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

TRIALS = 500  # calls of a budget at least: a shape whose call takes more of it, at the roofline, is not raced at
LEAST_LIMIT_US = 2_000.0  # but never so small a shape is left out


def of_a_call(device: Device) -> Device:
    """Device that times of one thread are of: a CPU's core, all of a GPU."""
    return device if machine(device).waves_hide_latency else device.with_units(1)


def compared(task: Task, device: Device, most: int) -> list[Shape]:
    """At most so many shapes at which micro-kernels race: spread over those of which a call leaves time for many more.

    The first is the one that the traffic is expected to spend most time at; so a race that ends early has timed what counts.
    Where every call is too long, it is the shortest one alone.
    """
    every, limit_us = _heaviest_first(task, device), _limit_us(task)
    short = [shape for shape, us in every if us <= limit_us]
    return spread(short or [min(every, key=lambda item: item[1])[0]], most)


def too_long(task: Task, device: Device, timed: Sequence[Shape], most: int) -> list[Shape]:
    """At most so many shapes whose calls are too long for a race, far from the ``timed`` ones and from each other."""
    limit_us = _limit_us(task)
    long = [shape for shape, us in _heaviest_first(task, device) if us > limit_us and shape not in timed]
    return spread([*timed, *long], len(timed) + most, len(timed))[len(timed) :]


def expected_at(task: Task, device: Device, most: int) -> list[Shape]:
    """At most so many shapes at which expectations compare micro-kernels, however long their calls; the heaviest first."""
    return spread([shape for shape, _ in _heaviest_first(task, device)], most)


def _heaviest_first(task: Task, device: Device) -> list[tuple[Shape, float]]:
    """Shapes of the traffic with microseconds of a call at the roofline, by the time that the traffic spends at each."""
    pairs = [(shape, share) for shape, share in task.traffic if share > 0]
    least = np.asarray(roofline_us(of_a_call(device), task.op, [shape for shape, _ in pairs]), np.float64).tolist()
    items = [(share * us, shape, us) for (shape, share), us in zip(pairs, least, strict=True)]
    return [(shape, us) for _, shape, us in sorted(items, key=lambda item: (-item[0], item[1].axes))]


def _limit_us(task: Task) -> float:
    """Most microseconds of a call that is raced, the same in every turn; without a budget there is no limit."""
    seconds = task.whole_s or task.budget_s
    return max(seconds * 1e6 / TRIALS, LEAST_LIMIT_US) if seconds else math.inf


def spread(shapes: Sequence[Shape], most: int, first: int = 1) -> list[Shape]:
    """At most so many of the shapes, the ``first`` ones first, each later one far from those before it in log space."""
    places = np.log([[extent for _, extent in shape.axes] for shape in shapes])
    chosen = list(range(first))
    nearest = np.min([np.linalg.norm(places - places[at], axis=1) for at in chosen], axis=0)
    while len(chosen) < min(most, len(shapes)):
        chosen.append(int(nearest.argmax()))
        nearest = np.minimum(nearest, np.linalg.norm(places - places[chosen[-1]], axis=1))
    return [shapes[position] for position in chosen]


# How much faster another family must be expected to be where nothing will be timed: models err by as much.
UNTIMED, UNTIMED_SAME = 1.5, 1.1  # one of other programs, one of the first family's


@runtime_checkable
class Compared(Protocol):
    """A family beside the first that knows what it saves against the first one, beyond what an analysis of tiles counts."""

    def against_first(self, op: Op, shapes: Sequence[Shape]) -> NDArray[np.float64]:
        """Expected time over that of the first family by the same tile, at each shape."""
        ...


def has_first_programs(family: Family) -> bool:
    """True if a family beside the first runs its programs on operands laid out otherwise, so that one analysis fits both."""
    return bool(getattr(family, "first_programs", False))


def expected_by_family(
    task: Task,
    device: Device,
    families: Sequence[Family],
    each: Sequence[Sequence[MicroKernel]],
    model: CostModel | None,
    shapes: Sequence[Shape],
) -> list[NDArray[np.float64]]:
    """Microseconds of the candidates of each family that has some, ``(kernels, shapes)``; others than the first doubted.

    Where a model knows the first family, others of its programs are put on that model's scale: at each shape times how far
    the best that it expects of the first one is from the best by analysis.
    """
    result: list[NDArray[np.float64]] = []
    for index, (family, some) in enumerate(zip(families, each, strict=True)):
        if not some:
            continue
        own = model if index == 0 else task.others.get(family.name)
        us = predicted_us(task, family, device, own, some, shapes)
        if index > 0 and own is None and has_first_programs(family) and model is not None and each[0]:
            analysed = predicted_us(task, families[0], device, None, each[0], shapes)
            us = us * result[0].min(axis=0) / analysed.min(axis=0)
        if index > 0 and own is None and isinstance(family, Compared):
            us = us * family.against_first(task.op, shapes)
        doubt = 1.0 if index == 0 or task.budget_s > 0 else UNTIMED_SAME if has_first_programs(family) else UNTIMED
        result.append(us * doubt)
    return result


def predicted_us(
    task: Task,
    family: Family,
    device: Device,
    model: CostModel | None,
    kernels: Sequence[MicroKernel],
    shapes: Sequence[Shape],
) -> NDArray[np.float64]:
    """Expected microseconds of each kernel at each shape on one thread, of shape ``(kernels, shapes)``."""
    return np.asarray(predicted_by_each(task, family, device, model, kernels, shapes)[0], np.float64)


def predicted_by_each(
    task: Task,
    family: Family,
    device: Device,
    model: CostModel | None,
    kernels: Sequence[MicroKernel],
    shapes: Sequence[Shape],
) -> NDArray[np.float64]:
    """Times in us by the model and then by each opinion that it rests on, of shape ``(1 + opinions, kernels, shapes)``."""
    single_call = of_a_call(device)
    pairs = [(kernel, shape) for kernel in kernels for shape in shapes]
    predictions = ensemble_predictions(
        model or Analytic(), features(single_call, family, task.op, pairs, weights=task.cache)
    )
    roof = np.asarray(roofline_us(single_call, task.op, [shape for _, shape in pairs]), np.float64)
    return np.asarray((roof / np.exp(predictions)).reshape(-1, len(kernels), len(shapes)), np.float64)


# Cells of a plan that is predicted cell by cell, each of which costs a count of every kept program: of up to two axes, and
# of more, where 144 would be five an axis and the middle of one says little of its ends.
PREDICTED_CELLS, PREDICTED_CELLS_OF_MANY = 144, 512
# Of such a wide cell the middle alone may be where a kernel's last wave is all but empty. Beyond three axes it begins again.
PLACES_OF_MANY = ((0.25, 0.25, 0.25), (0.25, 0.75, 0.5), (0.75, 0.25, 0.5), (0.75, 0.75, 0.75), (0.9, 0.9, 0.9))


def analysis_us(task: Task, pairs: Sequence[tuple[MicroKernel, Shape]], device: Device) -> NDArray[np.float64]:
    """Microseconds of each pair on one thread: tiles, full or not, and traffic."""
    single_call, times_us = of_a_call(device), np.zeros(len(pairs))
    for name in {kernel.family for kernel, _ in pairs}:
        own = [index for index, (kernel, _) in enumerate(pairs) if kernel.family == name]
        some = [pairs[position] for position in own]
        family = family_of(some[0][0], task.op)
        times_us[own] = expected_us(single_call, demand(single_call, family, task.op, some, weights=task.cache))
    return times_us


def extrapolated(task: Task, device: Device, families: Sequence[Family], model: CostModel | None) -> CostExtrapolator | None:
    """Cost estimates of plans: predictions where nothing is timed, the analysis of convolutions on CPUs, else None."""
    if predicts_cells(task, device):
        return _predicted(task, device, families, model)
    if is_convolution(task.op.kind) and not machine(device).waves_hide_latency:
        return _analysed(task, device)
    return None


def predicts_cells(task: Task, device: Device) -> bool:
    """True if nothing is timed and cells are told apart by what is expected in each: on GPUs, whose kernels are alike."""
    return task.budget_s == 0 and machine(device).waves_hide_latency


def _analysed(task: Task, device: Device) -> CostExtrapolator:
    """Cost estimates of the analysis, where it was held against times."""

    def expected(compositions: Sequence[Composition], shapes: Sequence[Shape]) -> NDArray[np.float64]:
        kernels = [composition.kernels[0] for composition in compositions]
        pairs = [(kernel, shape) for kernel in kernels for shape in shapes]
        return analysis_us(task, pairs, device).reshape(len(kernels), len(shapes))

    return CostExtrapolator(_ranges(task), expected)


def _predicted(task: Task, device: Device, families: Sequence[Family], model: CostModel | None) -> CostExtrapolator:
    """Cost estimates for plans of predictions in each cell: the same as at the shapes of the race."""

    def expected(compositions: Sequence[Composition], shapes: Sequence[Shape]) -> NDArray[np.float64]:
        kernels = [composition.kernels[0] for composition in compositions]
        places = [[at for at, kernel in enumerate(kernels) if kernel.family == family.name] for family in families]
        each = [[kernels[at] for at in own] for own in places]
        result = np.empty((len(kernels), len(shapes)))
        result[[at for own in places for at in own]] = np.concatenate(
            expected_by_family(task, device, families, each, model, shapes)
        )
        return result

    axes = len(task.op.dynamic)
    if axes < 3:
        return CostExtrapolator(_ranges(task), expected, PREDICTED_CELLS)
    grid = [[position[at % len(position)] for at in range(axes)] for position in PLACES_OF_MANY]
    return CostExtrapolator(_ranges(task), expected, PREDICTED_CELLS_OF_MANY, grid)


def _ranges(task: Task) -> dict[str, tuple[int, int]]:
    every = task.traffic.shapes()
    return {axis: (min(s[axis] for s in every), max(s[axis] for s in every)) for axis in task.op.dynamic}


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
