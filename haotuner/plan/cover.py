"""Cover: choice of few micro-kernels to keep, by an integer program over the traffic that a greedy choice starts.

Greedy: a set of micro-kernels grown by the one that helps most, every candidate looked at together.

A search sketches its plan several times a round, so it has to cost little. What covers the remainders of a set with one
more kernel is computed for all of them at once: 8 of 46 kernels over 32 shapes take 3 ms, 19 when each set is composed.

A p-median problem whose facilities are compositions: minimise sum_m w_m (cost(m, c) / best(m))^2 + penalty * |kept|. Shape m
may use composition c only if all its kernels are kept, and all kept kernels share one packed weight. Solved exactly by HiGHS
(scipy.optimize.milp) over the cheapest compositions of each shape; ties go to fewer kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from haotuner.plan.compose import BACK, Curve, Leads, alone_us, best_us, can_serve, covers_every, fill_us
from haotuner.spec.family import Layout

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


Value = Callable[[NDArray[np.float64], int], NDArray[np.float64]]


def greedy(curves: Sequence[Curve], rows: NDArray[np.int64], value: Value, most: int) -> tuple[Curve, ...]:
    """Adds what helps most until nothing does, beginning with the best alone of those that cover every shape.

    Args:
        curves: the candidates; one of them covers every shape.
        rows: m of every shape, ``(shapes,)``.
        value: of several sets of as many kernels, from their times ``(sets, shapes)`` and that number; lower is better.
        most: kernels that a set may have.
    """
    leads = Leads.of(curves, rows)
    alone = alone_us(curves, (BACK + 1) * max(curve.rows for curve in curves))
    indices = [min((i for i, c in enumerate(curves) if covers_every(c)), key=lambda i: curves[i].lead_us[0][1])]
    best = value(_least(leads, alone, [], indices), 1)[0]
    while len(indices) < most:
        options = [i for i in range(len(curves)) if i not in indices]
        values = value(_least(leads, alone, indices, options), len(indices) + 1) if options else np.array([np.inf])
        if values.min() >= best:
            break
        best = values.min()
        indices.append(min((options[i] for i in np.flatnonzero(values == best)), key=lambda i: curves[i].kernel))
    return tuple(curves[i] for i in indices)


def _least(leads: Leads, alone: NDArray[np.float64], indices: list[int], options: list[int]) -> NDArray[np.float64]:
    """The least time of every shape with the kept kernels and one of the options; shape ``(options, shapes)``."""
    fill = fill_us(np.minimum(alone[options], alone[indices].min(axis=0, initial=np.inf)))
    each = np.arange(len(options))[:, np.newaxis, np.newaxis]
    mine = leads.us[options] + fill[each, leads.rest[options]]
    theirs = leads.us[indices] + fill[:, leads.rest[indices]]
    return np.asarray(np.minimum(mine.min(axis=1), theirs.min(axis=(1, 2), initial=np.inf)), np.float64)


# A tile of every height that small shapes ask for: on Zen 5 (n=1000 k=600 cold, all kernels timed) the mean loss against
# them all is 4.3, 3.5, 2.9, 2.5, 2.3 % with 8, 10, 12, 14, 16 kernels and the shapes' 99th percentile 26, 26, 19, 11, 10 %.
MAX_KEPT = 16
SKETCHED = 10  # in a search's sketch: how a search goes on was measured with sets of ten; `cover` looks at what it timed
PENALTY = 0.0015  # of the objective for each kernel, half of it in time: less than any measurement can resolve
SHORTLIST = 3  # best in bulk of a tile height and layout that the program sees, beside the best alone, behind and as leads
WORTH = 1.06  # compositions dearer than this against the best of all kernels are not worth a column
POWER = 2  # of the slow-down: a shape left 20 % behind is worse than ten left 2 % behind; docs/decisions/048
RUNNERS_UP = 2  # layouts solved exactly after a greedy look at all; the greedy order was right in every trial
SOLVE_LIMIT_S = 4.0


@dataclass(frozen=True, slots=True)
class _Aim:
    """Objective that a plan is to come near: the least time of every shape, and the shapes' shares."""

    best_us: NDArray[np.float64]
    shares: NDArray[np.float64]

    def parts(self, us: NDArray[np.float64], shape: NDArray[np.int64] | slice = slice(None)) -> NDArray[np.float64]:
        """Of the objective, for times of the shapes at these places; together the shares' sum at the least times."""
        return np.asarray(self.shares[shape] * (us / self.best_us[shape]) ** POWER, np.float64)

    def of(self, us: NDArray[np.float64]) -> float:
        """The objective of a plan by its time at every shape."""
        return float(self.parts(us).sum())


