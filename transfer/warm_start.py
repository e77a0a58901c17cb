"""Warm-started cost models that ``tune`` runs: one source's, or several whose portfolio names what is measured.

It begins where another model stands, learns what that has wrong, and says how far off it may be.

``tune`` starts from a saved model, or from the blend of the shipped models of near devices
(``haotuner/tuning/initial_model.py``). ``python -m tests.bench.transfer_study evaluate`` judges the same class as the mode
*started*.

Where sources disagree about the best kernels, the blend of all of them may rank a kernel low that one of them, rightly,
holds for the best. The rows to measure first are shared among the opinions as the zero-shot head and the first samples are
in ``python -m tests.bench.transfer_study report`` (docs/decisions/155); what came back is told to the portfolio, and to
the cost model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray
from scipy.linalg import cho_solve

from haotuner.cost.forest import Forest, Settings, line_through
from haotuner.cost.model import Scores, check_columns, check_rows, predict_alike
from haotuner.transfer.experts import ANALYSIS, COPY_MEAN, SHARES, weighted_opinions
from haotuner.transfer.portfolio import Opinion, Portfolio, program_units
from haotuner.transfer.saved_model import Transferred
from haotuner.transfer.sources import Scale

if TYPE_CHECKING:
    from sklearn.gaussian_process import GaussianProcessRegressor

BAG = 4  # forests, averaged: one forest of 30 rows is mostly chance
# Rows before trees learn what the start gets wrong; fewer teach level and slope only. With trees from eight rows on, AVX2 to
# AVX-512 and back were 3.1 and 4.6 % behind after a tenth of the measurements, from 48, 80 or 120 on 1.6 and 3.5 %; a start
# as far off as SSE loses by it (4.5 -> 10). Kernels to 98 % from this device's own model, two ops: 8 rows 20 and 34, 24: 16
# and 42, 48: 16 and 38, 80: 16 and 50.
TREE_ROWS = 48
TREES = Settings(trees=50, feature_share=0.5, slope=0.0)
# How far off the start is for all kernels alike depends on what binds them. From other devices' models, log units: AVX2 0.37
# at up to four rows and -0.24 beyond 64, AVX-512 -0.3 and 0.08; so a kernel measured at two rows looked a third better
# than all others there, whatever they were, and no other was tried.
REGIME = ("far_balance_log2",)
LEVEL = 0.3  # standard deviation of that level over regimes
REGIME_WIDTH = 1.0  # doublings of machine balance over which it changes
# Standard deviation of a kernel's error against others of its regime. Models of five other devices, three ops: 0.09 at
# one row, 0.12 at two, 0.15 to 0.27 beyond.
SPREAD = 0.15
# Measured rows that count as much as ``SPREAD``: a search's first rows are those where the start is at its best. Loss after
# a tenth, five devices, three seeds: 12 rows 2.1 %, 48 rows 1.9, ``SPREAD`` alone 1.9; seeds move a mean by half a percent.
SPREAD_ROWS = 48


class Ranks(Protocol):
    """Anything that ranks: log(throughput / roofline) of each row of a frame, higher is better."""

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Scores of shape ``(rows,)``."""
        ...


