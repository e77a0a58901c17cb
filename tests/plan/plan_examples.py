"""Curves for the planning tests, drawn or fixed, and the answer by looking at everything."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

import numpy as np
from hypothesis import strategies as st

from haotuner.plan.compose import BACK, Curve

TIME = st.floats(0.5, 50.0, allow_nan=False)


def curve(name: str, mr: int, tile_us: float, *, first_us: float = 0.0, follow_us: float | None = None) -> Curve:
    """A line: ``first_us`` to start, ``tile_us`` a tile."""
    points = {t: first_us + tile_us * t for t in (1, 4, 32)}
    return Curve.of(f"cpu_dense_fp32__{name}", mr, points, tile_us if follow_us is None else follow_us)


@st.composite
def curves(draw: st.DrawFn, *, least: int = 0, most: int = 5, highest: int = 6) -> list[Curve]:
    """One-row curve and some others; names of equal heights differ."""
    heights = [1, *draw(st.lists(st.integers(1, highest), min_size=least, max_size=most - 1))]
    drawn = []
    for index, mr in enumerate(heights):
        tiles = sorted({1, *draw(st.lists(st.integers(2, 40), max_size=3))})
        points = {t: draw(TIME) * t for t in tiles}
        drawn.append(Curve.of(f"cpu_dense_fp32__mr{mr}_id{index}", mr, points, draw(TIME)))
    return drawn


def all_compositions_us(curves: Sequence[Curve], m: int, *, back: int | None = BACK) -> float:
    """The least cost of a leading and at most two following regions; ``back`` None: whatever the leader gives up."""
    best = np.inf
    for lead in curves:
        full = m // lead.rows
        for tiles in range(1 if back is None else max(1, full - back), full + 1):
            us, rest = float(lead.lead(np.array([tiles]))[0]), m - tiles * lead.rows
            if rest == 0:
                best = min(best, us)
                continue
            for b, c in product(curves, curves):
                for more in range(1, rest // b.rows + 1):
                    left = rest - more * b.rows
                    if left % c.rows == 0:
                        best = min(best, us + more * b.follow_us + left // c.rows * c.follow_us)
    return best
