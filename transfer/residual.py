"""Residual mode: a stack of the sources, trees on what it leaves, the target's own forest, each as far as it proves itself.

How much to believe the trees and the own forest is decided by held-out samples: where sources are good both only add
noise, where sources mislead the own forest must be able to take over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from haotuner.cost.forest import Forest, Settings
from haotuner.cost.model import Scores
from haotuner.transfer.stacking import Stack, fit_stack
from haotuner.transfer.table import Rows

BAG = 4  # residual forests, averaged: one forest of 16 rows is mostly chance
# Few trees that learn fast: 50 and 100 at half the rate took 0.15 s longer over 64,000 rows, and were level with 16 and 32
# samples (convolution, three seeds: pairwise accuracy within 0.002, best@10 the same).
TREES = Settings(trees=25, learning_rate=0.2, feature_share=0.5, slope=0.0)
OWN = Settings(trees=50, learning_rate=0.2)
FOLDS = 4
# (belief in the residual trees, part of the target's own forest), from the least to the most departure from the stack.
# Half belief comes first: on every target of the trials it was as good as none or better, from 16 rows up.
STEPS = ((0.5, 0.0), (1.0, 0.0), (0.5, 0.25), (1.0, 0.25), (1.0, 0.5), (1.0, 0.75))
PROOF = 0.75  # standard errors by which a step must lower the held-out squared error to be worth its noise


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The three predictors before they are mixed."""

    stack: Stack
    trees: tuple[Forest, ...]
    own: Forest

    def said(self, frame: pd.DataFrame, columns: Scores, *, own: bool = True) -> tuple[Scores, Scores, Scores]:
        """What stack, trees and own forest say of each row; each of shape ``(rows,)``; zeros of a forest not asked."""
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
        return _mix(self.parts.said(frame, columns, own=self.step[1] > 0), self.step)


def fit_residual(
    frame: pd.DataFrame, columns: Scores, labels: Scores, *, prior: Scores, spread: float, seed: int
) -> Residual:
    """Fit on measured rows.

    Args:
        frame: features of the measured rows.
        columns: what the sources say of them, ``(rows, k)``.
        labels: their log efficiency.
        prior: believed weights of the columns, ``(k,)``.
        spread: log efficiency believed to be one unit of a column.
        seed: of folds and forests.
    """
    held = [np.zeros(len(labels)) for _ in range(3)]
    order = np.random.default_rng([seed, 5]).permutation(len(labels))
    for fold in range(FOLDS):
        out = order[fold::FOLDS]
        kept = np.setdiff1d(order, out)
        if len(kept) and len(out):
            parts = _parts(frame, columns, labels, kept, prior, spread, seed, bag=BAG // 2)
            for values, said in zip(held, parts.said(frame.iloc[out], columns[out]), strict=True):
                values[out] = said
    step = _proved(labels, held) if len(labels) >= 2 * FOLDS else STEPS[0]
    every = np.arange(len(labels))
    return Residual(
        parts=_parts(frame, columns, labels, every, prior, spread, seed, bag=BAG), step=step, held_out=_mix(held, step)
    )


def _parts(
    frame: pd.DataFrame, columns: Scores, labels: Scores, rows: Rows, prior: Scores, spread: float, seed: int, bag: int
) -> Parts:
    stack = fit_stack(columns, prior, spread, rows, labels[rows])
    part, left = frame.iloc[rows], labels[rows] - stack.predict(columns[rows])
    trees = tuple(Forest(seed=seed * BAG + i, settings=TREES).fit(part, left) for i in range(bag))
    return Parts(stack=stack, trees=trees, own=Forest(seed=seed, settings=OWN).fit(part, labels[rows]))


def _mix(said: Sequence[Scores], step: tuple[float, float]) -> Scores:
    stack, left, own = said
    trust, share = step
    return np.asarray((1.0 - share) * (stack + trust * left) + share * own, dtype=np.float64)


def _proved(labels: Scores, held: Sequence[Scores]) -> tuple[float, float]:
    """The first step that no later one beats by ``PROOF`` standard errors of the difference."""
    errors = [(labels - _mix(held, step)) ** 2 for step in STEPS]
    for at, step in enumerate(STEPS):
        gains = [errors[at] - later for later in errors[at + 1 :]]
        if all(gain.mean() <= PROOF * gain.std() / np.sqrt(len(labels)) for gain in gains):
            return step
    return STEPS[-1]
