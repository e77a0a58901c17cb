"""Plan tables: what is served at every shape of one op, over one or several dynamic axes.

Plan tables over several dynamic axes: a grid of cells in log space, each with the composition of the shapes around it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import Curve
from haotuner.spec.composition import Composition, Planned
from haotuner.spec.shape import Shape

MOST_CELLS = 1024  # of a table, 4 bytes each
NARROW_CELLS = 400  # of a table whose cells are narrow: manifests and tunes stay short
NEAR = 4  # timed shapes that have a say in a cell, the nearer the more
MIDDLE = 0.5
TIE = 0.015  # a gain under it is noise: fewer micro-kernels win

Places: TypeAlias = NDArray[np.float64]  # logarithms of extents, a row a shape
Times = Mapping[Shape, Mapping[Composition, float]]  # microseconds; every composition that is compared, at every shape


@dataclass(frozen=True, slots=True, kw_only=True)
class Considered:
    """The best of one way to compose a cell: what it takes at the cell's largest extents, and how that is known."""

    way: str  # "one region", "two regions", "sum in parts"
    composition: Composition
    us: float
    measured: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class CellTable:
    """One thread count: ``entries`` of all cells, row-major in the order of ``bounds``' axes.

    ``bounds``: the largest extent of each cell along an axis, ascending; the first and the last cell go on beyond them.
    ``measured``: what was compared. ``guessed``: what of it nobody timed.
    ``considered``: of each cell what was weighed, the chosen one first; empty where cells are not weighed one by one.
    """

    threads: int
    bounds: Mapping[str, tuple[int, ...]]
    entries: tuple[Composition, ...]
    measured: Times = field(default_factory=dict)
    guessed: frozenset[tuple[Shape, Composition]] = frozenset()
    regret_mean: float = 0.0  # fraction lost at the timed shapes against the best composition timed there
    regret_max: float = 0.0
    considered: tuple[tuple[Considered, ...], ...] = ()

    def at(self, shape: Shape) -> Composition:
        """Composition that is planned for a shape; there is always one."""
        cell = 0
        for axis, bounds in self.bounds.items():
            position = int(np.searchsorted(bounds, shape[axis]))
            cell = cell * len(bounds) + min(position, len(bounds) - 1)
        return self.entries[cell]


@dataclass(frozen=True, slots=True)
class Sharing:
    """Sharing of a call by threads, where it differs between compositions by more than their times at a few shapes tell."""

    threads: int
    rows: Collection[str] = ()  # axes of which each thread has a part, if there are as many
    staged: Collection[Composition] = ()  # whose threads all have something to do, however few rows there are

    def part(self, composition: Composition, extents: Mapping[str, float]) -> float:
        """Of the work, the share that the busiest thread has."""
        if composition in self.staged:
            return 1.0 / self.threads
        return (
            float(np.ceil(extents[composition.share] / self.threads) / extents[composition.share])
            if composition.share in self.rows
            else 1.0
        )

    def parts(self, compositions: Sequence[Composition], axes: Sequence[str], places: Places) -> NDArray[np.float64]:
        """Logarithm of that share, of shape ``(places, compositions)``; ``places``: logarithms of extents."""
        every = [dict(zip(axes, np.round(np.exp(position), 6).tolist(), strict=True)) for position in places]
        return np.log([[self.part(composition, extents) for composition in compositions] for extents in every])


@dataclass(frozen=True, slots=True)
class CostExtrapolator:
    """Expected times of compositions at any shape, by which measured times are carried from shape to shape.

    ``ranges``: the least and the largest extent of each axis; ``expected``: microseconds, ``(compositions, shapes)``.
    ``places``: where in a cell that is asked, the share of each axis' extents in log space that lie before it.
    """

    ranges: Mapping[str, tuple[int, int]]
    expected: Callable[[Sequence[Composition], Sequence[Shape]], NDArray[np.float64]]
    cells: int = NARROW_CELLS  # at most
    positions: Sequence[Sequence[float]] = ()  # none: in its middle


