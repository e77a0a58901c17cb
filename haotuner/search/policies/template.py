"""Policy ``template``: a declared schedule with holes, explored by simulated annealing (AutoTVM, NeurIPS 2018; FlexTensor).

What the template fixes is never tried: that is what a template costs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from haotuner.codegen.space import Point, Space
from haotuner.codegen.template import Template
from haotuner.search.policies.policy import Expected

CHAINS = 4
HEAT, COOLING = 0.2, 0.9  # log units that a worse point may be accepted for at first; times that after each round
# The template where a user has none: the innermost axis, one row, masked ends.
ONE_ROW = Template.of({"axis": 0, "rows": 1, "masked": 1}, "the template of one row")


class Annealing:
    """Chains of points that move to neighbours in the template."""

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self._space = replace(space, template=ONE_ROW) if space.template is None else space
        self._random = np.random.default_rng(seed)
        self._at: list[Point] = []
        self._score: dict[Point, float] = {}
        self._proposed: dict[Point, int] = {}  # the chain that asked
        self._heat = HEAT

    def ask(self, count: int) -> list[Point]:
        """Neighbours of where the chains are; by chance where a chain has none left."""
        points: list[Point] = []
        while len(points) < count and len(self._proposed) < len(self._space.points):
            chain = len(points) % CHAINS
            near = self._near(self._at[chain]) if len(self._at) == CHAINS else []
            pool = near or [point for point in self._space.points if point not in self._proposed]
            chosen = pool[int(self._random.integers(len(pool)))]
            self._proposed[chosen] = chain
            points.append(chosen)
        return points

    def _near(self, point: Point) -> list[Point]:
        return [neighbour for neighbour in self._space.neighbours(point) if neighbour not in self._proposed]

    def tell(self, scores: Sequence[tuple[Point, float]]) -> None:
        """Each chain moves to a better point, to a worse one by chance."""
        for point, score in scores:
            self._score[point] = score
            if len(self._at) < CHAINS:
                self._at.append(point)
                continue
            chain = self._proposed.get(point, 0)
            worse = score - self._score[self._at[chain]]
            if worse <= 0 or self._random.random() < np.exp(-worse / self._heat):
                self._at[chain] = point
        self._heat *= COOLING
