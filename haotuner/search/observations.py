"""Observation table: times of every candidate of one op, measured and shrunk, or predicted.

Shrinkage: measured times drawn towards what a model expects, each as far as its repeats disagree (empirical Bayes).

A log time is the truth plus noise of a known variance. The truth is what the model expects plus an error whose variance all
residuals tell (Efron & Morris, JASA 1975; Robbins 1956). So a time whose samples agree stays, and a single noisy one neither
makes a kernel the best nor throws it out.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.features import features
from haotuner.cost.forest import Forest
from haotuner.cost.model import Analytic, CostModel, HasSpread, ensemble_predictions
from haotuner.cost.roofline import roofline_us
from haotuner.cost.scores import best_at, group_splits, pairwise_accuracy
from haotuner.plan.compose import Curve, covers_every
from haotuner.search.failures import FailedKernels
from haotuner.search.probes import Probe, initial_design, rows_of, uses
from haotuner.spec.device import Device
from haotuner.spec.family import Family, Layout
from haotuner.spec.kernel import Candidate, MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape

BETWEEN = 0.02  # log units by which processes differ though samples of each agree: where code and data lie
MODEL_LEAST = 0.08  # log units that a model is off at least: it was fitted to these very times
LEAST_TIMES = 12  # fewer say too little of how far the model is off
MAD_TO_SD = 1.4826  # of a normal distribution


def variance_of(outcome: Timed) -> float:
    """Of the log of a trial's median: what its samples say of it, and what other processes would."""
    return (MAD_TO_SD * outcome.spread) ** 2 / len(outcome.samples_us) + BETWEEN**2


def combined(us: float, variance: float, other_us: float) -> tuple[float, float]:
    """The mean of a time and of one of another process, and its variance: as much as both disagree, where that is more."""
    apart = float(np.log(other_us / us)) ** 2 / 2
    return (us + other_us) / 2, max(variance, apart) / 2


def shrunk(
    us: NDArray[np.float64], variances: NDArray[np.float64], expected: Sequence[float], *, least: float = MODEL_LEAST
) -> NDArray[np.float64]:
    """Times drawn towards ``expected``, which is put on their level; as they are where there are few. Microseconds.

    ``least``: log units that the model is off at least.
    """
    if len(us) < LEAST_TIMES:
        return us
    off = np.log(us / np.asarray(expected))
    level = float(np.median(off))
    error = (MAD_TO_SD * float(np.median(np.abs(off - level)))) ** 2
    model = max(error - float(np.median(variances)), least**2)
    return np.asarray(us * np.exp(-(off - level) * variances / (variances + model)), np.float64)


LEAST_ROWS = 24  # fewer measured rows teach a forest less than the analytic rule already knows
LEAST_STARTED_ROWS = 12  # what a model learnt elsewhere needs to be put right: a level and a slope
FOLDS = 4
NEAR = 0.25  # squared doublings of rows, within which measured times count alike for a prediction's level
MEASURED_ONLY = np.inf  # a doubt in which no prediction counts


