"""Scores of a ranking: pairwise accuracy and best@k. Each takes one task: rows that compete with each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from haotuner.cost.model import Scores

_FEW_ROWS = 64  # all pairs at once is faster up to here


def pairwise_accuracy(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Share of pairs put in the right order (TenSet's metric); pairs measured equal do not count, predicted ties count half.

    1.0 when no pair differs. Exact, in O(n log n): it is Kendall's tau-b with the ties of the prediction taken out again.
    """
    guess, truth = _task(predicted, measured)
    if len(truth) <= _FEW_ROWS:
        left, right = np.triu_indices(len(truth), 1)
        agree = np.sign(truth[left] - truth[right]) * np.sign(guess[left] - guess[right])
        real, lead = float(np.count_nonzero(truth[left] != truth[right])), float(agree.sum())
    else:
        from scipy.stats import kendalltau  # half a second to import

        pairs = len(truth) * (len(truth) - 1) / 2.0
        real, guessed_pairs = pairs - _tied_pairs(truth), pairs - _tied_pairs(guess)
        # the method is that of the p value, which is not used; tau is undefined where one side says nothing
        tau = float(kendalltau(guess, truth, method="asymptotic").statistic) if real and guessed_pairs else 0.0
        lead = float(np.rint(tau * np.sqrt(real) * np.sqrt(guessed_pairs)))  # pairs in order less pairs out of order: whole
    return 0.5 + 0.5 * lead / real if real else 1.0


def _tied_pairs(values: Scores) -> float:
    counts = np.unique(values, return_counts=True)[1].astype(np.float64)
    return float((counts * (counts - 1.0) / 2.0).sum())


def best_at(predicted: ArrayLike, throughput: ArrayLike, k: int) -> float:
    """Best measured throughput among the ``k`` highest-ranked rows, as a share of the best of all.

    Rows with equal predictions keep their order, so a model that says nothing gets what the order gives.
    """
    guess, truth = _task(predicted, throughput)
    if k < 1 or (truth <= 0).any():
        raise ValueError(f"k is {k}, must be at least 1, and throughputs must be positive")
    top = np.argsort(-guess, kind="stable")[:k]
    return float(truth[top].max() / truth.max())


def group_splits(groups: ArrayLike, folds: int, seed: int = 0) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Row indices (train, held out) such that no group (shape, op or device) is on both sides."""
    labels = np.asarray(groups)
    distinct = len(np.unique(labels))
    if distinct < 2:
        raise ValueError(f"splitting by group needs at least two groups, found {distinct}")
    order = np.random.RandomState(seed).permutation(np.unique(labels))
    for part in np.array_split(order, min(folds, distinct)):
        held_out = np.isin(labels, part)
        yield np.flatnonzero(~held_out), np.flatnonzero(held_out)


def _task(predicted: ArrayLike, measured: ArrayLike) -> tuple[Scores, Scores]:
    guess, truth = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if guess.shape != truth.shape or guess.ndim != 1 or not len(guess):
        raise ValueError(f"need one prediction a measurement, at least one; got shapes {guess.shape} and {truth.shape}")
    if not (np.isfinite(guess).all() and np.isfinite(truth).all()):
        raise ValueError("predictions and measurements must be finite")
    return guess, truth