@dataclass(frozen=True, slots=True, kw_only=True)
class Cover:
    """The kept curves, the traffic-weighted cost with them, and with every measured candidate (any layout)."""

    curves: tuple[Curve, ...]
    objective_us: float
    unlimited_us: float

    @property
    def regret(self) -> float:
        """Fraction lost by keeping few kernels of one layout."""
        return self.objective_us / self.unlimited_us - 1


def cover(
    layouts: Mapping[Layout, Sequence[Curve]], rows: NDArray[np.int64], shares: NDArray[np.float64], *, exact: bool = True
) -> Cover:
    """The best set of one layout. ``layouts``: curves by layout; ``rows`` and ``shares`` of shape ``(shapes,)``.

    The objective is the mean square of each shape's slow-down, so that large shapes do not drown small ones.
    A one-row kernel is always kept, so that any m can be served, those outside the traffic too. ValueError if there is none.
    ``exact=False``: the greedy set, in a tenth of a second: for a run that was told to stop, and of predictions alone.
    """
    looked = {layout: best_us(curves, rows) for layout, curves in layouts.items() if curves}
    per_layout = {layout: us for layout, (us, _, _) in looked.items()}
    feasible = {layout: us for layout, us in per_layout.items() if can_serve(layouts[layout])}
    if not feasible:
        raise ValueError("no layout has kernels that cover every shape exactly; a one-row kernel is needed in one of them")
    unlimited = np.min(list(per_layout.values()), axis=0)
    aim = _Aim(unlimited, shares)
    listed = {layout: _shortlist(layouts[layout], _leads(layouts[layout], looked[layout][1])) for layout in feasible}
    greedy = {layout: _greedy(listed[layout], rows, aim, MAX_KEPT) for layout in feasible}
    value = {layout: _value(item, rows, aim) for layout, item in greedy.items()}
    best = min(value, key=lambda layout: (value[layout], layout))
    selected = _solve(greedy[best], listed[best], rows, aim) if exact else greedy[best]
    for layout in sorted(feasible, key=lambda layout: (value[layout], layout))[1:RUNNERS_UP] if exact else ():
        if aim.of(feasible[layout]) + PENALTY < _value(selected, rows, aim):  # with all its kernels it could still win
            other = _solve(greedy[layout], listed[layout], rows, aim)
            selected = min(selected, other, key=lambda result: _value(result, rows, aim))
    cost = best_us(selected, rows)[0]
    return Cover(curves=selected, objective_us=float(shares @ cost), unlimited_us=float(shares @ unlimited))


def sketch(
    layouts: Mapping[Layout, Sequence[Curve]], rows: NDArray[np.int64], shares: NDArray[np.float64]
) -> tuple[Curve, ...]:
    """Curves that ``cover`` would keep first, roughly and in milliseconds: the greedy set of the best of a few layouts.

    The kernels stand in the order in which they were worth adding. Empty if no layout has a one-row kernel.
    """
    costs = {layout: best_us(curves, rows)[0] for layout, curves in layouts.items() if can_serve(curves)}
    if not costs:
        return ()
    aim = _Aim(np.min(list(costs.values()), axis=0), shares)
    promising = sorted(costs, key=lambda layout: (aim.of(costs[layout]), layout))[: RUNNERS_UP + 1]
    sets = [_greedy(_shortlist(layouts[layout]), rows, aim, SKETCHED) for layout in promising]
    return min(sets, key=lambda selected: _value(selected, rows, aim))


