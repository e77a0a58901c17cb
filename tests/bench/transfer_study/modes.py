"""Modes: ways to rank a target's kernels from sources and few measurements, and the choice of one by held-out samples.

Mode choice for a target from its samples alone: the preferred one, unless another ranks held-out samples better.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from haotuner.cost.forest import Forest
from haotuner.cost.model import Scores
from haotuner.cost.scores import pairwise_accuracy
from haotuner.transfer.device_table import DeviceTable, Rows
from haotuner.transfer.experts import SHARES, Shares, weighted_opinions
from haotuner.transfer.portfolio import Opinion, Portfolio, program_units
from haotuner.transfer.sources import Sources, copied
from tests.bench.transfer_study.opinions import measured_by
from tests.bench.transfer_study.residual import Residual, fit_residual

MODES = ("zero-shot", "residual", "copy", "from-scratch")
SAMPLE_FREE = ("zero-shot", "copy")
LEARNING = tuple(mode for mode in MODES if mode not in SAMPLE_FREE)
HEAD = 32  # rows at the top of a ranking that are a portfolio: a shortlist is ten, a batch sixteen or more
_STEP = 1e-9  # log efficiency between neighbours of the head: an order, not a claim


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """All rows of the target that may be ranked, with what the sources say of them."""

    frame: pd.DataFrame
    sources: Sources
    columns: Scores  # ``sources.columns(frame)``
    known: Scores  # what each source measured of the rows, in standard units, ``(rows, sources)``; NaN where nothing
    single: Mapping[str, Scores]  # what ``single_opinions`` said
    tasks: Rows
    shares: Shares = SHARES

    def part(self, rows: Rows) -> Pool:
        """The pool of those rows only."""
        return replace(
            self,
            frame=self.frame.iloc[rows],
            columns=self.columns[rows],
            known=self.known[rows],
            single={name: item[rows] for name, item in self.single.items()},
            tasks=self.tasks[rows],
        )

    def opinions(self) -> list[Opinion]:
        """Opinions on the rows before any sample."""
        return weighted_opinions(self.sources, self.columns, self.known, self.single, self.shares)

    def portfolio(self, opinions: Sequence[Opinion], seed: Sequence[int], rows: Rows | None = None) -> Portfolio:
        """A portfolio of all rows or of some, by opinions on those."""
        here = np.arange(len(self.frame)) if rows is None else rows
        return Portfolio(
            opinions,
            program_units(self.frame)[here],
            self.tasks[here],
            spread=self.sources.level().spread,
            doubt=self.shares.doubt,
            rng=np.random.default_rng(seed),
        )

    def zero_shot(self, seed: int = 0) -> Scores:
        """The blend of the sources in log efficiency; each head is the blend's first pick, then a portfolio of all opinions.

        The nearest profile, or whatever opinion is believed most, can be far off at the very top (W6600 from W7800: best@10
        0.48), and before any sample nothing tells. As first pick alone the blend had 0.871 on eleven held-out targets, the
        portfolio's first row 0.791.
        """
        answer, opinions, heads = self.sources.zero_shot(self.columns), self.opinions(), []
        for task in np.unique(self.tasks):
            rows = np.flatnonzero(self.tasks == task)
            part = [replace(opinion, prediction=opinion.prediction[rows]) for opinion in opinions]
            first = int(np.argmax(answer[rows]))
            others = self.portfolio(part, [seed, 2], rows).best(HEAD)
            heads.append(rows[np.array([first, *others[others != first]], dtype=np.int64)[:HEAD]])
        return with_heads(answer, heads)

    def copy(self) -> Scores:
        """The sources' own measurements; rows that no source measured come last, in zero-shot order."""
        blend, near = self.sources.blend(self.columns), copied(self.known, self.sources.priors)
        missing = np.isnan(near)
        floor = 0.0 if missing.all() else float(np.nanmin(near))
        behind = floor - 1.0 - (blend.max() - blend)
        level = self.sources.level()
        return np.asarray(level.mean + level.spread * np.where(missing, behind, near), dtype=np.float64)


