"""Cost curve of a region, in us: piecewise-linear in its row tiles, from a few measured points.

After MikPoly's profiled task cost g(t) (ASPLOS 2024, section 3.3), with two states a CPU needs: a region that *leads*
brings the weight from memory, one that *follows* in the same shape finds the weight panels in L2.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from haotuner.spec.composition import WHOLE, Part
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
