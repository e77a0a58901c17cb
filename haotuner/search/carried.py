"""What the analysis expects of kernels at any shape: times are carried from shape to shape by it (decision 456)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.families import demand
from haotuner.cost.machine import machine
from haotuner.cost.roofline import expected_us
from haotuner.microkernels.index import family_of
from haotuner.ops.convolution import is_convolution
from haotuner.plan.cells import Carried
from haotuner.search.compared import of_a_call
from haotuner.search.task import Task
from haotuner.words.composition import Composition
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.shape import Shape


def analysis_us(task: Task, pairs: Sequence[tuple[MicroKernel, Shape]], device: Device) -> NDArray[np.float64]:
    """Microseconds of each pair on one thread: tiles, full or not, and traffic."""
    one, found = of_a_call(device), np.zeros(len(pairs))
    for name in {kernel.family for kernel, _ in pairs}:
        own = [place for place, (kernel, _) in enumerate(pairs) if kernel.family == name]
        some = [pairs[place] for place in own]
        family = family_of(some[0][0], task.op)
        found[own] = expected_us(one, demand(one, family, task.op, some, weights=task.cache))
    return found


def carried(task: Task, device: Device) -> Carried | None:
    """What plans carry times by: of convolutions on CPUs, where the analysis was held against times."""
    if not is_convolution(task.op.kind) or machine(device).waves_hide_latency:
        return None

    def expected(compositions: Sequence[Composition], shapes: Sequence[Shape]) -> NDArray[np.float64]:
        kernels = [MicroKernel.parse(one.parts[0].kernel) for one in compositions]
        pairs = [(kernel, shape) for kernel in kernels for shape in shapes]
        return analysis_us(task, pairs, device).reshape(len(kernels), len(shapes))

    every = task.traffic.shapes()
    ranges = {axis: (min(s[axis] for s in every), max(s[axis] for s in every)) for axis in task.op.dynamic}
    return Carried(ranges, expected)
