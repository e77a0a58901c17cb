"""Ratios with their uncertainty: paired bootstrap over rounds, geometric means over rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

DRAWS = 2000  # the ends of a 95 % interval then rest on 50 draws each
LOW, HIGH = 2.5, 97.5  # percentiles
LEAST_PAIRS = 5  # the range of five samples misses their median's true value in one case of 16, of fewer more often

Draws = NDArray[np.float64]
Times = Sequence[float] | NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ratio:
    """Another's time over ours, with its 95 % interval; above 1 we are faster. No interval under ``LEAST_PAIRS`` rounds."""

    value: float
    low: float | None = None
    high: float | None = None


def resampled_medians(blocks: Sequence[Times], seed: int = 0) -> Draws:
    """Medians ``(DRAWS, contenders)`` of rounds drawn with replacement, the same rounds for every contender.

    ``blocks`` is ``(contenders, rounds)``. Drawing whole rounds keeps the pairs: what slowed the machine for a moment
    slowed all of a round alike (Efron and Tibshirani 1993, chapter 8).
    """
    times = np.asarray(blocks, dtype=np.float64)
    rounds = times.shape[1]
    picks = np.random.default_rng(seed).integers(0, rounds, (DRAWS, rounds))
    return np.asarray(np.median(times[:, picks], axis=2).T)


def with_interval(value: float, drawn: Draws) -> Ratio:
    """A ratio with the 95 % interval of its draws ``(DRAWS,)`` (Efron 1979, percentile method)."""
    low, high = np.percentile(drawn, (LOW, HIGH))
    return Ratio(value=value, low=float(low), high=float(high))


def paired_ratio(ours: Times, theirs: Times, seed: int = 0) -> Ratio:
    """Median of theirs over median of ours; entry r of both was taken in the same round."""
    value = float(np.median(theirs) / np.median(ours))
    if len(ours) < LEAST_PAIRS:
        return Ratio(value=value)
    drawn = resampled_medians([ours, theirs], seed)
    return with_interval(value, drawn[:, 1] / drawn[:, 0])


def geomean(values: Sequence[float]) -> float:
    """Geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


def geomean_ratio(values: Sequence[float], draws: Sequence[Draws]) -> Ratio:
    """Geometric mean over rows; the interval comes from the rows' own draws ``(DRAWS,)``, which are independent."""
    if not draws:
        return Ratio(value=geomean(values))
    return with_interval(geomean(values), np.exp(np.mean(np.log(np.stack(draws)), axis=0)))


def spread(times: Times) -> float:
    """Median absolute deviation over the median: a fraction."""
    middle = float(np.median(times))
    return float(np.median(np.abs(np.asarray(times) - middle)) / middle)
