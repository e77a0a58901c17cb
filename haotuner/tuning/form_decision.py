"""Decision which forms of a model are served: by times of tuned kernels, then by a race of whole packs.

Until here a model's forms are all tuned. A form that is not raced must save as much as expectations err.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from haotuner.partition.cost_estimate import predicted_us
from haotuner.partition.form_choice import MEASURED, TUNED
from haotuner.partition.tasks import ModelTask, reassembled
from haotuner.search.task import Tuned
from haotuner.spec.device import Device

UNMEASURED = 0.25  # share of its own work that a form must save by times of its kernels alone, which err less
NOISE = 0.02  # of a raced request's time, below which the model's own form stays
Race = Callable[[ModelTask], list[dict[str, float]] | None]  # microseconds of each form by request


def decided(
    models: Sequence[ModelTask], tuned: Sequence[Tuned], device: Device, threads: int, race: Race | None = None
) -> tuple[ModelTask, ...]:
    """The models with the forms that they are served in; those without open forms as they are.

    Args:
        models: of one pack.
        tuned: results of all ops, those of forms too.
        device: what they were tuned for.
        threads: of the times.
        race: of a model in each of its forms; None: nothing is raced.
    """
    result = tuple(models)
    for index, model in enumerate(models):
        if model.open_forms:
            us, basis = _times(model, tuned, device, threads, race)
            changed = (*result[:index], result[index].with_forms(us, basis), *result[index + 1 :])
            result = reassembled(changed, index)
    return result


def _times(
    model: ModelTask, tuned: Sequence[Tuned], device: Device, threads: int, race: Race | None
) -> tuple[list[list[float]], str]:
    """Microseconds of each form at each request, with what a form must save, and what they are."""
    names = [";".join(f"{name}={size}" for name, size in request.items()) for request in model.prices.requests]
    variants = [predicted_us(model.in_form(number), tuned, device, threads) for number in range(model.form_count)]
    estimates = np.array([[row[name]["all"] if name in row else np.inf for name in names] for row in variants])
    estimates[~np.isfinite(estimates)] = np.nanmax(np.where(np.isfinite(estimates), estimates, 1.0)) * 10
    us = estimates.copy()
    raced = race(model) if race is not None else None
    if raced is None:
        basis = TUNED
        for forms in (item for item in model.forms if item.plans):
            us[: len(forms.plans) + 1] = forms.less_sure(us[: len(forms.plans) + 1], UNMEASURED)
    else:
        basis = MEASURED
        scale = np.median([row[name] / estimates[at, names.index(name)] for at, row in enumerate(raced) for name in row])
        us = np.array(
            [[row.get(name, scale * estimates[at, n]) for n, name in enumerate(names)] for at, row in enumerate(raced)]
        )
        us[1:] /= 1 - NOISE
    return us.tolist(), basis
