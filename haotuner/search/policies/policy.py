"""Policy: which points of a space to time next; the fitness that policies share; the random baseline.

Policy ``random``: every point alike. The baseline that any other must beat.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.codegen.space import Point, Space
from haotuner.cost.forest import Settings

if TYPE_CHECKING:
    import lightgbm

Floats: TypeAlias = NDArray[np.float64]
Expected: TypeAlias = Callable[[Sequence[Point]], Floats]  # log of expected microseconds, of shape (points, shapes)
# Few rows and short searches: small trees, as many as make up for them (not tuned on the tables of the page).
TREES = Settings(trees=60, leaves=15, rows_per_leaf=4, learning_rate=0.12)


class Policy(Protocol):
    """Asks for points and is told what they took. A score is the mean log of the time at some shapes: lower is better."""

    def ask(self, count: int) -> list[Point]:
        """At most so many points that were not asked for before; none when there are no more."""
        ...

    def tell(self, scores: Sequence[tuple[Point, float]]) -> None:
        """Report of what points took; infinity for what failed."""
        ...


Maker: TypeAlias = Callable[[Space, Expected, int], Policy]  # the int is a seed


class Fitness:
    """Predicted scores: what is expected of a program, and LightGBM for what that misses (Ke et al., NIPS 2017)."""

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self.space, self._expected, self._seed = space, expected, seed
        self._rows: dict[Point, Floats] = {}
        self.known: dict[Point, float] = {}
        self._booster: lightgbm.Booster | None = None
        self._level = 0.0
        self._trust = 1.0  # in expectations: the slope of what was measured over them

    def tell(self, scores: Sequence[tuple[Point, float]]) -> None:
        """Take in what was measured and learn from all of it."""
        import lightgbm

        self.known.update((point, score) for point, score in scores if np.isfinite(score))
        if len(self.known) < 8:
            return
        points = list(self.known)
        rows = self._features(points)
        scores_ = np.array([self.known[point] for point in points])
        self._trust = _slope(rows[:, len(self.space.holes) :].mean(axis=1), scores_)
        labels = scores_ - self._prior(rows)
        data = lightgbm.Dataset(rows, labels - labels.mean(), params={"verbosity": -1})
        self._level = float(labels.mean())
        parameters = TREES.parameters(len(points), seed=self._seed, threads=1)
        self._booster = lightgbm.train(parameters, data, num_boost_round=TREES.trees)

    def predicted(self, points: Sequence[Point]) -> Floats:
        """Scores, of shape ``(len(points),)``: lower is better."""
        rows = self._features(points)
        result = self._prior(rows)
        if self._booster is not None:
            result = result + self._level + np.asarray(self._booster.predict(rows), np.float64)
        return np.asarray(result, np.float64)

    def _prior(self, rows: Floats) -> Floats:
        return self._trust * np.asarray(rows[:, len(self.space.holes) :].mean(axis=1), np.float64)

    def _features(self, points: Sequence[Point]) -> Floats:
        new = [point for point in dict.fromkeys(points) if point not in self._rows]
        if new:
            for point, expected in zip(new, self._expected(new), strict=True):
                self._rows[point] = np.concatenate([np.array(point, np.float64), expected])
        return np.array([self._rows[point] for point in points], np.float64)


def _slope(expected: Floats, measured: Floats) -> float:
    """Slope of least squares between 0 and 1; 1 where all that was expected is alike."""
    moved = expected - expected.mean()
    spread = float(moved @ moved)
    return float(np.clip(moved @ measured / spread, 0.0, 1.0)) if spread > 0 else 1.0


class Random:
    """All points in an order by chance."""

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self._remaining = [space.points[at] for at in np.random.default_rng(seed).permutation(len(space.points)).tolist()]

    def ask(self, count: int) -> list[Point]:
        """The next points."""
        points, self._remaining = self._remaining[:count], self._remaining[count:]
        return points

    def tell(self, scores: Sequence[tuple[Point, float]]) -> None:
        """Learns nothing."""
