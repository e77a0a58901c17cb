"""Mode choice for a target from its samples alone: the preferred one, unless another ranks held-out samples better."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from haotuner.cost.model import Scores
from haotuner.cost.scores import pairwise_accuracy
from haotuner.transfer.device_table import Rows
from haotuner.transfer.modes import LEARNING, Pool, Sample, fit_residual_on, rank
from haotuner.transfer.residual import Residual

FOLDS = 4
FEWEST = 8  # samples below which no fold could teach anything: the preference decides
# Order of preference between modes that the samples cannot tell apart, from trials on public records.
PREFERENCE = ("residual", "continue", "from-scratch", "refit", "zero-shot", "copy")


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
