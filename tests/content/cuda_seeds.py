"""Micro-kernels of a family drawn by seed."""

from __future__ import annotations

import random
from collections.abc import Iterable

from haotuner.words.kernel import MicroKernel


def drawn(points: Iterable[MicroKernel], count: int, seed: int = 0) -> list[MicroKernel]:
    """So many of the points, or all, in an order by seed."""
    every = list(points)
    return random.Random(seed).sample(every, min(count, len(every)))
