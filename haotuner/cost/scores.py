"""How good a ranking is: pairwise accuracy, best@k, calibration. Each takes one task: rows that compete with each other."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.linear_model import LinearRegression
from sklearn.model_selection import GroupKFold

from haotuner.cost.model import Scores

_EXACT_ROWS = 3000  # up to here all pairs are compared (72 MB of booleans at most); above, a fixed sample of pairs
_SAMPLED_PAIRS = 2_000_000  # standard error of a share over that many pairs: 0.0004


def pairwise_accuracy(predicted: ArrayLike, measured: ArrayLike) -> float:
    """Share of pairs put in the right order (TenSet's metric); pairs measured equal do not count, predicted ties count half.

    1.0 when no pair differs. Over ``_EXACT_ROWS`` rows a fixed sample of pairs stands for all.
    """
    guess, truth = _task(predicted, measured)
    if len(truth) <= _EXACT_ROWS:
        left, right = np.triu_indices(len(truth), 1)
    else:
        generator = np.random.default_rng(0)
        left, right = generator.integers(0, len(truth), (2, _SAMPLED_PAIRS))
    real, said = np.sign(truth[left] - truth[right]), np.sign(guess[left] - guess[right])
    counted = real != 0
    if not counted.any():
        return 1.0
    return float(np.mean(np.where(said[counted] == 0, 0.5, said[counted] == real[counted])))


def best_at(predicted: ArrayLike, throughput: ArrayLike, k: int) -> float:
    """Best measured throughput among the ``k`` highest-ranked rows, as a share of the best of all.

    Rows with equal predictions keep their order, so a model that says nothing gets what the order gives.
    """
    guess, truth = _task(predicted, throughput)
    if k < 1 or (truth <= 0).any():
        raise ValueError(f"k is {k}, must be at least 1, and throughputs must be positive")
    top = np.argsort(-guess, kind="stable")[:k]
    return float(truth[top].max() / truth.max())


def calibration(predicted: ArrayLike, measured: ArrayLike) -> tuple[float, float]:
    """Slope of measured over predicted log efficiency (1 is calibrated) and root mean square error."""
    guess, truth = _task(predicted, measured)
    error = float(np.sqrt(np.mean((guess - truth) ** 2)))
    if np.ptp(guess) == 0:
        return 0.0, error
    return float(LinearRegression().fit(guess[:, None], truth).coef_[0]), error


def group_splits(groups: ArrayLike, folds: int, seed: int = 0) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Row indices (train, held out) such that no group (shape, op or device) is on both sides."""
    labels = np.asarray(groups)
    distinct = len(np.unique(labels))
    if distinct < 2:
        raise ValueError(f"splitting by group needs at least two groups, found {distinct}")
    splitter = GroupKFold(n_splits=min(folds, distinct), shuffle=True, random_state=seed)
    yield from splitter.split(np.zeros((len(labels), 1)), groups=labels)


def _task(predicted: ArrayLike, measured: ArrayLike) -> tuple[Scores, Scores]:
    guess, truth = np.asarray(predicted, dtype=np.float64), np.asarray(measured, dtype=np.float64)
    if guess.shape != truth.shape or guess.ndim != 1 or not len(guess):
        raise ValueError(f"need one prediction a measurement, at least one; got shapes {guess.shape} and {truth.shape}")
    if not (np.isfinite(guess).all() and np.isfinite(truth).all()):
        raise ValueError("predictions and measurements must be finite")
    return guess, truth
