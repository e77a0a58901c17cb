"""Scores of a ranking on a target: averages over tasks, with what was measured counted as found."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haotuner.cost.model import Scores
from haotuner.cost.scores import pairwise_accuracy
from haotuner.transfer.device_table import NOTHING, DeviceTable, Rows

KEYS = ("pairwise", "best@1", "best@5", "best@10")
_AT = {"best@1": 1, "best@5": 5, "best@10": 10}


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetScores:
    """The rows of a target that are scored, task by task."""

    throughput: Scores
    labels: Scores
    groups: tuple[Rows, ...]

    @staticmethod
    def of(table: DeviceTable) -> TargetScores:
        """The scores of a table's rows; ValueError if no task has two rows."""
        groups = tuple(table.groups())
        if not groups:
            raise ValueError(f"{table.family} on {table.device.id}: no task has two measured kernels to rank")
        return TargetScores(throughput=table.efficiency(), labels=table.labels, groups=groups)

    def score(self, text: Scores, measured: Rows = NOTHING) -> dict[str, float]:
        """Mean over tasks of pairwise accuracy among unmeasured rows and of best@k, measured rows counted as found."""
        totals = {key: 0.0 for key in KEYS}
        for rows in self.groups:
            result, left = self._split(rows, measured)
            totals["pairwise"] += pairwise_accuracy(text[left], self.labels[left]) if len(left) > 1 else 1.0
            order = left[np.argsort(-text[left], kind="stable")]
            best = float(self.throughput[rows].max())
            for key, k in _AT.items():
                seen = np.concatenate([result, order[:k]])
                totals[key] += float(self.throughput[seen].max()) / best
        return {key: total / len(self.groups) for key, total in totals.items()}

    def _split(self, rows: Rows, measured: Rows) -> tuple[Rows, Rows]:
        here = np.isin(rows, measured)
        return rows[here], rows[~here]
