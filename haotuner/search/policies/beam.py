"""Policy ``beam``: decisions in a fixed order, the best few incomplete programs kept at each (Adams et al., SIGGRAPH 2019).

An incomplete program is scored with the first choice of every decision that is not made yet. Its weakness is known: what
looks bad half-way is never completed.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.codegen.space import Point, Space
from haotuner.search.policies.policy import Expected, Fitness

WIDTH = 8


class Beam:
    """Builds programs decision by decision; a wider beam once all that it found were asked for."""

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self._space, self._fitness = space, Fitness(space, expected, seed)
        self._width, self._proposed = WIDTH, set[Point]()

    def ask(self, count: int) -> list[Point]:
        """The best complete programs of the beam that were not asked for."""
        while True:
            points = [point for point in self._search() if point not in self._proposed][:count]
            if points or self._width > len(self._space.points):
                self._proposed.update(points)
                return points
            self._width *= 2

    def tell(self, scores: Sequence[tuple[Point, float]]) -> None:
        """The fitness learns."""
        self._fitness.tell(scores)

    def _search(self) -> list[Point]:
        left: list[Point] = [tuple(places[0] for places in self._space.allowed)]
        for index, hole in enumerate(self._space.holes):
            every = [
                self._space.canonical((*point[:index], at, *point[index + 1 :]))
                for point in left
                for at in range(len(hole.choices))
            ]
            grown = list(dict.fromkeys(point for point in every if point is not None))
            order = np.argsort(self._fitness.predicted(grown), kind="stable")[: self._width]
            left = [grown[at] for at in order.tolist()]
        return left