def _leads(curves: Sequence[Curve], codes: NDArray[np.int64]) -> list[Curve]:
    """Those that lead the best composition of some shape: one may be best at a middling count of tiles and nowhere else."""
    return [curves[at] for at in np.unique(codes[codes >= 0] // (BACK + 1)).tolist()]


def _shortlist(curves: Sequence[Curve], curves_wanted: Sequence[Curve] = ()) -> list[Curve]:
    shortlist = {curve.kernel: curve for curve in curves_wanted}
    for height in sorted({curve.rows for curve in curves}):
        same = [curve for curve in curves if curve.rows == height]
        for key in (_alone, _bulk, _behind):
            for curve in _ranked(same, key)[: 1 if key is not _bulk else SHORTLIST]:
                shortlist[curve.kernel] = curve
    return list(shortlist.values())


def _ranked(curves: Sequence[Curve], key: Callable[[Curve], float]) -> list[Curve]:
    return sorted(curves, key=lambda curve: (key(curve), curve.kernel))


def _alone(curve: Curve) -> float:
    return curve.lead_us[0][1]


def _bulk(curve: Curve) -> float:
    tiles, us = curve.lead_us[-1]
    return us / tiles


def _behind(curve: Curve) -> float:
    return curve.follow_us


def _solve(start: tuple[Curve, ...], curves: Sequence[Curve], rows: NDArray[np.int64], aim: _Aim) -> tuple[Curve, ...]:
    worth = best_us(curves, rows)[0] * WORTH
    columns_of = Columns(curves)
    shapes = [columns_of.of(int(m), float(us)) for m, us in zip(rows, worth, strict=True)]
    sets = [pair for columns in shapes for pair in columns]
    count, kernels = len(sets), len(curves)
    index = np.repeat(np.arange(len(shapes)), [len(columns) for columns in shapes])
    cost = aim.parts(np.array([us for us, _ in sets]), index)
    first = np.cumsum([0, *(len(columns) for columns in shapes)])
    entries: list[tuple[int, int, float]] = []
    row = 0
    for shape, columns in enumerate(shapes):  # exactly one composition a shape
        entries += [(row, first[shape] + i, 1.0) for i in range(len(columns))]
        row += 1
    equal = row
    for shape, columns in enumerate(shapes):  # a composition needs its kernels: sum of those with k <= y_k
        for kernel in range(kernels):
            using = [first[shape] + i for i, (_, used) in enumerate(columns) if kernel in used]
            if using:
                entries += [(row, column, 1.0) for column in using] + [(row, count + kernel, -1.0)]
                row += 1
    entries += [(row, count + kernel, 1.0) for kernel in range(kernels)]
    entries += [(row + 1, count + kernel, 1.0) for kernel in range(kernels) if covers_every(curves[kernel])]
    data, (at, column) = [e[2] for e in entries], ([e[0] for e in entries], [e[1] for e in entries])
    matrix = coo_matrix((data, (at, column)), shape=(row + 2, count + kernels)).tocsr()
    low = np.concatenate([np.ones(equal), np.full(row - equal, -np.inf), [1, 1]])
    high = np.concatenate([np.ones(equal), np.zeros(row - equal), [MAX_KEPT, MAX_KEPT]])
    answer = milp(
        np.concatenate([cost, np.full(kernels, PENALTY)]),
        constraints=LinearConstraint(matrix, low, high),
        integrality=np.concatenate([np.zeros(count), np.ones(kernels)]),  # with y fixed the best x is a vertex: whole
        bounds=Bounds(0, 1),
        options={"time_limit": SOLVE_LIMIT_S, "mip_rel_gap": 1e-4},
    )
    if answer.x is None:  # no solution found within the time: the greedy one stands
        return start
    chosen = tuple(curve for curve, y in zip(curves, answer.x[count:], strict=True) if y > 0.5)
    values = {item: _value(item, rows, aim) for item in (chosen, start)}
    return min(values, key=lambda selected: (values[selected], len(selected)))


def _value(curves: Sequence[Curve], rows: NDArray[np.int64], aim: _Aim) -> float:
    return aim.of(best_us(curves, rows)[0]) + PENALTY * len(curves) if curves else np.inf


def _greedy(curves: Sequence[Curve], rows: NDArray[np.int64], aim: _Aim, most: int) -> tuple[Curve, ...]:
    """A good start, and the answer if the solver runs out of time."""
    return greedy(curves, rows, lambda us, kernels: aim.parts(us).sum(axis=1) + PENALTY * kernels, most)
