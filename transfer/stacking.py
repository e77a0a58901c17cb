"""Stacking: how much each source's word is worth on the target, learnt from few measurements without losing the prior."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.model import Scores
from haotuner.transfer.table import Rows

# Penalty on moving away from the prior weights, in measurements' worth; the first keeps the prior.
PENALTIES = (1e6, 100.0, 30.0, 10.0, 3.0, 1.0)
# Standard errors by which the leave-one-out error must fall before the prior is loosened: with 1 or less, 16 samples picked
# from the top of a ranking turn good weights into worse ones (RTX A4000, pairwise 0.75 to 0.65).
PROOF = 2.0
BELIEF = 2.0  # measurements' worth of belief in the expected spread


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A linear blend of columns: prediction = level + (columns - centre) @ weights."""

    level: float
    centre: Scores
    weights: Scores
    penalty: float  # that leave-one-out chose

    def predict(self, columns: Scores) -> Scores:
        """Log efficiency of shape ``(rows,)``."""
        return np.asarray(self.level + (columns - self.centre) @ self.weights, dtype=np.float64)


def fit_stack(columns: Scores, prior: Scores, spread: float, rows: Rows, labels: Scores) -> Stack:
    """Ridge regression around the prior, its penalty chosen by leave-one-out error in closed form.

    Args:
        columns: ``(rows, k)`` in standard units; all rows of the target.
        prior: ``(k,)`` weights believed before any measurement.
        spread: log efficiency that one standard unit is believed to be worth.
        rows: the measured rows.
        labels: their log efficiency.
    """
    seen = columns[rows]
    centre, level = seen.mean(axis=0), float(labels.mean())
    offset, target = seen - centre, labels - level
    blend = offset @ prior
    # one number first: what a unit of the believed blend is worth here
    worth = float((blend @ target + BELIEF * spread) / (blend @ blend + BELIEF))
    start = max(worth, 0.0) * prior
    rest = target - offset @ start
    chosen = PENALTIES[0]
    best, errors = _ridge(offset, rest, chosen)
    for penalty in PENALTIES[1:]:
        moved, candidate = _ridge(offset, rest, penalty)
        gain = errors - candidate
        if gain.mean() > PROOF * gain.std() / np.sqrt(len(rest)):
            best, errors, chosen = moved, candidate, penalty
    return Stack(level=level, centre=centre, weights=start + best, penalty=chosen)


def _ridge(offset: Scores, rest: Scores, penalty: float) -> tuple[Scores, Scores]:
    """Coefficients and squared leave-one-out errors (the mean that was taken off counts as one more column)."""
    gram: NDArray[np.float64] = offset.T @ offset + penalty * np.eye(offset.shape[1])
    solved = np.linalg.solve(gram, offset.T)
    leverage = np.einsum("ij,ji->i", offset, solved) + 1.0 / len(rest)
    coefficients = solved @ rest
    errors = (rest - offset @ coefficients) / np.maximum(1.0 - leverage, 1e-3)
    return coefficients, np.asarray(errors**2, dtype=np.float64)
