"""Cover: choice of few micro-kernels to keep, by an integer program over the traffic.

A p-median problem whose facilities are compositions: minimise sum_m w_m (cost(m, c) / best(m))^2 + penalty * |kept|, where
shape m may use composition c only if all its kernels are kept, and all kept kernels share one packed weight. Solved exactly
by HiGHS (scipy.optimize.milp) over the cheapest compositions of each shape; ties go to fewer kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import coo_matrix

from haotuner.plan.columns import Columns
from haotuner.plan.compose import BACK, best_us, can_serve, covers_every
from haotuner.plan.curves import Curve
from haotuner.plan.greedy import greedy
from haotuner.spec.family import Layout

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

    kept: tuple[Curve, ...]
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
    return Cover(kept=selected, objective_us=float(shares @ cost), unlimited_us=float(shares @ unlimited))


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