class ObservationTable:
    """Measured times of one op's candidates on one thread, and curves made from them."""

    def __init__(
        self,
        op: Op,
        family: Family,
        device: Device,
        probes: Sequence[Probe],
        *,
        cache: str,
        seed: int,
        model: CostModel | None = None,
    ) -> None:
        self.op, self.family, self.device, self.cache = op, family, device.with_units(1), cache
        self.probes = {p.kernel.name: p for p in probes}
        self.us: dict[str, float] = {}  # trial key -> median
        self._variances: dict[str, float] = {}  # trial key -> of the log of that time
        self.failed = FailedKernels()
        self._seed = seed
        self._initial_model = model
        self._model: CostModel = model or Analytic()
        self._learned = model is not None
        pairs = [(p.kernel, trial.shape) for p in probes for _, trial in p.lead]
        self._trials = [trial for p in probes for _, trial in p.lead]
        self._row_of = {trial.key(): i for i, trial in enumerate(self._trials)}
        self._frame = features(self.device, family, op, pairs, weights=cache)
        self._roof = np.asarray(roofline_us(self.device, op, [shape for _, shape in pairs]), np.float64)
        self._groups = np.array([i for i, p in enumerate(probes) for _ in p.lead])
        self._predict()

    @property
    def started(self) -> bool:
        """True if a model learnt elsewhere ranks from the beginning."""
        return self._initial_model is not None

    @property
    def spread(self) -> float:
        """Error of predictions, in the median, log units; zero from a model that does not say."""
        return float(np.median(self._spread))

    def _fresh(self) -> CostModel:
        """A model to be fitted to the rows measured here: the given one put right, or a forest from nothing."""
        return Forest(seed=self._seed) if self._initial_model is None else copy.copy(self._initial_model)

    def note(self, record: Record) -> None:
        """Take in one record of this op's probes."""
        if isinstance(record.outcome, Timed):
            self.us[record.trial.key()] = record.outcome.median_us
            self._variances[record.trial.key()] = variance_of(record.outcome)
        else:
            self.failed.note(record.trial.kernel, record)

    def forget_timeouts(self) -> bool:
        """Take kernels back whose time-outs say nothing of them (``FailedKernels``); True if there are any."""
        timed = sum(any(trial.key() in self.us for trial in probe.trials()) for probe in self.probes.values())
        return self.failed.forget_timeouts(timed)

    def confirm(self, trial: Trial, us: float) -> None:
        """Take in a second time of a trial: the mean counts from now on."""
        key = trial.key()
        self.us[key], self._variances[key] = combined(self.us[key], self._variances[key], us)

    def _shrunk(self) -> dict[str, float]:
        """The measured times of leading regions, by trial key, drawn towards predictions as far as they are noise."""
        keys = [key for key in self._row_of if key in self.us]
        us, variances = (np.array([of[key] for key in keys], np.float64) for of in (self.us, self._variances))
        times = shrunk(us, variances, [float(self._predicted[self._row_of[key]]) for key in keys])
        return dict(zip(keys, times.tolist(), strict=True))

    def open(self, trials: Iterable[Trial]) -> list[Trial]:
        """Those without a time."""
        return [trial for trial in trials if trial.key() not in self.us]

    def measured(self, name: str) -> bool:
        """True if every trial of the kernel's probe has a time."""
        return all(trial.key() in self.us for trial in self.probes[name].trials())

    def finished(self, names: Sequence[str]) -> list[str]:
        """Those of the kernels that are measured."""
        return [name for name in names if self.measured(name)]

    def judged(self, names: Sequence[str]) -> list[str]:
        """Those that a plan may be judged by: the measured ones, with a model learnt elsewhere also those in part."""
        if not self.started:
            return self.finished(names)
        return [n for n in names if n not in self.failed and any(t.key() in self.us for _, t in self.probes[n].lead)]

    def done(self, name: str) -> bool:
        """True if there is nothing left to learn about the kernel."""
        return name in self.failed or self.measured(name)

    def learn(self) -> None:
        """Fit the model to what is measured and predict the rest."""
        rows, labels = self._labelled()
        if len(rows) >= (LEAST_STARTED_ROWS if self.started else LEAST_ROWS):
            self._model = self._fresh().fit(self._frame.iloc[rows], labels)
            self._predict()
            self._learned = True

    def _predict(self) -> None:
        self._predicted = self._roof / np.exp(self._model.predict(self._frame))
        model = self._model
        self._spread = model.spread(self._frame) if isinstance(model, HasSpread) else np.zeros(len(self._frame))

    def level(self) -> None:
        """Put predictions on the scale of what is measured: each is off by what those near it in rows are."""
        rows, labels = self._labelled()
        if len(rows):
            axis = self.op.dynamic[0]
            extents = np.log2([trial.shape[axis] for trial in self._trials])
            off = np.log(self._roof[rows] / np.exp(labels) / self._predicted[rows])
            near = 1.0 / (NEAR + (extents[:, None] - extents[rows]) ** 2)
            self._predicted = self._predicted * np.exp(near @ off / near.sum(axis=1))

    def head(self) -> dict[str, list[Trial]]:
        """Trials to take first, by kernel, where the opinions behind the given model disagree (``probes.py``).

        A kernel of one row comes first: every plan needs one, and a run that is cut short should have seen it.
        """
        rows, labels = self._labelled()
        lost = np.array([row for row, trial in enumerate(self._trials) if trial.kernel in self.failed], np.int64)
        known = dict(zip(rows.tolist(), labels.tolist(), strict=True))
        result: dict[str, list[Trial]] = {}
        for row in initial_design(self._initial_model, self._frame, list(self._uses()), known, left_out=lost):
            trial = self._trials[row]
            result.setdefault(trial.kernel, []).append(trial)
        return dict(sorted(result.items(), key=lambda item: not covers_every(self.probes[item[0]])))

    def scores(self) -> dict[str, float]:
        """Pairwise accuracy, best@1 and best@10 on kernels held out of the fit; empty if too little is measured."""
        rows, labels = self._labelled()
        if len(rows) < 2 * LEAST_ROWS:
            return {}
        result: dict[str, list[float]] = {"pairwise": [], "best@1": [], "best@10": []}
        stored = np.full(len(rows), np.nan)
        for train, test in group_splits(self._groups[rows], FOLDS, self._seed):
            model = self._fresh().fit(self._frame.iloc[rows[train]], labels[train])
            stored[test] = model.predict(self._frame.iloc[rows[test]])
        for competing in self._uses():
            at = np.flatnonzero(np.isin(rows, competing))
            if len(at) < LEAST_ROWS // 2:
                continue
            result["pairwise"].append(pairwise_accuracy(stored[at], labels[at]))
            result["best@1"].append(best_at(stored[at], np.exp(labels[at]), 1))
            result["best@10"].append(best_at(stored[at], np.exp(labels[at]), 10))
        return {name: float(np.mean(values)) for name, values in result.items() if values}

    def _uses(self) -> NDArray[np.int64]:
        """Rows that compete with each other, every kernel's in one use: shape ``(uses, kernels)``, no use twice.

        A tall tile's row may stand for several uses; under traffic of few rows the longest one does for those beyond it.
        """
        every = []
        for probe in self.probes.values():
            row_at = {tiles: self._row_of[trial.key()] for tiles, trial in probe.lead}
            every.append([row_at[min(tiles, max(row_at))] for tiles in uses(probe.rows)])
        return np.unique(np.array(every, np.int64).T, axis=0)

    def _labelled(self) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        rows = np.array(sorted(row for key, row in self._row_of.items() if key in self.us), np.int64)
        us = {row: self.us[key] for key, row in self._row_of.items() if key in self.us}
        return rows, np.array([np.log(self._roof[row] / us[row]) for row in rows.tolist()], np.float64)

    def curves(self, names: Sequence[str], doubt: float = 0.0) -> list[Curve]:
        """Curves of kernels that did not fail; a point that was not measured is predicted.

        ``doubt``: by how many times its spread a prediction is taken to be slower; below zero, faster; ``MEASURED_ONLY``
        leaves predictions out, of kernels that have a time.
        """
        none = np.full_like(self._predicted, np.inf)
        us = none if doubt == MEASURED_ONLY else self._predicted * np.exp(doubt * self._spread)
        timed = self._shrunk()
        return [self._curve(self.probes[name], us, timed) for name in names if name not in self.failed]

    def layouts(self, names: Sequence[str], doubt: float = 0.0) -> dict[Layout, list[Curve]]:
        """Curves by the layout of the weight that the kernels read; ``names`` and ``doubt`` as of ``curves``."""
        result: dict[Layout, list[Curve]] = {}
        for name, curve in zip((n for n in names if n not in self.failed), self.curves(names, doubt), strict=True):
            result.setdefault(self.probes[name].layout, []).append(curve)
        return result

    def _curve(self, probe: Probe, predicted: NDArray[np.float64], known: Mapping[str, float]) -> Curve:
        every = {tiles: known.get(t.key(), float(predicted[self._row_of[t.key()]])) for tiles, t in probe.lead}
        points = {tiles: us for tiles, us in every.items() if us < np.inf}
        timed = any(trial.key() in self.us for _, trial in probe.lead)  # else it stood beside predictions
        follow = self.us.get(probe.follow.key()) if timed else None
        if follow is None:  # in bulk the weight is amortised: the last probe's time per tile is what a follower costs
            tiles, us = max(points.items())
            follow_us = us / tiles
        else:
            follow_us = follow * probe.follow_scale
        return Curve.of(probe.kernel.name, probe.rows, points, follow_us)


def expectation(
    op: Op, family: Family, device: Device, cache: str, model: CostModel | None = None
) -> Callable[[Sequence[MicroKernel]], NDArray[np.float64]]:
    """The score of kernels for selection: the share of the roofline that a model (None: the analytic one) expects of each.

    A column for every use (``uses``): the kernel that is best alone is rarely the best in bulk. A model that rests on
    several opinions gives these for itself and for each of them, so that a kernel is kept which one alone ranks first.
    """
    ranks = Analytic() if model is None else model

    def score(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        axis, rows = op.dynamic[0], [rows_of(family, kernel, op) for kernel in kernels]
        pairs = [(k, Shape.of({axis: tiles * r})) for k, r in zip(kernels, rows, strict=True) for tiles in uses(r)]
        predictions = ensemble_predictions(ranks, features(device.with_units(1), family, op, pairs, weights=cache))
        times = np.asarray(np.exp(predictions).reshape(len(predictions), len(kernels), -1), np.float64)
        return times if len(times) > 1 else np.asarray(times[0], np.float64)

    return score


def names(candidates: Sequence[Candidate]) -> list[str]:
    """Names of candidates, in their order."""
    return [candidate.kernel.name for candidate in candidates]
