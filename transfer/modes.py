"""Modes: ways to make the sources' knowledge and a few target measurements into a ranking of the target's kernels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import pandas as pd

from haotuner.cost.forest import Forest
from haotuner.cost.model import Scores
from haotuner.transfer.device_table import NOTHING, DeviceTable, Rows
from haotuner.transfer.residual import Residual, fit_residual
from haotuner.transfer.sources import Sources, copied, measured_by
from haotuner.transfer.started import Ranks, Started

MODES = ("zero-shot", "residual", "continue", "refit", "copy", "from-scratch")
# Beside the six in reports: what ``tune`` runs. It is not chosen from; a search has no other.
STARTED = "started"
GUIDED = "guided"  # beside the modes in reports: from scratch, the samples chosen with the help of the analysis
SAMPLE_FREE = ("zero-shot", "copy")
LEARNING = tuple(mode for mode in MODES if mode not in SAMPLE_FREE)
CONTINUED_TREES = 50
CONTINUED_RATE = 0.05  # below the usual 0.1: the new trees see few rows, the old ones many
HEAD = 32  # rows at the top of a ranking that several opinions may share: a shortlist is ten, a batch sixteen or more
_STEP = 1e-9  # log efficiency between neighbours of the head: an order, not a claim
_BEHIND = 2.0  # standard units that a prediction stands behind a measurement
KEPT_LEAF = 0.9  # share of a source's leaf value that a refit keeps (LightGBM's default)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All rows of the target that may be ranked, with what the sources say of them."""

    frame: pd.DataFrame
    sources: Sources
    columns: Scores  # ``sources.columns(frame)``
    copied: Scores  # what the sources measured, near ones first, in standard units; NaN where none did
    agreed: Scores  # the same with equal say
    tasks: Rows
    start: Ranks | None = None  # what ``tune`` would start from on this target; None: from cold

    def part(self, rows: Rows) -> Pool:
        """The pool of those rows only."""
        return Pool(
            frame=self.frame.iloc[rows],
            sources=self.sources,
            columns=self.columns[rows],
            copied=self.copied[rows],
            agreed=self.agreed[rows],
            tasks=self.tasks[rows],
            start=self.start,
        )

    def consensus(self) -> Scores:
        """All sources and the analysis with equal say: a hedge against believing the nearest too much."""
        return np.asarray(self.columns.mean(axis=1), dtype=np.float64)

    def opinions(self) -> list[Scores]:
        """What models say before any sample, in log efficiency: the lead of the zero-shot ranking, and the consensus."""
        return [self._in_log(self._lead()), self._in_log(self.consensus())]

    def analysis(self) -> Scores:
        """The analysis in log efficiency, its level and spread as those of the sources."""
        return self._in_log(self.columns[:, -1])

    def _in_log(self, units: Scores) -> Scores:
        level = self.sources.level()
        return np.asarray(level.mean + level.spread * units, dtype=np.float64)

    def zero_shot(self) -> Scores:
        """The blend of the sources in log efficiency, with a head that does not rest on one opinion.

        The first rows of every task take turns: two by the blend and what the sources measured in common, half each, then
        one by the analysis. Nearest profiles alone can be far off at the very top (W6600 from W7800: best@10 0.48, with
        turns 0.80). Where no source measured any of the rows, what all sources say with equal weight takes the place of
        the blend as well: best@10 on convolution 0.927 -> 0.939, on GEMM 0.961 -> 0.963 (configurations out, eight seeds).
        """
        lead = self._lead()
        return shared_head(self.sources.zero_shot(self.columns), (lead, lead, self.columns[:, -1]), self.tasks)

    def _lead(self) -> Scores:
        """Blend and agreement, half each; what all sources say where none measured any row. Standard units."""
        unknown = bool(np.isnan(self.agreed).all())
        return self.consensus() if unknown else (self.sources.blend(self.columns) + self._agreement()) / 2

    def _agreement(self) -> Scores:
        """Mean of what the sources measured; rows that none measured come behind, by the mean of what they predict."""
        return np.where(np.isnan(self.agreed), self.consensus() - _BEHIND, self.agreed)

    def copy(self) -> Scores:
        """The sources' own measurements; rows that no source measured come last, in zero-shot order."""
        blend = self.sources.blend(self.columns)
        missing = np.isnan(self.copied)
        floor = 0.0 if missing.all() else float(np.nanmin(self.copied))
        behind = floor - 1.0 - (blend.max() - blend)
        level = self.sources.level()
        return np.asarray(level.mean + level.spread * np.where(missing, behind, self.copied), dtype=np.float64)


