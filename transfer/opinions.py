"""Opinions: what one source alone, all of them alike, a plain model or the analysis says of a target's rows.

Each is a way to rank that anybody could use without the rest of this folder; what transfer does is held against them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from haotuner.cost.model import Analytic, Scores
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.sources import copied, plain

COPY_OF = "copy of "  # and the source's id
COPY_MEAN, PLAIN, ANALYSIS = "copy-mean", "plain", "analytic"


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
    found = {name: measured_first(values) for name, values in copies.items() if not np.isnan(values).all()}
    return found | {PLAIN: plain(tables, target, seed), ANALYSIS: Analytic().predict(target.frame)}


def measured_first(values: Scores) -> Scores:
    """The values with what is missing below all of them."""
    return np.where(np.isnan(values), np.nanmin(values) - 1.0, values)


def best_single(baselines: Mapping[str, Mapping[str, float]], key: str) -> tuple[str, float]:
    """With hindsight: which opinion alone did best by a score, and what it reached."""
    single = {
        name: scores[key]
        for name, scores in baselines.items()
        if name.startswith(COPY_OF) or name in (COPY_MEAN, PLAIN, ANALYSIS)
    }
    name = max(single, key=lambda each: single[each])
    return name, float(single[name])
