"""Columns of the cover's integer program: the compositions of one shape that are worth a look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import BACK, covers_every
from haotuner.plan.curves import Curve

COLUMNS = 48  # compositions a shape; the optimum used the 30 cheapest in trials

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Noted:
    """Compositions: what each takes, and up to three curves that it uses (one may be named twice)."""

    us: Floats
    used: Ints  # of shape (compositions, 3)

    @staticmethod
    def of(us: Floats, first: Ints, second: Ints, third: Ints) -> Noted:
        """Of columns of one length."""
        return Noted(us, np.stack([first, second, third], axis=1))

    @staticmethod
    def joined(parts: Sequence[Noted]) -> Noted:
        """One after the other."""
        return Noted(np.concatenate([p.us for p in parts]), np.concatenate([p.used for p in parts]))


class Columns:
    """The compositions of a few curves, shape by shape."""

    def __init__(self, curves: Sequence[Curve]) -> None:
        self._curves = curves
        self._rows = np.array([curve.rows for curve in curves], np.int64)
        self._follow = np.array([curve.follow_us for curve in curves], np.float64)
        self._ones = np.flatnonzero([covers_every(curve) for curve in curves])
        # By rows left behind two regions: which curves cover them exactly alone.
        left = np.arange((BACK + 1) * int(self._rows.max()) + 1, dtype=np.int64)
        exact = (left[:, None] % self._rows == 0) & (left[:, None] > 0)
        self._ending = np.nonzero(exact)[1]
        self._endings = exact.sum(axis=1)
        self._begin = np.cumsum(self._endings) - self._endings

    def of(self, m: int, worth_us: float) -> list[tuple[float, frozenset[int]]]:
        """Compositions of m rows as (cost, curves used), the cheapest for each set of curves, cheapest first.

        Those over ``worth_us`` are left out, but for those that end with one-row tiles: they keep the program feasible.
        """
        lead, us, rest = self._leads(m)
        whole = rest == 0
        noted = [Noted.of(us[whole], lead[whole], lead[whole], lead[whole])]
        lead, us, rest = lead[~whole], us[~whole], rest[~whole]
        at, item = (part.ravel() for part in np.meshgrid(np.arange(len(lead)), self._ones, indexing="ij"))
        noted.append(Noted.of(us[at] + rest[at] * self._follow[item], lead[at], item, item))
        worth = us < worth_us
        noted += self._behind(lead[worth], us[worth], rest[worth], worth_us)
        return _cheapest(Noted.joined(noted), len(self._curves), worth_us)

    def _leads(self, m: int) -> tuple[Ints, Floats, Ints]:
        """Leading regions: the curve, what it takes, and the rows behind it."""
        lead, us, rest = [], [], []
        for at, curve in enumerate(self._curves):
            tiles = m // curve.rows - np.arange(BACK + 1, dtype=np.int64)
            tiles = tiles[tiles >= 1]
            lead.append(np.full(len(tiles), at, np.int64))
            us.append(curve.lead(tiles))
            rest.append(m - tiles * curve.rows)
        return np.concatenate(lead), np.concatenate(us), np.concatenate(rest)

    def _behind(self, lead: Ints, us: Floats, rest: Ints, worth_us: float) -> list[Noted]:
        """A second region behind each leading one, and where rows are left a third."""
        tiles = (rest[:, None] // self._rows)[:, :, None] - np.arange(BACK + 1, dtype=np.int64)
        so_far = us[:, None, None] + tiles * self._follow[:, None]
        at, second, back = np.nonzero((tiles >= 1) & (so_far <= worth_us))
        left, so_far = rest[at] - tiles[at, second, back] * self._rows[second], so_far[at, second, back]
        none = left == 0
        two = Noted.of(so_far[none], lead[at[none]], second[none], second[none])
        at, second, left, so_far = at[~none], second[~none], left[~none], so_far[~none]
        counts = self._endings[left]
        each = np.repeat(np.arange(len(left)), counts)
        within = np.arange(len(each)) - np.repeat(np.cumsum(counts) - counts, counts)
        third = self._ending[self._begin[left][each] + within]
        total = so_far[each] + left[each] // self._rows[third] * self._follow[third]
        selected = total <= worth_us
        each, third = each[selected], third[selected]
        return [two, Noted.of(total[selected], lead[at[each]], second[each], third)]


def _cheapest(noted: Noted, curves: int, worth_us: float) -> list[tuple[float, frozenset[int]]]:
    """The cheapest composition of each set of curves; ties of cost in the order of the curves."""
    used = np.sort(noted.used, axis=1) + 1
    twice = used[:, 1] == used[:, 0]
    used[twice, 1] = used[twice, 2]
    used[used[:, 2] == used[:, 1], 2] = 0
    used[used[:, 1] == used[:, 0], 1] = 0
    code = (used[:, 0] * (curves + 1) + used[:, 1]) * (curves + 1) + used[:, 2]
    order = np.lexsort((noted.us, code))
    order = order[np.diff(code[order], prepend=-1) != 0]
    order = order[np.lexsort((code[order], noted.us[order]))]
    dear = noted.us[order] > worth_us
    selected = [*order[~dear][:COLUMNS], *order[dear][: COLUMNS // 2]]
    return [(float(noted.us[at]), frozenset(int(curve) - 1 for curve in used[at] if curve)) for at in selected]
