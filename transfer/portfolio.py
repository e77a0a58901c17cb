"""Portfolio: the rows to measure that together are expected to hold the best one, whichever opinion turns out to be right.

Opinions say how far each row is behind the best. The truth is taken for one of them, for a mixture, or for none (*doubt*),
but for a region of program space where another one holds: a device may be like one source in most and unlike it where its
best kernels lie. It is off by an error that a program shares with its like and by one of its own. Drawn many times, put
right and weighted by what was measured, it says what a set of rows is expected to reach; the set is chosen greedily (within
1 - 1/e of the best one, as an expected maximum is submodular: Nemhauser, Wolsey and Fisher, 1978). Draws are random Fourier
features put right row by row (Wilson et al., Efficiently sampling functions from Gaussian process posteriors, 2020); a
portfolio draws errors once, and what is measured later puts the same ones right. What is as long as the shortlist is held in
single precision: half the bytes, and an error is drawn, not known to seven digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.linalg import cho_factor, cho_solve, solve_triangular
from scipy.special import ndtri

from haotuner.cost.features import PROGRAM_NAMES
from haotuner.cost.model import Scores
from haotuner.transfer.device_table import NOTHING, Rows

# In units of the spread that is expected of the labels.
REACH = 1.5  # behind the best of a task from which on it does not matter how bad a row is: it is not measured anyway
LEVEL = 1.0  # by which all rows of a task may be better or worse than the best measured one leads to expect
ALONE = 0.1  # what a program has for itself, the noise of its measurement included
# How wrong an opinion may be for a program and its like. Which of these holds is for the measurements to say: a source that
# is nearly right and one that only knows the rough shape are other hypotheses of the same opinion.
ERRORS = (0.3, 0.6, 1.0)
DOUBT_ERROR = 1.0  # the same where no opinion is right: any shape that is smooth over programs
LENGTH = 0.3  # root mean square of standard units, over which programs are alike
# Power of the likelihood by which hypotheses are believed: rows are measured because somebody ranked them high, and a source
# that is right of most programs is believed for those that it is wrong of ("safe" Bayes: Gruenwald and van Ommen, 2017).
TEMPER = 0.1
HYPOTHESES = 768
DRAWS = 384
VERTICES = 0.75  # share of the hypotheses that believe one opinion; the others mix some
REGION = 0.5  # largest share of program space where a hypothesis believes another opinion than elsewhere
NOBODY = -0.75  # where none is believed: every row as far behind the best as one in the middle of ``REACH``
MIXING = 1.0  # sum of a mixture's Dirichlet parameters: with 1 most mixtures have two or three opinions in them
# Each of the most believed opinions has its first row in a portfolio whatever it adds: so the first row of whoever is right
# is a floor, which draws cannot promise. Six and the draws' four against the draws' ten, zero-shot best@10, four seeds,
# device and architecture out: GEMM 0.998 and 0.998 against 0.990 and 0.996, convolution 0.938 and 0.955, 0.895 and 0.941.
HEARD = 6
OWED = 0.6  # share of the rows asked for that these may take
HEARD_UNTIL = 16  # measured rows, from which on what came back decides
FEATURES = 300  # Fourier features of a drawn error; its standard deviation is right within a twentieth
SHORTLIST = 3000  # rows from the tops of the opinions, and by chance, that are drawn
_NEVER = -1.0
Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True)
class Opinion:
    """Opinion on every row in log efficiency, ``(rows,)``, and how far it is believed before any measurement.

    A model that was learnt from measured rows says in ``unseen`` what it said of them, in their order, before it had seen
    them: it is not to be praised for knowing what it was told.
    """

    name: str
    prediction: Scores
    weight: float
    unseen: Scores | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Hypotheses:
    """Hypotheses of which opinion is right: a mixture of opinions, another in a region, and how wrong both are."""

    mixtures: Singles  # ``(HYPOTHESES, opinions)``; all 0 where none is believed
    others: Singles  # the same, for the region
    gates: Singles  # ``(HYPOTHESES, FEATURES)``: the region is where these features are below the edge
    edges: Singles
    errors: Singles

    @staticmethod
    def drawn(weights: Scores, doubt: float, rng: np.random.Generator) -> _Hypotheses:
        """Hypotheses before any measurement."""
        believed = np.append((1.0 - doubt) * weights / weights.sum(), doubt)
        single = round(VERTICES * HYPOTHESES)
        alone = np.eye(len(believed))[:, :-1]
        mixtures = np.concatenate([
            alone[rng.choice(len(believed), size=single, p=believed)],
            rng.dirichlet(np.maximum(MIXING * believed[:-1], 1e-2), size=HYPOTHESES - single),
        ])  # fmt: skip
        errors = np.where(mixtures.any(axis=1), rng.choice(ERRORS, size=HYPOTHESES), DOUBT_ERROR)
        return _Hypotheses(
            mixtures=_single(mixtures),
            others=_single(alone[rng.choice(len(believed), size=HYPOTHESES, p=believed)]),
            gates=_single(rng.standard_normal((HYPOTHESES, FEATURES))),
            edges=_single(ndtri(rng.uniform(0.0, REGION, size=HYPOTHESES))),
            errors=_single(errors),
        )

    def means(self, text: Singles, features: Singles) -> Singles:
        """Expectation of each hypothesis for rows, ``(HYPOTHESES, rows)``, by opinions on them and their features."""
        inside = self.gates @ features.T < self.edges[:, np.newaxis]
        return np.where(inside, _mixed(self.others, text), _mixed(self.mixtures, text))


class Portfolio:
    """Opinions on the rows of some tasks, what was measured of them, and the rows that are worth measuring next."""

    def __init__(
        self,
        opinions: Sequence[Opinion],
        places: Scores,
        tasks: Rows,
        *,
        spread: float,
        doubt: float,
        rng: np.random.Generator,
    ) -> None:
        """Nothing is measured at first.

        Args:
            opinions: at least one.
            places: ``program_units`` of all rows, ``(rows, d)``.
            tasks: the task of each row; rows compete within theirs.
            spread: standard deviation that is expected of the labels.
            doubt: share of the hypotheses that believe nobody, in 0..1.
            rng: draws hypotheses, errors and the chance part of the shortlist.
        """
        self._spread = max(spread, 1e-9)
        self._tasks = np.unique(tasks, return_inverse=True)[1].astype(np.int64)
        self._ranks = np.stack([_behind(opinion.prediction / self._spread, self._tasks) for opinion in opinions])
        self._by_weight = np.argsort([-opinion.weight for opinion in opinions], kind="stable").tolist()
        self._positions, self._rng = places, rng
        self._short = _shortlist(self._ranks, self._tasks, rng)
        self._hypotheses = _Hypotheses.drawn(np.array([opinion.weight for opinion in opinions]), doubt, rng)
        self._errors = self._hypotheses.errors
        frequencies = rng.standard_normal((FEATURES, places.shape[1]))
        frequencies /= LENGTH * np.sqrt(rng.chisquare(5, size=(FEATURES, 1)) / 5)  # of the Matern kernel of 5/2
        self._frequencies, self._phases = frequencies, rng.uniform(0, 2 * np.pi, FEATURES)
        self._features = self._cosines(self._short)
        self._expected = self._hypotheses.means(_single(self._ranks[:, self._short]), self._features)
        self._weights = rng.standard_normal((DRAWS, FEATURES), dtype=np.float32)
        self._smooth = self._weights @ self._features.T  # errors of size 1 at the shortlist
        self._own = np.float32(ALONE) * rng.standard_normal(self._smooth.shape, dtype=np.float32)
        self.rows: Rows = NOTHING  # measured
        self._labels: Scores = np.zeros(0)
        self._foretold = np.zeros((len(opinions), 0))  # what each opinion said of the measured rows before it knew them

    def update(self, rows: Rows, labels: Scores, unseen: Sequence[Scores | None] | None = None) -> None:
        """Takes measurements in; ``unseen`` is what opinions that have seen these rows said before, each or None."""
        foretold = self._ranks[:, rows]
        for at, item in enumerate(unseen or ()):
            if item is not None and len(rows):
                foretold[at] = _behind(item / self._spread, self._tasks[rows])
        self.rows = np.concatenate([self.rows, rows])
        self._labels = np.concatenate([self._labels, labels / self._spread])
        self._foretold = np.concatenate([self._foretold, foretold], axis=1)

    def labels(self) -> Scores:
        """Labels of the measured rows behind the best of their task, in spreads, none further than ``REACH``."""
        return _behind(self._labels, self._tasks[self.rows])

    def best(self, count: int) -> Rows:
        """At most ``count`` unmeasured rows, in the order of what each adds to those before it."""
        open_rows = ~np.isin(self._short, self.rows)
        count = min(count, int(open_rows.sum()))
        if not count:
            return NOTHING
        drawn, tasks = self._drawn(), self._tasks[self._short]
        # of each task in each draw, share of the best
        result = np.zeros((int(self._tasks.max()) + 1, DRAWS), dtype=np.float32)
        measured = np.unique(self._tasks[self.rows])
        for task in np.unique(tasks):
            here = slice(None) if len(tasks) == np.sum(tasks == task) else tasks == task
            top = drawn[:, here].max(axis=1)
            if task in measured:
                top = np.maximum(top, 0.0)  # 0: the best measured row of the task
                result[task] = np.exp(-self._spread * top)
            drawn[:, here] = np.exp(np.float32(self._spread) * (drawn[:, here] - top[:, np.newaxis]))
        shares = np.ascontiguousarray(drawn.T)
        gains = np.where(open_rows, np.maximum(shares - result[tasks], 0.0).mean(axis=1), _NEVER)
        chosen: list[int] = []
        for row in self._owed(open_rows)[: round(OWED * count)]:
            chosen.append(row)
            gains[row] = _NEVER
            result[tasks[row]] = np.maximum(result[tasks[row]], shares[row])
        while len(chosen) < count:
            row = int(np.argmax(gains))
            # what a row adds only falls as others are chosen: only the first is worked out again, until it stays the first
            gains[row] = np.maximum(shares[row] - result[tasks[row]], 0.0).mean()
            if gains[row] >= gains.max():
                chosen.append(row)
                gains[row] = _NEVER
                result[tasks[row]] = np.maximum(result[tasks[row]], shares[row])
        return self._short[chosen]

    def _owed(self, open_rows: NDArray[np.bool_]) -> list[int]:
        """Places in the shortlist of the first rows of the most believed opinions that are not measured yet."""
        if len(self.rows) >= HEARD_UNTIL:
            return []
        tasks, owed = self._tasks[self._short], dict[int, None]()
        for task in range(int(tasks.max()) + 1):
            rows = np.flatnonzero(tasks == task)
            first = dict.fromkeys(int(rows[np.argmax(self._ranks[at, self._short[rows]])]) for at in self._by_weight)
            owed |= dict.fromkeys(list(first)[:HEARD])
        return [row for row in owed if open_rows[row]]

    def _cosines(self, rows: Rows) -> Singles:
        turned = _single(self._positions[rows] @ self._frequencies.T + self._phases)
        return np.cos(turned) * np.float32(np.sqrt(2.0 / FEATURES))

    def _alike(self, rows: Rows) -> Scores:
        """Correlation of errors of size 1 at some rows with those at the measured ones, ``(rows, measured)``."""
        from sklearn.gaussian_process.kernels import Matern  # a second to import: not of a portfolio that is never told

        return np.asarray(Matern(LENGTH, nu=2.5)(self._positions[rows], self._positions[self.rows]), dtype=np.float64)

    def _factor(self, error: float) -> tuple[Scores, bool]:
        """Of the covariance of the measured rows: errors of one size, the levels of tasks, what a program has for itself."""
        same = self._tasks[self.rows][:, np.newaxis] == self._tasks[self.rows]
        covariance = error**2 * self._alike(self.rows) + LEVEL**2 * same + ALONE**2 * np.eye(len(self.rows))
        return cho_factor(covariance, lower=True)  # type: ignore[no-any-return]

    def _likely(self) -> Scores:
        """The probability of each hypothesis: the likelihood that it gave to what was measured."""
        result = np.zeros(len(self._errors))
        if len(self.rows):
            wrong = self.labels() - self._hypotheses.means(_single(self._foretold), self._cosines(self.rows))
            for error in np.unique(self._errors):
                here = self._errors == error
                factor = np.tril(self._factor(float(error))[0])
                off = solve_triangular(factor, wrong[here].T, lower=True)
                result[here] = -(off**2).sum(axis=0) / 2 - np.log(np.diag(factor)).sum()
        likely = np.exp(TEMPER * (result - result.max()))
        return np.asarray(likely / likely.sum(), dtype=np.float64)

    def _drawn(self) -> Singles:
        """Truths drawn for the shortlist, in spreads; 0 is the best measured row of a task. ``(DRAWS, shortlist)``."""
        rng, measured = self._rng, len(self.rows)
        at = (np.arange(DRAWS) + rng.random()) / DRAWS  # systematic: no hypothesis is drawn far too often by chance
        picked = np.minimum(np.searchsorted(np.cumsum(self._likely()), at), len(self._errors) - 1)
        errors = self._errors[picked][:, np.newaxis]
        drawn = errors * self._smooth
        drawn += self._expected[picked]
        drawn += self._own
        if not measured:
            return drawn
        levels = LEVEL * rng.standard_normal((DRAWS, int(self._tasks.max()) + 1))
        features = self._cosines(self.rows)
        there = self._hypotheses.means(_single(self._foretold), features)[picked] + errors * (self._weights @ features.T)
        there += _single(levels)[:, self._tasks[self.rows]]
        there += np.float32(ALONE) * rng.standard_normal(there.shape, dtype=np.float32)
        wrong = self.labels() - there
        # levels come last: rows of a task move together, so each draw has one number for all of them
        moved = levels.copy()
        same = np.arange(moved.shape[1])[:, np.newaxis] == self._tasks[self.rows]
        alike = _single(self._alike(self._short))
        for error in np.unique(self._errors[picked]):
            here = self._errors[picked] == error
            solved = cho_solve(self._factor(float(error)), wrong[here].T)
            drawn[here] += np.float32(error**2) * (_single(solved).T @ alike.T)
            moved[here] += LEVEL**2 * (same @ solved).T
        return drawn + _single(moved)[:, self._tasks[self._short]]


def _single(values: Scores) -> Singles:
    return np.asarray(values, dtype=np.float32)


def _behind(values: Scores, tasks: Rows) -> Scores:
    """Each value less the greatest of its task, none further than ``REACH``."""
    best = np.full(int(tasks.max(initial=0)) + 1, -np.inf)
    np.maximum.at(best, tasks, values)
    return np.asarray(np.maximum(values - best[tasks], -REACH), dtype=np.float64)


def _shortlist(text: Scores, tasks: Rows, rng: np.random.Generator) -> Rows:
    """The top rows of each task by each opinion and as many by chance, ``SHORTLIST`` of all in all or a few more."""
    groups = [np.flatnonzero(tasks == task) for task in range(int(tasks.max()) + 1)]
    each = max(2, SHORTLIST // (len(groups) * (len(text) + 1)))
    result = [rows[np.argsort(-opinion[rows], kind="stable")[:each]] for rows in groups for opinion in text]
    result += [rng.permutation(rows)[:each] for rows in groups]
    return np.unique(np.concatenate(result)).astype(np.int64)


def _mixed(mixtures: Singles, text: Singles) -> Singles:
    """Opinions by their shares; what is left of the belief expects ``NOBODY``."""
    return np.asarray(mixtures @ text + NOBODY * (1.0 - mixtures.sum(axis=1, keepdims=True)), dtype=np.float32)


def program_units(frame: pd.DataFrame) -> Scores:
    """Program features that vary, in standard units over root of their number, so distances are root mean squares."""
    values = np.asarray(frame[list(PROGRAM_NAMES)], dtype=np.float64)
    spread = values.std(axis=0)
    selected = values[:, spread > 1e-9]
    if not selected.shape[1]:
        return np.zeros((len(frame), 1))
    return np.asarray(
        (selected - selected.mean(axis=0)) / selected.std(axis=0) / np.sqrt(selected.shape[1]), dtype=np.float64
    )
