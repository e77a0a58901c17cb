"""Cost estimates of kernels of an op's families, on one scale: the first family, and others beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.features import features
from haotuner.cost.model import Analytic, CostModel, ensemble_predictions
from haotuner.cost.roofline import roofline_us
from haotuner.search.compared import of_a_call
from haotuner.search.task import Task
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

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
