"""Opinions each alone, as judging holds transfer against them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from haotuner.cost.features import NAMES
from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Analytic, Scores
from haotuner.spec.record import Trial
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.experts import ANALYSIS, COPY_MEAN, COPY_OF, PLAIN
from haotuner.transfer.sources import Scale, copied

PLAIN_TREES = Settings(trees=100, feature_share=0.5, slope=0.0)


def single_opinions(target: DeviceTable, tables: Sequence[DeviceTable], known: Scores, seed: int) -> dict[str, Scores]:
    """Scores of every row by each opinion alone, ``(rows,)`` each; copies that know no row at all are left out.

    Args:
        target: the rows asked about; their labels are not looked at.
        tables: the sources.
        known: what each source measured of the rows, as ``measured_by`` gives it.
        seed: of the plain model's forest.
    """
    copies = {f"{COPY_OF}{table.device.id}": known[:, column] for column, table in enumerate(tables)}
    copies[COPY_MEAN] = copied(known, np.full(len(tables), 1.0 / len(tables)))
    result = {name: measured_first(values) for name, values in copies.items() if not np.isnan(values).all()}
    return result | {PLAIN: plain(tables, target, seed), ANALYSIS: Analytic().predict(target.frame)}


def measured_first(values: Scores) -> Scores:
    """The values with what is missing below all of them."""
    return np.where(np.isnan(values), np.nanmin(values) - 1.0, values)


def plain(tables: Sequence[DeviceTable], target: DeviceTable, seed: int) -> Scores:
    """Scores of a target's rows by one LightGBM forest over all features of all sources, without any of the above.

    The way of TenSet's joint model (Zheng et al., 2021); the figure that transfer is to improve on.
    """
    frame = pd.concat([table.frame for table in tables], ignore_index=True)
    labels = np.concatenate([Scale.of(table.labels).units(table.labels) for table in tables])
    return Forest(seed=seed, settings=PLAIN_TREES).fit(frame[list(NAMES)], labels).predict(target.frame)


def measured_by(sources: Sequence[DeviceTable], trials: Sequence[Trial]) -> Scores:
    """Each source's measurement of each trial in standard units, ``(trials, sources)``; NaN where it has none."""
    answer = np.full((len(trials), len(sources)), np.nan)
    for column, table in enumerate(sources):
        units = Scale.of(table.labels).units(table.labels)
        known = dict(zip(table.trials, units.tolist(), strict=True))
        answer[:, column] = [known.get(trial, np.nan) for trial in trials]
    return answer
