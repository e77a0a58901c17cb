"""Copying: a source's own measurements as the target's ranking, where the same trial was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.cost.model import Scores
from haotuner.record import Trial
from haotuner.transfer.sources import Scale
from haotuner.transfer.table import Table


def copied(sources: Sequence[Table], weights: Scores, trials: Sequence[Trial]) -> Scores:
    """Weighted mean of the sources' labels in standard units, over the sources that measured a trial; NaN if none did.

    With one weight of 1 this is copying the nearest source, with equal weights the mean of all.
    """
    total, mass = np.zeros(len(trials)), np.zeros(len(trials))
    for table, weight in zip(sources, weights.tolist(), strict=True):
        scale = Scale.of(table.labels)
        known = dict(zip(table.trials, scale.units(table.labels).tolist(), strict=True))
        said = np.array([known.get(trial, np.nan) for trial in trials])
        there = ~np.isnan(said)
        total[there] += weight * said[there]
        mass[there] += weight
    with np.errstate(invalid="ignore"):
        return np.asarray(np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), np.nan), dtype=np.float64)
