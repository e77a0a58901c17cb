"""Residual mode: a stack of the sources, trees on what it leaves, the target's own forest, each as far as it proves itself.

The *stack* is a linear blend of what the sources say, moved away from its priors as far as the samples prove. How much to
believe the trees and the own forest is decided by held-out samples: where sources are good both only add noise, where
sources mislead the own forest must be able to take over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Scores
from haotuner.transfer.device_table import Rows

# Penalty on moving away from the priors, in measurements' worth; the first keeps them.
PENALTIES = (1e6, 100.0, 30.0, 10.0, 3.0, 1.0)
# Standard errors by which the leave-one-out error must fall before the priors are loosened: with 1 or less, 16 samples
# picked from the top of a ranking turn good coefficients into worse ones (RTX A4000, pairwise 0.75 to 0.65).
PROOF = 2.0
BELIEF = 2.0  # measurements' worth of belief in the expected spread
BAG = 4  # residual forests, averaged: one forest of 16 rows is mostly chance
# Few trees that learn fast: 50 and 100 at half the rate took 0.15 s longer over 64,000 rows, and were level with 16 and 32
# samples (convolution, three seeds: pairwise accuracy within 0.002, best@10 the same).
TREES = Settings(trees=25, learning_rate=0.2, feature_share=0.5, slope=0.0)
OWN = Settings(trees=50, learning_rate=0.2)
FOLDS = 4
# (belief in the residual trees, part of the target's own forest), from the least to the most departure from the stack.
# Half belief comes first: on every target of the trials it was as good as none or better, from 16 rows up.
STEPS = ((0.5, 0.0), (1.0, 0.0), (0.5, 0.25), (1.0, 0.25), (1.0, 0.5), (1.0, 0.75))
STEP_PROOF = 0.75  # standard errors by which a step must lower the held-out squared error to be worth its noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """A linear blend of columns: prediction = level + (columns - centre) @ coefficients."""

    level: float
    centre: Scores
    coefficients: Scores
    penalty: float  # that leave-one-out chose

    def predict(self, columns: Scores) -> Scores:
        """Log efficiency of shape ``(rows,)``."""
        return np.asarray(self.level + (columns - self.centre) @ self.coefficients, dtype=np.float64)


def fit_stack(columns: Scores, priors: Scores, spread: float, rows: Rows, labels: Scores) -> Stack:
    """Ridge regression around the priors, its penalty chosen by the leave-one-out errors that RidgeCV has in closed form.

    Args:
        columns: ``(rows, k)`` in standard units; all rows of the target.
        priors: ``(k,)``, how far each column is believed before any measurement.
        spread: log efficiency that one standard unit is believed to be worth.
        rows: the measured rows.
        labels: their log efficiency.
    """
    from sklearn.linear_model import Ridge  # a second to import, which who only reads a saved model does not wait for

    seen = columns[rows]
    centre, level = seen.mean(axis=0), float(labels.mean())
    offset, target = seen - centre, labels - level
    blend = offset @ priors
    # one number first: what a unit of the believed blend is worth here
    worth = float((blend @ target + BELIEF * spread) / (blend @ blend + BELIEF))
    start = max(worth, 0.0) * priors
    rest = target - offset @ start
    penalty = _proved_penalty(offset, rest)
    moved = np.asarray(Ridge(alpha=penalty).fit(offset, rest).coef_, dtype=np.float64)
    return Stack(level=level, centre=centre, coefficients=start + moved, penalty=penalty)


def _proved_penalty(offset: Scores, rest: Scores) -> float:
    """The last of ``PENALTIES`` whose leave-one-out errors are proved to be lower than those of the choice before it."""
    from sklearn.linear_model import RidgeCV

    chosen = 0
    if len(rest) > 1:  # of one row alone there is nothing to leave out
        errors = RidgeCV(alphas=PENALTIES, store_cv_results=True).fit(offset, rest).cv_results_
        for at in range(1, len(PENALTIES)):
            gain = errors[:, chosen] - errors[:, at]
            if gain.mean() > PROOF * gain.std() / np.sqrt(len(rest)):
                chosen = at
    return PENALTIES[chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The three predictors before they are mixed."""

    stack: Stack
    trees: tuple[Forest, ...]
    own: Forest

    def predictions(self, frame: pd.DataFrame, columns: Scores, *, own: bool = True) -> tuple[Scores, Scores, Scores]:
        """Predictions of stack, trees and own forest for rows; each of shape ``(rows,)``; zeros of a forest not asked."""
        left = np.mean([forest.predict(frame) for forest in self.trees], axis=0)
        alone = self.own.predict(frame) if own else np.zeros(len(frame))
        return self.stack.predict(columns), np.asarray(left, dtype=np.float64), alone


