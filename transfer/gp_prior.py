"""Several opinions on the same rows as priors of one Gaussian process: which row to measure next.

Each opinion is a prior mean over program space. The measured rows update all of them. An opinion is weighted by the
likelihood it gave to those rows, one after the other (Bayesian model averaging). The next row to measure has the greatest
expected improvement (Jones, Schonlau and Welch, 1998) in the mean over opinions.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from scipy.special import ndtr
from sklearn.gaussian_process import GaussianProcessRegressor
from sklearn.gaussian_process.kernels import ConstantKernel, Matern

from haotuner.cost.model import Scores
from haotuner.transfer.device_table import Rows

# In units of the spread that is expected of the labels. An opinion may be off by a level for all rows alike, by an error for
# a program with its like, and by what a program has for itself, the noise of its measurement included.
LEVEL = 1.0
ERROR = 0.6
ALONE = 0.25
LENGTH = 0.3  # root mean square of standard units, over which programs are alike
# Spreads behind the best of a task from which on it does not matter how bad a row is. Without it one kernel of W6600's, a
# hundred times slower than its best, cost the analysis that named it all trust, though it had named the best two as well.
# Convolution, twenty seeds, 16 samples, behind the best mode: W6600 with configurations out 0.038 -> 0.001, W7800 with the
# device out 0.008 -> 0.014; measurements to 97 % 13 -> 11, 9 -> 10. 2: W6600 0.021 behind, 13 measurements.
FLOOR = 1.0
_TINY = 1e-9


class GpPriors:
    """Opinions on some rows of a pool, updated and weighted by what is measured."""

    def __init__(self, opinions: Sequence[Scores], places: Scores, tasks: Rows, spread: float) -> None:
        """Opinions in log efficiency, ``(rows,)`` each; ``places`` as ``program_units`` gives them, ``(rows, d)``.

        ``spread``: standard deviation that is expected of the labels.
        """
        self._means = np.stack(opinions)
        self._places, self._tasks = places, tasks
        self._spread = max(spread, _TINY)
        self._kernel = ConstantKernel(LEVEL**2, "fixed") + ConstantKernel(ERROR**2, "fixed") * Matern(
            LENGTH, "fixed", nu=2.5
        )
        self._rows: list[int] = []
        self._labels: list[float] = []
        self._evidence = np.zeros(len(opinions))
        self._best = np.full(int(tasks.max(initial=0)) + 1, -np.inf)
        self._said = self._means
        self._unsure = np.full(len(places), self._spread * np.sqrt(LEVEL**2 + ERROR**2 + ALONE**2))

    def update(self, rows: Sequence[int], labels: Sequence[float], *, judge: bool = True) -> None:
        """Takes measurements in; with ``judge`` each opinion's probability changes by the likelihood that it gave them."""
        for row, label in zip(rows, labels, strict=True):
            if judge:
                least = self._least([row])
                off = (np.maximum(label, least) - np.maximum(self._said[:, row], least)) / self._unsure[row]
                self._evidence -= off**2 / 2  # the same variance for all opinions: its logarithm says nothing
            self._rows.append(row)
            self._labels.append(label)
            self._best[self._tasks[row]] = max(self._best[self._tasks[row]], label)
            if judge:
                self._correct()
        if not judge and len(rows):
            self._correct()

    def probabilities(self) -> Scores:
        """The probability of each opinion, of shape ``(opinions,)``, summing to 1."""
        likely = np.exp(self._evidence - self._evidence.max())
        return np.asarray(likely / likely.sum(), dtype=np.float64)

    def prior(self, opinion: int) -> Scores:
        """An opinion as it was given, ``(rows,)``; -inf for measured rows."""
        return self._open(self._means[opinion])

    def expected_improvement(self, only: int | None = None) -> Scores:
        """Expected improvement on the best of a row's task, ``(rows,)``; -inf for measured rows.

        By all opinions with their probabilities, or by ``only`` one.
        """
        probabilities = self.probabilities() if only is None else np.eye(len(self._means))[only]
        total = np.zeros(len(self._places))
        for probability, said in zip(probabilities, self._said, strict=True):
            total += probability * _expected(said - self._to_beat(said), self._unsure)
        return self._open(total)

    def _open(self, worth: Scores) -> Scores:
        found = worth.copy()
        found[self._rows] = -np.inf
        return found

    def _to_beat(self, said: Scores) -> Scores:
        """The best measured label of each row's task; where nothing was measured, the best that is believed."""
        best = self._best.copy()
        for task in np.flatnonzero(~np.isfinite(best)):
            best[task] = said[self._tasks == task].max(initial=-np.inf)
        return np.asarray(best[self._tasks], dtype=np.float64)

    def _least(self, rows: list[int]) -> Scores:
        """The label of each row's task below which all are equally bad."""
        return np.asarray(self._best[self._tasks[rows]] - FLOOR * self._spread, dtype=np.float64)

    def _correct(self) -> None:
        wrong = (np.maximum(self._labels, self._least(self._rows)) - self._means[:, self._rows]).T / self._spread
        process = GaussianProcessRegressor(self._kernel, alpha=ALONE**2, optimizer=None)
        mean, unsure = process.fit(self._places[self._rows], wrong).predict(self._places, return_std=True)
        shape = len(self._places), len(self._means)
        self._said = self._means + self._spread * mean.reshape(shape).T
        self._unsure = self._spread * np.hypot(unsure.reshape(shape)[:, 0], ALONE)  # alike for all opinions


def _expected(ahead: Scores, unsure: Scores) -> Scores:
    z = ahead / unsure
    return np.asarray(ahead * ndtr(z) + unsure * np.exp(-z * z / 2) / np.sqrt(2 * np.pi), dtype=np.float64)
