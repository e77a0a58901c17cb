"""Copying: a source's own measurements as the target's ranking, where the same trial was measured."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.cost.model import Scores
from haotuner.transfer.sources import Scale
from haotuner.transfer.table import Table
from haotuner.words.record import Trial


def said_by(sources: Sequence[Table], trials: Sequence[Trial]) -> Scores:
    """Each source's measurement of each trial in standard units, ``(trials, sources)``; NaN where it has none."""
    said = np.full((len(trials), len(sources)), np.nan)
    for column, table in enumerate(sources):
        units = Scale.of(table.labels).units(table.labels)
        known = dict(zip(table.trials, units.tolist(), strict=True))
        said[:, column] = [known.get(trial, np.nan) for trial in trials]
    return said


def copied(said: Scores, weights: Scores) -> Scores:
    """Weighted mean over the sources that measured a trial, shape ``(trials,)``; NaN if none did.

    With one weight of 1 this is copying the nearest source, with equal weights the mean of all.
    """
    there = ~np.isnan(said)
    mass = there @ weights
    total = np.where(there, said, 0.0) @ weights
    return np.asarray(np.where(mass > 0, total / np.where(mass > 0, mass, 1.0), np.nan), dtype=np.float64)
