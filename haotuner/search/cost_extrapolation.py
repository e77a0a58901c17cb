"""Cost estimates of kernels at any shape: times are carried from shape to shape by them (decision 456).

A plan that rests on predictions alone asks them in every cell (decision 554).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import demand
from haotuner.cost.machine import machine
from haotuner.cost.model import CostModel
from haotuner.cost.roofline import expected_us
from haotuner.microkernels.index import family_of
from haotuner.ops.convolution import is_convolution
from haotuner.plan.cells import CostExtrapolator
from haotuner.search.compared import of_a_call
from haotuner.search.cross_family_cost import expected_by_family
from haotuner.search.task import Task
from haotuner.spec.composition import Composition
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.shape import Shape

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
