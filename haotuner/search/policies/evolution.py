"""Policy ``evolution``: a population under mutation and node-based crossover, a learned fitness (Ansor, OSDI 2020)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.codegen.space import Point, Space
from haotuner.search.policies.policy import Expected, Fitness

POPULATION, GENERATIONS, ELITE = 32, 3, 12
CROSSED = 0.4  # share of the children that have two parents, where there is crossover
BY_CHANCE = 0.1  # of what is asked for: a model is only as good as its examples
WARMTH = 0.1  # log units of score over which one node's decisions are preferred to another's


class Evolution:
    """Mutation moves one decision; crossover takes each node's decisions from the parent whose node is the better one."""

    crosses = True

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self._space, self._random = space, np.random.default_rng(seed)
        self._fitness, self._proposed = Fitness(space, expected, seed), set[Point]()
        self._holes_by_node = [
            tuple(index for index, hole in enumerate(space.holes) if hole.node == node) for node in space.nodes()
        ]

    def ask(self, count: int) -> list[Point]:
        """The fittest of a population that has evolved, and some by chance."""
        if len(self._proposed) >= len(self._space.points):
            return []
        known = sorted(self._fitness.known, key=lambda point: self._fitness.known[point])[:ELITE]
        population = list(dict.fromkeys([*known, *(self._space.drawn(self._random) for _ in range(POPULATION))]))
        every = dict.fromkeys(population)
        for _ in range(GENERATIONS):
            scores = self._fitness.predicted(population)
            chance = np.exp(-(scores - scores.min()) / WARMTH)
            chance /= chance.sum()
            children = [self._child(population, scores, chance) for _ in range(POPULATION)]
            pool = list(dict.fromkeys([*population, *children]))
            order = np.argsort(self._fitness.predicted(pool), kind="stable")[:POPULATION]
            population = [pool[at] for at in order.tolist()]
            every.update(dict.fromkeys(pool))
        fresh = [point for point in every if point not in self._proposed]
        order = np.argsort(self._fitness.predicted(fresh), kind="stable") if fresh else np.zeros(0, int)
        drawn = sum(self._random.random() < BY_CHANCE for _ in range(count))
        points = [fresh[at] for at in order.tolist()[: count - drawn]]
        while len(points) < min(count, len(self._space.points) - len(self._proposed)):
            point = self._space.points[int(self._random.integers(len(self._space.points)))]
            if point not in self._proposed and point not in points:
                points.append(point)
        self._proposed.update(points)
        return points

    def tell(self, scores: Sequence[tuple[Point, float]]) -> None:
        """The fitness learns."""
        self._fitness.tell(scores)

    def _child(self, population: Sequence[Point], scores: np.ndarray, chance: np.ndarray) -> Point:
        first, other = (int(at) for at in self._random.choice(len(population), 2, p=chance))
        if self.crosses and first != other and self._random.random() < CROSSED:
            return self._crossed(population[first], population[other], float(scores[first]), float(scores[other]))
        near = list(self._space.neighbours(population[first]))
        return near[int(self._random.integers(len(near)))] if near else population[first]

    def _crossed(self, parent: Point, other: Point, score: float, others: float) -> Point:
        """Node by node the decisions of the parent whose node is better: by what was measured with these decisions."""
        child = list(parent)
        for places in self._holes_by_node:
            better = self._of_node(other, places, others) - self._of_node(parent, places, score)
            if self._random.random() < 1.0 / (1.0 + np.exp(np.clip(better / WARMTH, -30, 30))):
                for position in places:
                    child[position] = other[position]
        return self._space.canonical(child) or parent

    def _of_node(self, point: Point, places: Sequence[int], otherwise: float) -> float:
        """Mean score of what was measured with a point's decisions at one node; the point's own where nothing was."""
        alike = [score for known, score in self._fitness.known.items() if all(known[at] == point[at] for at in places)]
        return float(np.mean(alike)) if alike else otherwise
