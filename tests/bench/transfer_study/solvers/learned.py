"""The learned choice: a forest over problem, solver and device, put right by what near sources say of the very problem.

The forest predicts a solver's share of the best time on a device. It learns from half of the problems and is asked of the
other, so what it errs by on a source is honest. Errors of the same (problem, solver) on devices of one kind hang together;
the target's are estimated from the sources' as a Gaussian process does (kriging over devices).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from haotuner.hw_profiles.table import Known
from haotuner.records.miopen import Ids, Times
from tests.bench.transfer_study.solvers.features import device_row
from tests.bench.transfer_study.solvers.pool import Rows, SolverPool, Values

if TYPE_CHECKING:
    import lightgbm

_WORST = -2.0  # a seventh of the best: how much worse does not matter
_LEAST_MS = 0.02  # shorter problems measure the launch
_HALVES = 2
# What is believed of a pair's correlation before pairs of sources are asked, worth as many pairs: some if both are of one
# generation, none otherwise.
_SAME, _OTHER, _WORTH = 0.3, 0.0, 2.0
_NOISE = 0.05  # of a share, as a share of the variance of errors
_PAIRS = 200  # common rows that tell a correlation
_GENERATIONS = ("", "gcn", "cdna", "rdna")


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How much is learned, and of what."""

    problems: int = 30_000  # of each source and half, drawn at random
    rounds: int = 300
    leaves: int = 127
    hardware: bool = True  # whether the forest and the kriging may see what the devices are
    kriging: bool = True
    seed: int = 0


class LearnedChoice:
    """Fitted on sources; scores the rows of any device."""

    def __init__(self, pool: SolverPool, sources: Sequence[Rows], settings: Settings) -> None:
        self.pool, self.sources, self.settings = pool, list(sources), settings
        self.half = np.random.default_rng([settings.seed, 7]).integers(0, _HALVES, len(pool.problems))
        self.forests = [self._fit(half) for half in range(_HALVES)]

    def scores(self, target: Rows) -> Times:
        """Of each of the target's rows, log share of the best time as expected; nothing but its problems is read."""
        answer = self._expected(target.problem, target.solver, target.device)
        if not self.settings.kriging:
            return answer
        errors = np.stack([self.errors(source, target.problem, target.solver) for source in self.sources], axis=1)
        return answer + kriged(errors, self._among(errors), self._with(target.device, errors))

    def errors(self, source: Rows, problem: Ids, solver: Ids) -> Times:
        """What a source said of each (problem, solver), less what is expected; NaN where it did not, or problem is -1."""
        there = np.where(problem < 0, np.nan, source.said_of(problem * len(self.pool.solvers) + solver))
        known = np.flatnonzero(~np.isnan(there))
        there[known] = np.maximum(there[known], _WORST) - self._expected(problem[known], solver[known], source.device)
        return there

    def _fit(self, half: int) -> lightgbm.Booster:
        import lightgbm  # a second to import

        rng = np.random.default_rng([self.settings.seed, half])
        inputs, labels = [], []
        for source in self.sources:
            usable = source.choices(_LEAST_MS)
            problems = np.unique(source.problem[usable])
            problems = rng.permutation(problems[self.half[problems] == half])[: self.settings.problems]
            rows = usable[np.isin(source.problem[usable], problems)]
            inputs.append(self._inputs(source.problem[rows], source.solver[rows], source.device))
            labels.append(np.maximum(source.share[rows], _WORST))
        data = lightgbm.Dataset(np.concatenate(inputs), np.concatenate(labels), categorical_feature=[0])
        description = {
            "objective": "regression",
            "num_leaves": self.settings.leaves,
            "learning_rate": 0.1,
            "min_data_in_leaf": 30,
            "feature_fraction": 0.6,
            "bagging_fraction": 0.7,
            "bagging_freq": 1,
            "num_threads": 1,  # the same trees whatever the machine
            "deterministic": True,
            "seed": self.settings.seed,
            "verbose": -1,
        }
        return lightgbm.train(description, data, self.settings.rounds)

    def _inputs(self, problem: Ids, solver: Ids, device: Known) -> Values:
        parts = [solver[:, None].astype(np.float32), self.pool.problem_values[problem], self.pool.solver_values[solver]]
        if self.settings.hardware:
            facts = np.array([*device_row(device).values(), _generation(device)], np.float32)
            parts.append(np.tile(facts, (len(problem), 1)))
        return np.concatenate(parts, axis=1)

    def _expected(self, problem: Ids, solver: Ids, device: Known) -> Times:
        result = np.empty(len(problem))
        for half, forest in enumerate(self.forests):
            rows = np.flatnonzero(self.half[problem] != half)  # of problems that this forest did not learn
            if len(rows):
                result[rows] = forest.predict(self._inputs(problem[rows], solver[rows], device))
        return result

    def _among(self, errors: Times) -> Times:
        """Correlation of the sources' errors; shape ``(sources, sources)``."""
        count = len(self.sources)
        result = np.eye(count)
        for index in range(count):
            for other in range(index):
                both = ~np.isnan(errors[:, index]) & ~np.isnan(errors[:, other])
                if both.sum() >= _PAIRS:
                    result[index, other] = result[other, index] = _correlation(errors[both, index], errors[both, other])
        return result

    def _with(self, target: Known, errors: Times) -> Times:
        """Correlation of the target's errors with each source's, as pairs of sources of the same relation have it."""
        among = self._among(errors)
        pairs: dict[bool, list[float]] = {True: [], False: []}
        for index in range(len(self.sources)):
            for other in range(index):
                if among[index, other] != 0.0:
                    pairs[self._alike(self.sources[index].device, self.sources[other].device)].append(among[index, other])
        believed = {
            alike: (sum(pair) + _WORTH * (_SAME if alike else _OTHER)) / (len(pair) + _WORTH)
            for alike, pair in pairs.items()
        }
        return np.array([max(believed[self._alike(target, source.device)], 0.0) for source in self.sources])

    def _alike(self, item: Known, other: Known) -> bool:
        return self.settings.hardware and item.generation == other.generation


def kriged(errors: NDArray[np.float64], among: Times, with_target: Times) -> Times:
    """The target's error as expected from those of the sources that are known; 0 where none is.

    ``errors`` ``(rows, sources)``, NaN where a source did not time it; ``among`` their correlations; ``with_target``.
    """
    known = ~np.isnan(errors)
    result = np.zeros(len(errors))
    patterns, of = np.unique(known, axis=0, return_inverse=True)
    for at, pattern in enumerate(patterns):
        some = np.flatnonzero(pattern)
        if len(some):
            system = among[np.ix_(some, some)] + _NOISE * np.eye(len(some))
            weights = np.asarray(np.linalg.solve(system, with_target[some]), np.float64)
            rows = np.flatnonzero(of.ravel() == at)
            result[rows] = errors[np.ix_(rows, some)] @ weights
    return result


def _generation(device: Known) -> float:
    return float(_GENERATIONS.index(device.generation)) if device.generation in _GENERATIONS else np.nan


def _correlation(item: Times, other: Times) -> float:
    table: NDArray[np.float64] = np.asarray(np.corrcoef(item, other), np.float64)
    return float(table[0, 1])