def make_pool(
    sources: Sources,
    tables: Sequence[DeviceTable],
    target: DeviceTable,
    *,
    known: Scores | None = None,
    start: Ranks | None = None,
) -> Pool:
    """The target's rows with what the sources say and measured; ``known`` as ``measured_by`` gives it, if known."""
    known = measured_by(tables, target.trials) if known is None else known
    return Pool(
        frame=target.frame,
        sources=sources,
        columns=sources.columns(target.frame),
        copied=copied(known, sources.priors),
        agreed=copied(known, np.ones(len(tables))),
        tasks=target.tasks,
        start=start,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measured rows of a pool."""

    rows: Rows
    labels: Scores


def shared_head(scores: Scores, opinions: Sequence[Scores], tasks: Rows, measured: Rows = NOTHING) -> Scores:
    """The same scores, but the first ``HEAD`` unmeasured rows of every task are named by several opinions in turn.

    Args:
        scores: ``(rows,)``, higher is better.
        opinions: scores of the same rows; each in turn names its best row that none has named. Listed twice, it has two
            turns.
        tasks: the task of each row.
        measured: rows that need no place in the head.
    """
    out = scores.copy()
    top = float(scores.max()) if len(scores) else 0.0
    for task in np.unique(tasks):
        rows = np.setdiff1d(np.flatnonzero(tasks == task), measured)
        head = rows[_turns([opinion[rows] for opinion in opinions], HEAD)]
        out[head] = top + _STEP * np.arange(len(head), 0, -1)
    return out


def _turns(opinions: Sequence[Scores], count: int) -> Rows:
    named: dict[int, None] = {}
    # generators: each looks at what was named meanwhile
    orders = [(row for row in np.argsort(-scores, kind="stable").tolist() if row not in named) for scores in opinions]
    while len(named) < min(count, len(opinions[0])):
        for order in orders:
            named |= dict.fromkeys(islice(order, 1))
    return np.array(list(named)[:count], dtype=np.int64)


def fit_residual_on(pool: Pool, sample: Sample, seed: int) -> Residual:
    """The residual predictor of a sample."""
    return fit_residual(
        pool.frame.iloc[sample.rows],
        pool.columns[sample.rows],
        sample.labels,
        priors=pool.sources.column_priors(),
        spread=pool.sources.level().spread,
        seed=seed,
    )


def fit_continued(pool: Pool, sample: Sample) -> Forest:
    """The joint forest with more trees grown on the sample."""
    return pool.sources.joint.continued(
        pool.frame.iloc[sample.rows], sample.labels, trees=CONTINUED_TREES, learning_rate=CONTINUED_RATE
    )


def fit_refitted(pool: Pool, sample: Sample) -> Forest:
    """The joint forest with its leaves moved towards the sample."""
    return pool.sources.joint.refitted(pool.frame.iloc[sample.rows], sample.labels, keep=KEPT_LEAF)


def fit_scratch(pool: Pool, sample: Sample, seed: int) -> Forest:
    """A forest of the sample alone."""
    return Forest(seed=seed).fit(pool.frame.iloc[sample.rows], sample.labels)


def fit_started(pool: Pool, sample: Sample, seed: int) -> Started:
    """What ``tune`` runs: the blend of near sources' own models, put right by the sample. ValueError without a start."""
    if pool.start is None:
        raise ValueError(f"mode {STARTED} needs a model to start from; no source is near enough")
    return Started(pool.start, seed=seed).fit(pool.frame.iloc[sample.rows], sample.labels)


def _residual(pool: Pool, sample: Sample, seed: int) -> Scores:
    return fit_residual_on(pool, sample, seed).predict(pool.frame, pool.columns)


_SAMPLE_FREE: Mapping[str, Callable[[Pool], Scores]] = {"zero-shot": Pool.zero_shot, "copy": Pool.copy}
_LEARNING: Mapping[str, Callable[[Pool, Sample, int], Scores]] = {
    "residual": _residual,
    "continue": lambda pool, sample, seed: fit_continued(pool, sample).predict(pool.frame),
    "refit": lambda pool, sample, seed: fit_refitted(pool, sample).predict(pool.frame),
    "from-scratch": lambda pool, sample, seed: fit_scratch(pool, sample, seed).predict(pool.frame),
    STARTED: lambda pool, sample, seed: fit_started(pool, sample, seed).predict(pool.frame),
}


def rank(mode: str, pool: Pool, sample: Sample | None, seed: int) -> Scores:
    """Scores of every row of the pool under a mode; modes that learn need a sample of at least one row."""
    if mode in _SAMPLE_FREE:
        return _SAMPLE_FREE[mode](pool)
    if sample is None or not len(sample.rows):
        raise ValueError(f"mode {mode} needs target samples; without any use {' or '.join(SAMPLE_FREE)}")
    return _LEARNING[mode](pool, sample, seed)