def cell_table(
    threads: int,
    axes: Sequence[str],
    times: Times,
    shares: Mapping[Shape, float],
    sharing: Sharing | None = None,
    carried: CostExtrapolator | None = None,
) -> CellTable:
    """The table from what was timed. ValueError if nothing was.

    A cell has what loses least at the timed shapes around it. With ``sharing`` that is put right for how many threads have
    something to do there: what two rows take says nothing of one row otherwise. With ``carried`` it is put right for what is
    expected at the cell's own extents, and cells are narrow: pixels that end just beyond a tile cost another tile.
    """
    if not times:
        raise ValueError("no shape was timed, so there is no plan")
    shapes, compositions = list(times), sorted({composition for time_us in times.values() for composition in time_us})
    places = np.log([[shape[axis] for axis in axes] for shape in shapes])
    slower = np.array([[np.log(times[s].get(c, np.inf) / min(times[s].values())) for c in compositions] for s in shapes])
    few = {axis: threads for axis in sharing.rows} if sharing is not None else {}
    if carried is None:
        bounds = {axis: _bounds(sorted({shape[axis] for shape in shapes}), len(axes), few.get(axis, 1)) for axis in axes}
    else:
        bounds = _narrow(axes, {axis: (*carried.ranges[axis], few.get(axis, 1)) for axis in axes}, carried.cells)
    begin = {} if carried is None else {axis: float(carried.ranges[axis][0]) for axis in axes}
    centres = np.array(list(product(*(_centres(bounds[axis], begin.get(axis)) for axis in axes))))
    there = np.zeros((len(centres), len(compositions)))
    if carried is not None and len(compositions) > 1:
        slower -= np.log(carried.expected(compositions, shapes)).T
        inside = carried.positions or [[MIDDLE] * len(axes)]
        for position in inside:
            ends = (_centres(bounds[axis], begin[axis], share) for axis, share in zip(axes, position, strict=True))
            shapes_asked = [
                Shape.of(dict(zip(axes, np.rint(np.exp(point)).astype(int).tolist(), strict=True)))
                for point in product(*ends)
            ]
            there += np.log(carried.expected(compositions, shapes_asked)).T / len(inside)
    if sharing is not None:
        slower -= sharing.parts(compositions, axes, places)
        there = there + sharing.parts(compositions, axes, centres)
    chosen = [_of_cell(centre, places, slower, own) for centre, own in zip(centres, there, strict=True)]
    if carried is not None:
        bounds, chosen = _merged(bounds, chosen)
    table = CellTable(
        threads=threads, bounds=bounds, entries=tuple(compositions[position] for position in chosen), measured=times
    )
    lost = {shape: times[shape].get(table.at(shape), np.inf) / min(times[shape].values()) - 1 for shape in shapes}
    total = sum(shares.get(shape, 0.0) for shape in shapes) or 1.0
    mean = sum(shares.get(shape, 0.0) / total * loss for shape, loss in lost.items())
    return CellTable(
        threads=threads,
        bounds=bounds,
        entries=table.entries,
        measured=times,
        regret_mean=float(mean),
        regret_max=float(max(lost.values())),
    )


def _bounds(extents: Sequence[int], axes: int, few: int) -> tuple[int, ...]:
    """Largest extents of cells that have about as many timed extents each: midpoints in log space, then the last one.

    Powers of two under ``few`` are bounds, too, as far as they lie between.
    """
    most = max(1, int(MOST_CELLS ** (1 / axes)))
    picks = np.unique(np.round(np.linspace(0, len(extents) - 1, min(most, len(extents)))).astype(int)).tolist()
    extents_kept = [extents[pick] for pick in picks]
    middles = [int(np.floor(np.sqrt(a * b))) for a, b in zip(extents_kept, extents_kept[1:], strict=False)]
    powers = {1 << power for power in range((few - 1).bit_length())}
    return tuple(
        sorted({*middles, extents_kept[-1], *(power for power in powers if extents_kept[0] <= power < extents_kept[-1])})
    )