class Blend:
    """The mean of what models of other devices say, each by its prior: they err differently."""

    def __init__(self, models: Sequence[Ranks], priors: ArrayLike | None = None) -> None:
        """``priors`` of shape ``(models,)``, from 0 up; None gives each an equal one. ValueError if none is above 0."""
        inputs = np.ones(len(models)) if priors is None else np.asarray(priors, dtype=np.float64)
        if inputs.shape != (len(models),) or not np.isfinite(inputs).all() or (inputs < 0).any() or inputs.sum() <= 0:
            raise ValueError(f"a blend of {len(models)} models needs as many priors from 0 up, not all zero; got {inputs}")
        self.models, self.priors = tuple(models), inputs / inputs.sum()
        self._each = Remembered(_Every(self.models))

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Mean of predicted log(throughput / roofline), of shape ``(rows,)``."""
        return np.asarray(self.priors @ self.each(frame), dtype=np.float64)

    def each(self, frame: pd.DataFrame) -> Scores:
        """Predictions of each model, of shape ``(models, rows)``; not to be written to."""
        return self._each.predict(frame)


class _Every:
    """Models side by side."""

    def __init__(self, models: Sequence[Ranks]) -> None:
        self._models = models

    def predict(self, frame: pd.DataFrame) -> Scores:
        return predict_alike(frame, lambda rows: np.stack([model.predict(rows) for model in self._models]))


class Remembered:
    """A fitted model that answers from memory when one of the last two frames comes again, the very object.

    A search asks at every round what it starts from to say of its rows, in turn with the few that are measured; the rows
    stay and the start never changes. Five forests of 150 trees took a tenth of a second for 3,000 rows. Frames must not be
    changed meanwhile.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._last: list[tuple[pd.DataFrame, Scores]] = []

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Scores of the model, shape ``(rows,)``; not to be written to."""
        prediction = next((text for requested, text in self._last if requested is frame), None)
        if prediction is None:
            prediction = self.ranks.predict(frame)
        self._last = [(frame, prediction), *((requested, old) for requested, old in self._last if requested is not frame)][
            :2
        ]
        return prediction


class Started:
    """An ``HasSpread`` cost model over a fitted one: the start alone before ``fit``, corrected by measured rows after it."""

    def __init__(self, start: Ranks, seed: int = 0) -> None:
        self.start = Remembered(start)  # copies of this model, one a round of a search, share it
        self.seed = seed
        self._line = (0.0, 1.0)
        self._level: GaussianProcessRegressor | None = None
        self._trees: tuple[Forest, ...] = ()
        self._spread = SPREAD

    def fit(self, frame: pd.DataFrame, log_efficiency: ArrayLike, sample_weight: ArrayLike | None = None) -> Started:
        """Learn level and slope of the start, a level for each regime, then trees; rows of an earlier call are forgotten."""
        check_columns(frame)
        labels, inputs = check_rows(frame, log_efficiency, sample_weight)
        prediction = self.start.predict(frame)
        self._line = line_through(prediction, labels, inputs, None)
        left = labels - self._line[0] - self._line[1] * prediction
        mass = np.ones(len(labels)) if inputs is None else np.maximum(inputs / inputs.mean(), 1e-6)
        from sklearn.gaussian_process import GaussianProcessRegressor
        from sklearn.gaussian_process.kernels import RBF, ConstantKernel

        kernel = ConstantKernel(LEVEL**2, "fixed") * RBF(REGIME_WIDTH, "fixed")
        self._level = GaussianProcessRegressor(kernel, alpha=SPREAD**2 / mass, optimizer=None).fit(_regime(frame), left)
        unseen = _left_out(self._level)
        known = SPREAD_ROWS * SPREAD**2 + mass @ unseen**2
        self._spread = float(np.sqrt(known / (SPREAD_ROWS + mass.sum())))
        left = left - self._level.predict(_regime(frame))
        enough = len(labels) >= TREE_ROWS
        self._trees = tuple(
            Forest(seed=self.seed * BAG + i, settings=TREES).fit(frame, left, inputs) for i in range(BAG if enough else 0)
        )
        return self

    def predict(self, frame: pd.DataFrame) -> Scores:
        """Log(throughput / roofline) of shape ``(rows,)``; higher is better."""
        result = self._line[0] + self._line[1] * self.start.predict(frame)
        if self._level is not None and len(frame):
            result = result + self._level.predict(_regime(frame))
        if self._trees:
            result = result + np.mean([forest.predict(frame) for forest in self._trees], axis=0)
        return np.asarray(result, dtype=np.float64)

    def spread(self, frame: pd.DataFrame) -> Scores:
        """Standard deviation of a row's error against other rows of its regime, log units, of shape ``(rows,)``.

        What all of them have wrong alike is not in it: it does not decide which is measured next.
        """
        check_columns(frame)
        return np.full(len(frame), self._spread)


def _regime(frame: pd.DataFrame) -> Scores:
    return np.asarray(frame[list(REGIME)], dtype=np.float64)


def _left_out(fitted: GaussianProcessRegressor) -> Scores:
    """Error of each row when predicted from the others alone (Rasmussen and Williams, 2006, eq. 5.12)."""
    inverse = cho_solve((fitted.L_, True), np.eye(len(fitted.L_)))
    return np.asarray(fitted.alpha_ / np.diag(inverse), dtype=np.float64)


Opinions = Callable[[pd.DataFrame], Sequence[Opinion]]
FEWEST = 2  # sources, below which there is nobody to disagree


class Shared(Started):
    """An ``HasSpread`` and ``HasEnsemble`` cost model: ``Started``, and the opinions that its start is made of."""

    def __init__(self, start: Ranks, opinions: Opinions, *, seed: int = 0) -> None:
        super().__init__(start, seed)
        self._opinions = opinions

    def opinions(self, frame: pd.DataFrame) -> Scores:
        """Opinions before any measurement, in log efficiency, ``(opinions, rows)``."""
        return np.stack([opinion.prediction for opinion in self._opinions(frame)])

    def head(
        self, frame: pd.DataFrame, tasks: NDArray[np.int64], count: int, measured: NDArray[np.int64], labels: ArrayLike
    ) -> NDArray[np.int64]:
        """At most ``count`` rows to measure next, by a portfolio that knows what was measured; see ``HasEnsemble``."""
        portfolio = Portfolio(
            self._opinions(frame),
            program_units(frame),
            tasks,
            spread=Scale.of(self.start.predict(frame)).spread,
            doubt=SHARES.doubt,
            rng=np.random.default_rng([self.seed, 2, len(measured)]),
        )
        portfolio.update(measured, np.asarray(labels, dtype=np.float64))
        return portfolio.best(count)


def shared_of_sources(model: Transferred, seed: int = 0) -> Started:
    """A start from what ``transfer fit`` wrote: its opinions as long as no sample of the target has told who is right."""
    sources = model.sources
    if len(sources.ids) < FEWEST or sources.distances.min() == 0:  # the device's own records have told who is right
        return Started(model, seed=seed)

    def opinions(frame: pd.DataFrame) -> list[Opinion]:
        columns = sources.columns(frame)
        return weighted_opinions(sources, columns, sources.remembered(frame, columns), {})

    return Shared(model, opinions, seed=seed)


def shared_of_models(models: Sequence[Ranks], distances: Sequence[float], blend: Blend, seed: int = 0) -> Started:
    """A start from models of single devices, so many doublings of resources away: each, their mean, and the analysis."""
    if len(models) < FEWEST:
        return Started(blend, seed=seed)
    near = np.exp2(-np.asarray(distances, dtype=np.float64) / SHARES.halving)

    def opinions(frame: pd.DataFrame) -> list[Opinion]:
        answer = blend.each(frame)
        result = [Opinion(name=f"model {at}", prediction=each, weight=float(near[at])) for at, each in enumerate(answer)]
        together = SHARES.together * float(near.max())
        result.append(Opinion(name="blend", prediction=np.asarray(blend.priors @ answer), weight=together))
        result.append(Opinion(name=COPY_MEAN, prediction=answer.mean(axis=0), weight=together))
        analysis = np.asarray(frame["expected_log"], dtype=np.float64)
        return [*result, Opinion(name=ANALYSIS, prediction=analysis, weight=SHARES.analysis)]

    return Shared(blend, opinions, seed=seed)
