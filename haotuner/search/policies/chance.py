"""Policy ``random``: every point alike. The baseline that any other must beat."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from haotuner.codegen.space import Point, Space
from haotuner.search.policies.policy import Expected


class Random:
    """All points in an order by chance."""

    def __init__(self, space: Space, expected: Expected, seed: int) -> None:
        self._left = [space.points[at] for at in np.random.default_rng(seed).permutation(len(space.points)).tolist()]

    def ask(self, count: int) -> list[Point]:
        """The next points."""
        points, self._left = self._left[:count], self._left[count:]
        return points

    def tell(self, scores: Sequence[tuple[Point, float]]) -> None:
        """Learns nothing."""
