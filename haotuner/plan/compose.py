"""The cheapest way to cover m rows exactly with at most three regions of the kept kernels.

cost(m) = lead(kernel a, t_a) + follow(kernel b, t_b) + follow(kernel c, t_c),  t_a mr_a + t_b mr_b + t_c mr_c = m
(after MikPoly's sum over regions, ASPLOS 2024, eq. 2; on a CPU no row need be padded). The first region takes as many
rows as it can, give or take ``BACK`` tiles; the rest is one or two regions from a table over small remainders.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from haotuner.composition import MAX_REGIONS
from haotuner.plan.curves import Curve

BACK = 3  # tiles the leading region may give up: leaving the last few to two middling kernels can beat one tiny remainder
Part = tuple[str, int]


@dataclass(frozen=True, slots=True)
class Choice:
    """One composition: regions as (kernel, tiles), the leading one first, and its expected time."""

    parts: tuple[Part, ...]
    us: float

    @property
    def name(self) -> str:
        """``KERNEL*tiles+KERNEL*tiles``, as trials name it."""
        return "+".join(f"{kernel}*{tiles}" for kernel, tiles in self.parts)


class Fillers:
    """For every remainder of rows, the cheapest one or two following regions that cover it exactly."""

    def __init__(self, curves: Sequence[Curve], limit: int) -> None:
        self.us = np.full(limit + 1, np.inf)
        self.parts: list[tuple[Part, ...]] = [()] * (limit + 1)
        self.us[0] = 0.0
        singles: list[list[tuple[float, Part]]] = [[] for _ in range(limit + 1)]
        for curve in curves:
            for tiles in range(1, limit // curve.mr + 1):
                singles[tiles * curve.mr].append((tiles * curve.follow_us, (curve.kernel, tiles)))
        cheapest = [min(found, default=(np.inf, ("", 0))) for found in singles]
        alone = np.array([us for us, _ in cheapest])
        for rows in range(1, limit + 1):
            self.us[rows], part = cheapest[rows]
            self.parts[rows] = (part,)
            pairs = alone[1 : rows // 2 + 1] + alone[rows - 1 : rows - rows // 2 - 1 : -1]
            if len(pairs) and pairs.min() < self.us[rows]:
                first = int(pairs.argmin()) + 1
                self.us[rows] = pairs[first - 1]
                self.parts[rows] = (cheapest[rows - first][1], cheapest[first][1])


def best_us(curves: Sequence[Curve], rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64], Fillers]:
    """For each m: the least cost, and which (curve, tiles given up) reaches it, coded as ``curve * (BACK+1) + back``."""
    fillers = Fillers(curves, (BACK + 1) * max(curve.mr for curve in curves))
    best = np.full(len(rows), np.inf)
    code = np.full(len(rows), -1, np.int64)
    for index, curve in enumerate(curves):
        full = rows // curve.mr
        for back in range(BACK + 1):
            tiles = full - back
            fits = tiles >= 1
            rest = np.where(fits, rows - tiles * curve.mr, 0)
            us = np.where(fits, curve.lead(np.maximum(tiles, 1)) + fillers.us[rest], np.inf)
            better = us < best
            best = np.where(better, us, best)
            code = np.where(better, index * (BACK + 1) + back, code)
    return best, code, fillers


def mean_us(us: NDArray[np.float64], weights: NDArray[np.float64]) -> float:
    """Geometric mean over the traffic, in which every shape counts by its weight and none by its size; inf if one is."""
    return float(np.exp(weights @ np.log(us) / weights.sum()))


def choose(curves: Sequence[Curve], rows: Sequence[int]) -> list[Choice]:
    """The best composition of each m; ValueError if some m cannot be covered exactly."""
    wanted = np.asarray(rows, np.int64)
    best, code, fillers = best_us(curves, wanted)
    found = []
    for m, us, coded in zip(wanted.tolist(), best.tolist(), code.tolist(), strict=True):
        if coded < 0 or not np.isfinite(us):
            raise ValueError(f"m={m} cannot be covered exactly by row tiles of {sorted({c.mr for c in curves})}")
        curve, back = curves[coded // (BACK + 1)], coded % (BACK + 1)
        found.append(_choice(curve, m // curve.mr - back, m, fillers, us))
    return found


def alternatives(curves: Sequence[Curve], m: int, count: int) -> list[Choice]:
    """The ``count`` cheapest compositions of one m with different leading regions, cheapest first."""
    fillers = Fillers(curves, (BACK + 1) * max(curve.mr for curve in curves))
    found: dict[tuple[Part, ...], Choice] = {}
    for curve in curves:
        for back in range(BACK + 1):
            tiles = m // curve.mr - back
            rest = m - tiles * curve.mr
            if tiles < 1 or not np.isfinite(fillers.us[rest]):
                continue
            us = float(curve.lead(np.array([tiles]))[0] + fillers.us[rest])
            choice = _choice(curve, tiles, m, fillers, us)
            if choice.parts not in found or us < found[choice.parts].us:
                found[choice.parts] = choice
    return sorted(found.values(), key=lambda c: (c.us, len(c.parts), c.name))[:count]


def _choice(curve: Curve, tiles: int, m: int, fillers: Fillers, us: float) -> Choice:
    parts = {curve.kernel: tiles}
    for kernel, more in fillers.parts[m - tiles * curve.mr] if m > tiles * curve.mr else ():
        parts[kernel] = parts.get(kernel, 0) + more  # one region a kernel
    assert len(parts) <= MAX_REGIONS
    return Choice(tuple(parts.items()), us)
