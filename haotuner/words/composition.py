"""Region, Composition, Plan: how one shape is put together from micro-kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from haotuner.words.shape import Shape

# Ways in which threads share a call, each with its words. Places are the runtime's numbers (native/ht.h).
WAYS = {
    "serial": "one thread",
    "n": "threads share columns",
    "m": "threads share rows",
    "k": "threads share the terms of each sum",
}
SPLITS = tuple(WAYS)
MAX_REGIONS = 3  # more never paid in trials: the third region is already a remainder of a few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A box over the output axes, computed by one micro-kernel. ``first``/``last`` per axis, ``last`` excluded."""

    kernel: str
    box: Mapping[str, tuple[int, int]]
    tiles: int
    k_split: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """The regions of one shape in launch order; they cover the output exactly once."""

    regions: tuple[Region, ...]
    expected_us: float
    split: str = "n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Shape to composition for one op and one thread count, with what its coarseness costs."""

    op: str
    threads: int
    kernels: tuple[str, ...]
    compositions: Mapping[Shape, Composition]
    regret_mean: float = 0.0  # fraction lost against the best alternative, by the times that chose it; mean of shapes timed
    regret_max: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)
