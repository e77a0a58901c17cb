"""Calibration: prior weight of each kind of opinion, chosen by scores on devices that are left out of the sources.

Scores of a ranking on a target: averages over tasks, with what was measured counted as found.

Nested: what is chosen for a target has never seen it. With its architecture left out, no relative of it is in any fold
either, and in each fold the whole architecture of the inner target is out. Folds of all families count, so that a family of
three devices need not choose by two.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from haotuner.cost.model import Scores
from haotuner.cost.scores import pairwise_accuracy
from haotuner.transfer.device_table import NOTHING, DeviceTable, Rows
from haotuner.transfer.experts import SHARES, Shares
from haotuner.transfer.reading import DeviceTables
from haotuner.transfer.sources import learn_sources
from tests.bench.transfer_study.modes import make_pool
from tests.bench.transfer_study.opinions import measured_by, single_opinions
from tests.bench.transfer_study.splits import architecture, table_of
from tests.bench.transfer_study.workers import answers_of

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
        return TargetScores(throughput=np.exp(table.labels), labels=table.labels, groups=groups)

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


KEY = "best@10"
# Coarse, as a dozen devices cannot tell finer ones apart: the default, then other weights of the kinds of opinions.
CANDIDATES: tuple[Shares, ...] = (
    SHARES,
    replace(SHARES, analysis=0.5),
    replace(SHARES, halving=4.0),
    replace(SHARES, halving=16.0),
)
SEEDS = 4  # of forests and draws, in each fold: one alone moves by 0.02
PROOF = 0.005  # by which other weights must beat the best with the default ones, in the mean of the folds


@dataclass(frozen=True, slots=True, kw_only=True)
class Fold:
    """An inner target and the sources it may learn from."""

    family: str
    target: str
    sources: tuple[str, ...]

    @property
    def key(self) -> str:
        """Text that tells the fold from every other one of the same records."""
        return f"fold {self.family} {self.target} from {','.join(self.sources)}"


def folds_for(read: DeviceTables, target: str, split: str) -> list[Fold]:
    """The folds in which an outer target, and with the split ``architecture`` every relative of it, takes no part."""
    related = split == "architecture"
    outer = {architecture(table.device) for table in read.tables if table.device.id == target}
    result = []
    for family in read.families():
        tables = [t for t in read.of(family) if t.device.id != target and not (related and architecture(t.device) in outer)]
        for inner in tables:
            others = [t for t in tables if t is not inner]
            if related:
                others = [t for t in others if architecture(t.device) != architecture(inner.device)]
            if others and inner.groups():
                result.append(Fold(family=family, target=inner.device.id, sources=tuple(t.device.id for t in others)))
    return result


def scores_of(read: DeviceTables, fold: Fold) -> list[float]:
    """Zero-shot best@10 of each candidate on the inner target of a fold."""
    target, others = table_of(read, fold.family, fold.target)
    return scores_on(target, [table for table in others if table.device.id in fold.sources])


def scores_on(target: DeviceTable, sources: Sequence[DeviceTable]) -> list[float]:
    """Zero-shot best@10 of each candidate on a target, mean over ``SEEDS``."""
    scores, known = TargetScores.of(target), measured_by(sources, target.trials)
    result = []
    for seed in range(SEEDS):
        single = single_opinions(target, sources, known, seed)
        pool = make_pool(learn_sources(sources, target.device, seed=seed), sources, target, known=known, single=single)
        answer = [replace(pool, shares=shares).zero_shot(seed) for shares in CANDIDATES]
        result.append([scores.score(each)[KEY] for each in answer])
    return [float(mean) for mean in np.mean(result, axis=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Chosen shares, and on what: the mean of each candidate, and each fold's score of the one chosen."""

    shares: Shares
    means: tuple[float, ...]
    folds: Mapping[str, float]


def chosen(result: Mapping[Fold, Sequence[float]]) -> Calibration:
    """The candidate that is best in the mean over folds, with other weights only if these are proved better.

    Without any fold, or where none can tell, it is the default.
    """
    if not result:
        return Calibration(shares=SHARES, means=(), folds={})
    means = np.mean(list(result.values()), axis=0)
    best = int(np.argmax(means))
    at = best if means[best] > means[0] + PROOF else 0
    folds = {f"{fold.family} {fold.target}": float(scores[at]) for fold, scores in result.items()}
    return Calibration(shares=CANDIDATES[at], means=tuple(means.tolist()), folds=folds)


def calibrated(
    read: DeviceTables, target: str, split: str, tell: Callable[[str], None] = lambda _: None, processes: int = 1
) -> Calibration:
    """Calibration by the folds for one target; ``tell`` hears of each."""
    folds = {fold.key: fold for fold in folds_for(read, target, split)}
    answers = answers_of(scores_of, read, folds, processes=processes, tell=tell)
    return chosen({fold: answers[key]["found"] for key, fold in folds.items()})