@dataclass(frozen=True, slots=True, kw_only=True)
class Residual:
    """The mixed predictor, and what it said of each sample when it had not seen it."""

    parts: Parts
    step: tuple[float, float]
    held_out: Scores

    def predict(self, frame: pd.DataFrame, columns: Scores) -> Scores:
        """Log efficiency of shape ``(rows,)``."""
        return _mix(self.parts.predictions(frame, columns, own=self.step[1] > 0), self.step)


def fit_residual(
    frame: pd.DataFrame, columns: Scores, labels: Scores, *, priors: Scores, spread: float, seed: int
) -> Residual:
    """Fit on measured rows.

    Args:
        frame: features of the measured rows.
        columns: what the sources say of them, ``(rows, k)``.
        labels: their log efficiency.
        priors: how far each column is believed before any measurement, ``(k,)``.
        spread: log efficiency believed to be one unit of a column.
        seed: of folds and forests.
    """
    stored = [np.zeros(len(labels)) for _ in range(3)]
    order = np.random.default_rng([seed, 5]).permutation(len(labels))
    for fold in range(FOLDS):
        out = order[fold::FOLDS]
        selected = np.setdiff1d(order, out)
        if len(selected) and len(out):
            parts = _parts(frame, columns, labels, selected, priors, spread, seed, bag=BAG // 2)
            for values, item in zip(stored, parts.predictions(frame.iloc[out], columns[out]), strict=True):
                values[out] = item
    step = _proved(labels, stored) if len(labels) >= 2 * FOLDS else STEPS[0]
    every = np.arange(len(labels))
    return Residual(
        parts=_parts(frame, columns, labels, every, priors, spread, seed, bag=BAG), step=step, held_out=_mix(stored, step)
    )


def _parts(
    frame: pd.DataFrame, columns: Scores, labels: Scores, rows: Rows, priors: Scores, spread: float, seed: int, bag: int
) -> Parts:
    stack = fit_stack(columns, priors, spread, rows, labels[rows])
    part, left = frame.iloc[rows], labels[rows] - stack.predict(columns[rows])
    trees = tuple(Forest(seed=seed * BAG + i, settings=TREES).fit(part, left) for i in range(bag))
    return Parts(stack=stack, trees=trees, own=Forest(seed=seed, settings=OWN).fit(part, labels[rows]))


def _mix(text: Sequence[Scores], step: tuple[float, float]) -> Scores:
    stack, left, own = text
    trust, share = step
    return np.asarray((1.0 - share) * (stack + trust * left) + share * own, dtype=np.float64)


def _proved(labels: Scores, symbolic: Sequence[Scores]) -> tuple[float, float]:
    """The first step that no later one beats by ``STEP_PROOF`` standard errors of the difference."""
    errors = [(labels - _mix(symbolic, step)) ** 2 for step in STEPS]
    for at, step in enumerate(STEPS):
        gains = [errors[at] - later for later in errors[at + 1 :]]
        if all(gain.mean() <= STEP_PROOF * gain.std() / np.sqrt(len(labels)) for gain in gains):
            return step
    return STEPS[-1]
