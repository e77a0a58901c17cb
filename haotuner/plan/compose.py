"""Compositions: the cheapest way to cover m rows exactly with at most three regions, by their cost curves.

Cost curve of a region, in us: piecewise-linear in its row tiles, from a few measured points.

After MikPoly's profiled task cost g(t) (ASPLOS 2024, section 3.3), with two states a CPU needs: a region that *leads*
brings the weight from memory, one that *follows* in the same shape finds the weight panels in L2.

cost(m) = lead(kernel a, t_a) + follow(kernel b, t_b) + follow(kernel c, t_c);  t_a mr_a + t_b mr_b + t_c mr_c = m
(after MikPoly's sum over regions, ASPLOS 2024, eq. 2; on a CPU no row need be padded). The first region takes as many
rows as it can, give or take ``BACK`` tiles; the rest is one or two regions from a table over small remainders.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from haotuner.spec.composition import COLUMNS, MAX_REGIONS, WHOLE, Composition, Part, Planned
from haotuner.spec.kernel import MicroKernel

Floats = NDArray[np.float64]
# Share of the time of a following tile that one more tile behind the last point takes at least. The slope between two noisy
# points is not enough: of n=3072 k=768 one layout went on at 116 % of the FMA peak, and the cover looked 13 % behind it.
BEHIND = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """Cost of ``t`` row tiles of one micro-kernel over all columns, in microseconds."""

    kernel: str
    rows: int  # extent of a tile along the covered axis
    lead_us: tuple[tuple[int, float], ...]  # (tiles, time) measured with the weight in the tuned state
    follow_us: float  # one more row tile behind another region

    @property
    def micro_kernel(self) -> MicroKernel:
        """The micro-kernel of that name; ValueError where none has such a name."""
        return Part(self.kernel, WHOLE).micro_kernel

    @staticmethod
    def of(kernel: str, rows: int, points: Mapping[int, float], follow_us: float) -> Curve:
        """Curve through measured points, made non-decreasing in t (noise must not make more work cheaper)."""
        ordered = sorted(points.items())
        best, fixed = np.inf, []
        for tiles, us in reversed(ordered):
            best = min(best, us)
            fixed.append((tiles, best))
        return Curve(kernel=kernel, rows=rows, lead_us=tuple(reversed(fixed)), follow_us=follow_us)

    def lead(self, tiles: NDArray[np.int64]) -> Floats:
        """Time of a leading region; beyond the last point the last slope goes on, before the first the cost is constant.

        One more tile never costs less than behind another region, where it finds the weight in cache.
        """
        at = np.array([t for t, _ in self.lead_us], np.float64)
        us = np.array([u for _, u in self.lead_us], np.float64)
        inside = np.interp(tiles, at, us)
        slope = (us[-1] - us[-2]) / (at[-1] - at[-2]) if len(at) > 1 else us[-1] / at[-1]
        return np.asarray(inside + np.maximum(tiles - at[-1], 0) * max(slope, BEHIND * self.follow_us), np.float64)

    def follow(self, tiles: NDArray[np.int64]) -> Floats:
        """Time of a region behind another one."""
        return np.asarray(tiles * self.follow_us, np.float64)


BACK = 3  # tiles the leading region may give up: leaving the last few to two middling kernels can beat one tiny remainder


class Tiled(Protocol):
    """Anything with tiles of so many rows: a curve, a probe."""

    @property
    def rows(self) -> int:
        """Extent of a tile along the covered axis."""
        ...


def covers_every(tiled: Tiled) -> bool:
    """True if its tiles alone cover every shape exactly. A plan needs one such micro-kernel: any shape may arrive."""
    return tiled.rows == 1


def can_serve(every: Iterable[Tiled]) -> bool:
    """True if together they cover every shape."""
    return any(map(covers_every, every))


class Fillers:
    """For every remainder of rows, the cheapest one or two following regions that cover it exactly."""

    def __init__(self, curves: Sequence[Curve], limit: int) -> None:
        self._curves = sorted(curves, key=lambda curve: curve.kernel)
        alone = alone_us(self._curves, limit)
        self._who = alone.argmin(axis=0)
        self._alone = alone.min(axis=0)
        self.us = fill_us(self._alone[np.newaxis])[0]
        self._parts: dict[int, tuple[Part, ...]] = {0: ()}

    def parts(self, rows: int) -> tuple[Part, ...]:
        """The regions that cover so many rows; none for none."""
        if rows not in self._parts:
            self._parts[rows] = self._exact_parts(rows)
        return self._parts[rows]

    def _exact_parts(self, rows: int) -> tuple[Part, ...]:
        if self.us[rows] == self._alone[rows]:
            return (self._single(rows),)
        first = np.arange(1, rows // 2 + 1)
        less = int(first[np.argmin(self._alone[first] + self._alone[rows - first])])
        return self._single(rows - less), self._single(less)

    def _single(self, rows: int) -> Part:
        curve = self._curves[int(self._who[rows])]
        return Part(curve.kernel, rows // curve.rows)


def alone_us(curves: Sequence[Curve], limit: int) -> NDArray[np.float64]:
    """Time of each curve behind a leading region for 0..``limit`` rows, in us; inf where its tiles do not cover them."""
    alone = np.full((len(curves), limit + 1), np.inf)
    for costs, curve in zip(alone, curves, strict=True):
        costs[curve.rows :: curve.rows] = curve.follow_us * np.arange(1, limit // curve.rows + 1)
    return alone


def fill_us(alone: NDArray[np.float64]) -> NDArray[np.float64]:
    """The least time of at most two regions for every number of rows from what one takes, both ``(sets, rows)``."""
    least = alone.copy()
    for first in range(1, (alone.shape[1] - 1) // 2 + 1):
        both = alone[:, first : first + 1] + alone[:, first : alone.shape[1] - first]
        np.minimum(least[:, 2 * first :], both, out=least[:, 2 * first :])
    least[:, 0] = 0.0
    return least


@dataclass(frozen=True, slots=True)
class Leads:
    """Cost of every curve as the leading region, in us, by (curve, tiles given up, m), and the rows left to others."""

    us: NDArray[np.float64]
    rest: NDArray[np.int64]

    @staticmethod
    def of(curves: Sequence[Curve], rows: NDArray[np.int64]) -> Leads:
        """``rows`` of shape ``(shapes,)``; inf where no tile would be left."""
        us = np.empty((len(curves), BACK + 1, len(rows)))
        rest = np.zeros(us.shape, np.int64)
        back = np.arange(BACK + 1)[:, None]
        for index, curve in enumerate(curves):
            tiles = rows // curve.rows - back
            fits = tiles >= 1
            us[index] = np.where(fits, curve.lead(np.maximum(tiles, 1)), np.inf)
            rest[index] = np.where(fits, rows - tiles * curve.rows, 0)
        return Leads(us, rest)


def best_us(curves: Sequence[Curve], rows: NDArray[np.int64]) -> tuple[NDArray[np.float64], NDArray[np.int64], Fillers]:
    """For each m: the least cost, and which (curve, tiles given up) reaches it as ``curve * (BACK+1) + back``; -1: none."""
    fillers = Fillers(curves, (BACK + 1) * max(curve.rows for curve in curves))
    leads = Leads.of(curves, rows)
    every = (leads.us + fillers.us[leads.rest]).reshape(-1, len(rows))
    code = every.argmin(axis=0)
    best = every[code, np.arange(len(rows))]
    return best, np.where(np.isfinite(best), code, -1), fillers


def mean_us(us: NDArray[np.float64], shares: NDArray[np.float64]) -> float:
    """Geometric mean over the traffic, in which every shape counts by its share and none by its size; inf if one is."""
    return float(np.exp(shares @ np.log(us) / shares.sum()))


def choose(curves: Sequence[Curve], rows: Sequence[int], share: str = COLUMNS) -> list[Planned]:
    """The best composition of each m, shared by threads in that way; ValueError if some m cannot be covered exactly."""
    rows_wanted = np.asarray(rows, np.int64)
    best, code, fillers = best_us(curves, rows_wanted)
    result = []
    for m, us, coded in zip(rows_wanted.tolist(), best.tolist(), code.tolist(), strict=True):
        if coded < 0 or not np.isfinite(us):
            raise ValueError(f"m={m} cannot be covered exactly by row tiles of {sorted({c.rows for c in curves})}")
        curve, back = curves[coded // (BACK + 1)], coded % (BACK + 1)
        result.append(Planned(_composed(curve, m // curve.rows - back, m, fillers, share), us))
    return result


def alternatives(curves: Sequence[Curve], m: int, count: int, share: str = COLUMNS) -> list[Planned]:
    """The ``count`` cheapest compositions of one m with different leading regions, cheapest first."""
    fillers = Fillers(curves, (BACK + 1) * max(curve.rows for curve in curves))
    result: dict[Composition, float] = {}
    for curve in curves:
        for back in range(BACK + 1):
            tiles = m // curve.rows - back
            rest = m - tiles * curve.rows
            if tiles < 1 or not np.isfinite(fillers.us[rest]):
                continue
            us = float(curve.lead(np.array([tiles]))[0] + fillers.us[rest])
            composition = _composed(curve, tiles, m, fillers, share)
            result[composition] = min(us, result.get(composition, np.inf))
    ranked = sorted(result, key=lambda item: (result[item], len(item.parts), item.text))
    return [Planned(composition, result[composition]) for composition in ranked[:count]]


def _composed(curve: Curve, tiles: int, m: int, fillers: Fillers, share: str) -> Composition:
    parts = {curve.kernel: tiles}
    for kernel, more in fillers.parts(m - tiles * curve.rows):
        parts[kernel] = parts.get(kernel, 0) + more  # one region a kernel
    assert len(parts) <= MAX_REGIONS
    return Composition(tuple(Part(*part) for part in parts.items()), share)