def make_pool(
    sources: Sources,
    tables: Sequence[DeviceTable],
    target: DeviceTable,
    *,
    known: Scores | None = None,
    single: Mapping[str, Scores] = MappingProxyType({}),
    shares: Shares = SHARES,
) -> Pool:
    """The target's rows with what the sources say and measured; ``known`` as ``measured_by`` gives it, if known."""
    return Pool(
        frame=target.frame,
        sources=sources,
        columns=sources.columns(target.frame),
        known=measured_by(tables, target.trials) if known is None else known,
        single=single,
        tasks=target.tasks,
        shares=shares,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Measured rows of a pool."""

    rows: Rows
    labels: Scores


def with_heads(scores: Scores, heads: Sequence[Rows]) -> Scores:
    """Scores in which the rows of each head come before all others, in its order."""
    out, top = scores.copy(), float(scores.max(initial=0.0))
    for head in heads:
        out[head] = top + _STEP * np.arange(len(head), 0, -1)
    return out


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


def fit_scratch(pool: Pool, sample: Sample, seed: int) -> Forest:
    """A forest of the sample alone."""
    return Forest(seed=seed).fit(pool.frame.iloc[sample.rows], sample.labels)


def _residual(pool: Pool, sample: Sample, seed: int) -> Scores:
    return fit_residual_on(pool, sample, seed).predict(pool.frame, pool.columns)


_SAMPLE_FREE: Mapping[str, Callable[[Pool, int], Scores]] = {
    "zero-shot": lambda pool, seed: pool.zero_shot(seed),
    "copy": lambda pool, _: pool.copy(),
}
_LEARNING: Mapping[str, Callable[[Pool, Sample, int], Scores]] = {
    "residual": _residual,
    "from-scratch": lambda pool, sample, seed: fit_scratch(pool, sample, seed).predict(pool.frame),
}


def rank(mode: str, pool: Pool, sample: Sample | None, seed: int) -> Scores:
    """Scores of every row of the pool under a mode; modes that learn need a sample of at least one row."""
    if mode in _SAMPLE_FREE:
        return _SAMPLE_FREE[mode](pool, seed)
    if sample is None or not len(sample.rows):
        raise ValueError(f"mode {mode} needs target samples; without any use {' or '.join(SAMPLE_FREE)}")
    return _LEARNING[mode](pool, sample, seed)


FOLDS = 4
FEWEST = 8  # samples below which no fold could teach anything: the preference decides
# Order of preference between modes that the samples cannot tell apart, from trials on public records.
PREFERENCE = ("residual", "from-scratch", "zero-shot", "copy")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModeChoice:
    """The mode chosen, and the pairwise accuracy of each on held-out samples; 0.5 is chance."""

    mode: str
    accuracy: float | None  # of the mode chosen; None when there were too few samples to judge by
    accuracies: dict[str, float]  # of every mode
    note: str = ""


def held_out(
    pool: Pool, sample: Sample, seed: int, residual: Residual | None = None, modes: Sequence[str] = LEARNING
) -> dict[str, Scores]:
    """Scores of each sample by each mode that learns, from a fit that did not see it; nothing of too few samples.

    ``residual`` may be given where it was fitted on the same sample already.
    """
    if len(sample.rows) < FEWEST:
        return {}
    return {
        # a residual keeps what it said of samples that it had not seen
        mode: (residual or fit_residual_on(pool, sample, seed)).held_out
        if mode == "residual"
        else _held_out(mode, pool, sample, seed)
        for mode in modes
    }


def choose_mode(pool: Pool, sample: Sample | None, seed: int, stored: Mapping[str, Scores] | None = None) -> ModeChoice:
    """Pick a mode. Modes that learn are judged by cross-validation, the others directly.

    A less preferred mode must lead by more than two standard errors of the comparison, or chance would pick. ``stored`` is
    what ``held_out`` gave, if that is known already.
    """
    can_copy = not np.isnan(pool.known).all()
    if sample is None or len(sample.rows) < FEWEST:
        mode = "zero-shot" if sample is None else "residual"
        return ModeChoice(mode=mode, accuracy=None, accuracies={}, note="too few target samples to judge: by preference")
    answer = dict(held_out(pool, sample, seed) if stored is None else stored)
    answer["zero-shot"] = pool.sources.zero_shot(pool.columns[sample.rows])
    if can_copy:
        answer["copy"] = pool.copy()[sample.rows]
    groups = pool.tasks[sample.rows]
    accuracies = {mode: _by_task(each, sample.labels, groups) for mode, each in answer.items()}
    margin = 2.0 * 0.5 / np.sqrt(len(sample.rows))  # 0.5/sqrt(n): standard error of a share near one half
    best = max(accuracies.values())
    mode = next(mode for mode in PREFERENCE if mode in accuracies and accuracies[mode] >= best - margin)
    note = ""
    if accuracies["from-scratch"] > accuracies["zero-shot"] + margin:
        note = "the sources alone mislead on this target: its own samples rank better than they do"
    return ModeChoice(mode=mode, accuracy=accuracies[mode], accuracies=accuracies, note=note)


def _held_out(mode: str, pool: Pool, sample: Sample, seed: int) -> Scores:
    """Each sample's score from a fit that did not see it."""
    order = np.random.default_rng([seed, 7]).permutation(len(sample.rows))
    answer = np.zeros(len(sample.rows))
    for fold in range(FOLDS):
        stored = order[fold::FOLDS]
        selected = np.setdiff1d(order, stored)
        part = pool.part(sample.rows[np.concatenate([selected, stored])])
        seen = Sample(rows=np.arange(len(selected)), labels=sample.labels[selected])
        answer[stored] = rank(mode, part, seen, seed)[len(selected) :]
    return answer


def _by_task(text: Scores, labels: Scores, tasks: Rows) -> float:
    """Pairwise accuracy within tasks, weighted by their pairs; one half if no task has two samples."""
    total = counted = 0.0
    for task in np.unique(tasks):
        rows = np.flatnonzero(tasks == task)
        pairs = len(rows) * (len(rows) - 1) / 2
        if pairs:
            total, counted = total + pairs * pairwise_accuracy(text[rows], labels[rows]), counted + pairs
    return total / counted if counted else 0.5
