"""Curves: the best that was found after each measurement, and the order in which a ranking has them made."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.cost.model import Scores
from haotuner.transfer.device_table import Rows
from tests.bench.transfer_study.calibrate import KEYS, TargetScores


def curve_of(scores: TargetScores, order: Rows) -> Scores:
    """Best found over best of all after each measurement of a sequence, mean over tasks.

    Shape ``(len(order),)``, never falling; a task without a measurement counts 0.
    """
    total = np.zeros(len(order))
    for rows in scores.groups:
        here = np.isin(order, rows)
        reached = np.maximum.accumulate(np.where(here, scores.throughput[order], 0.0))
        total += reached / float(scores.throughput[rows].max())
    return total / len(scores.groups)


def walk_down(scores: TargetScores, ranking: Scores, measured: Rows, count: int) -> Rows:
    """The next ``count`` unmeasured rows down a ranking, tasks taking turns."""
    index = np.full(len(ranking), np.inf)
    for rows in scores.groups:
        left = rows[~np.isin(rows, measured)]
        index[left[np.argsort(-ranking[left], kind="stable")]] = np.arange(len(left))
    order = np.lexsort((-ranking, index))
    return np.asarray(order[np.isfinite(index[order])][:count], dtype=np.int64)


def first_reaching(curve: Sequence[float] | Scores, share: float) -> int | None:
    """Measurements after which a curve reaches a share of the best; None if it never does."""
    reached = np.flatnonzero(np.asarray(curve) >= share)
    return int(reached[0]) + 1 if len(reached) else None


def mean_of(points: Sequence[dict[str, float]]) -> dict[str, float]:
    """Mean of each score over several scorings."""
    return {key: float(np.mean([point[key] for point in points])) for key in KEYS}