def _narrow(axes: Sequence[str], ranges: Mapping[str, tuple[int, int, int]], most_cells: int) -> dict[str, tuple[int, ...]]:
    """Largest extents of cells from the least extent on: a cell for each one where there is room, else in log space.

    Axes of few extents come first, the others share what room they leave. Powers of two under the last number are bounds.
    """
    room, result = float(most_cells), {}
    for left, axis in enumerate(sorted(axes, key=lambda item: ranges[item][1] - ranges[item][0])):
        first, last, few = ranges[axis]
        powers = {1 << power for power in range((few - 1).bit_length()) if first <= 1 << power < last}
        most = max(1, int(room ** (1 / (len(axes) - left)) + 1e-9) - len(powers))
        spread = np.rint(np.geomspace(first, last, min(most, last - first + 1))).astype(int) if most > 1 else [last]
        whole = range(first, last + 1) if last - first < most else spread
        result[axis] = tuple(sorted({*map(int, whole), *powers}))
        room /= len(result[axis])
    return {axis: result[axis] for axis in axes}


def _merged(bounds: Mapping[str, tuple[int, ...]], chosen: Sequence[int]) -> tuple[dict[str, tuple[int, ...]], list[int]]:
    """Copy of the table without the cells that nothing parts from the next ones along an axis."""
    entries, result = np.array(chosen).reshape([len(own) for own in bounds.values()]), {}
    for index, (axis, own) in enumerate(bounds.items()):
        rows = np.moveaxis(entries, index, 0)
        ends = [at for at in range(len(own)) if at + 1 == len(own) or not np.array_equal(rows[at], rows[at + 1])]
        entries, result[axis] = np.take(entries, ends, axis=index), tuple(own[at] for at in ends)
    return result, entries.reshape(-1).tolist()


def _centres(bounds: Sequence[int], begin: float | None, share: float = MIDDLE) -> list[float]:
    """Logarithm of the middle of each cell, or of another place; without a ``begin`` the first is from half its end on."""
    lower = [begin or max(1.0, bounds[0] / 2), *(bound + 1.0 for bound in bounds[:-1])]
    return [float((1 - share) * np.log(low) + share * np.log(high)) for low, high in zip(lower, bounds, strict=True)]


def nearest(places: Places, centre: NDArray[np.float64]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Indices of the places, a row each, that have a say in what is at ``centre``, and the weight of each."""
    distance = np.linalg.norm(places - centre, axis=1)
    near = np.argsort(distance, kind="stable")[:NEAR]
    return near, 1.0 / (distance[near] + 0.1) ** 2


def _of_cell(centre: NDArray[np.float64], places: Places, slower: NDArray[np.float64], there: NDArray[np.float64]) -> int:
    """The composition that loses least at the timed shapes around a cell, weighed by nearness, and in the cell itself."""
    near, weight = nearest(places, centre)
    loss = weight @ slower[near] / weight.sum() + there
    return int(np.flatnonzero(loss <= loss.min() + TIE)[0])


@dataclass(frozen=True, slots=True, kw_only=True)
class RowTable:
    """One dynamic axis: ``entries[extent - 1]`` is the composition of that extent, from 1 to the table's limit.

    ``regret_mean`` and ``regret_max``: fraction lost against the best alternative, by the times that chose it, over the
    shapes that were timed.
    """

    threads: int
    axis: str
    entries: tuple[Planned, ...]
    curves: Mapping[str, Sequence[Curve]]  # way to share -> kept micro-kernels
    measured: Mapping[int, Mapping[Composition, float]] = field(default_factory=dict)  # extent -> composition -> us
    regret_mean: float = 0.0
    regret_max: float = 0.0

    def at(self, shape: Shape) -> Planned:
        """Plan of one shape; IndexError beyond the table."""
        extent = shape[self.axis]
        if not 1 <= extent <= len(self.entries):
            raise IndexError(f"{self.axis}={extent} is not in the table's 1..{len(self.entries)}")
        return self.entries[extent - 1]


PlanTable = RowTable | CellTable
