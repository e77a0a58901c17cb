"""Plan tables over several dynamic axes: a grid of cells in log space, each with the composition of the shapes around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
from numpy.typing import NDArray

from haotuner.words.composition import Composition
from haotuner.words.shape import Shape

MOST_CELLS = 1024  # of a table, 4 bytes each
NEAR = 4  # timed shapes that have a say in a cell, the nearer the more
TIE = 0.015  # a gain under it is noise: fewer micro-kernels win

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
    ``considered``: of each cell what was weighed, the chosen one first; empty where cells are not weighed one by one.
    """

    threads: int
    bounds: Mapping[str, tuple[int, ...]]
    entries: tuple[Composition, ...]
    measured: Times = field(default_factory=dict)
    regret_mean: float = 0.0  # fraction lost at the timed shapes against the best composition timed there
    regret_max: float = 0.0
    considered: tuple[tuple[Considered, ...], ...] = ()

    def at(self, shape: Shape) -> Composition:
        """What is planned for a shape; there is always something."""
        cell = 0
        for axis, bounds in self.bounds.items():
            place = int(np.searchsorted(bounds, shape[axis]))
            cell = cell * len(bounds) + min(place, len(bounds) - 1)
        return self.entries[cell]


def cell_table(threads: int, axes: Sequence[str], times: Times, shares: Mapping[Shape, float]) -> CellTable:
    """The table from what was timed. ValueError if nothing was."""
    if not times:
        raise ValueError("no shape was timed, so there is no plan")
    shapes, compositions = list(times), sorted({one for found in times.values() for one in found})
    places = np.log([[shape[axis] for axis in axes] for shape in shapes])
    slower = np.array([[np.log(times[s].get(c, np.inf) / min(times[s].values())) for c in compositions] for s in shapes])
    bounds = {axis: _bounds(sorted({shape[axis] for shape in shapes}), len(axes)) for axis in axes}
    chosen = [_of_cell(np.array(centre), places, slower) for centre in product(*(_centres(bounds[axis]) for axis in axes))]
    table = CellTable(threads=threads, bounds=bounds, entries=tuple(compositions[place] for place in chosen), measured=times)
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


def _bounds(extents: Sequence[int], axes: int) -> tuple[int, ...]:
    """Largest extents of cells that have about as many timed extents each: midpoints in log space, then the last one."""
    most = max(1, int(MOST_CELLS ** (1 / axes)))
    picks = np.unique(np.round(np.linspace(0, len(extents) - 1, min(most, len(extents)))).astype(int)).tolist()
    kept = [extents[place] for place in picks]
    middles = [int(np.floor(np.sqrt(a * b))) for a, b in zip(kept, kept[1:], strict=False)]
    return tuple(sorted({*middles, kept[-1]}))


def _centres(bounds: Sequence[int]) -> list[float]:
    """Logarithm of the middle of each cell; of the first one, which has no lower end, of half its largest extent."""
    lower = [max(1.0, bounds[0] / 2), *(bound + 1.0 for bound in bounds[:-1])]
    return [float(np.log(np.sqrt(low * high))) for low, high in zip(lower, bounds, strict=True)]


def _of_cell(centre: NDArray[np.float64], places: NDArray[np.float64], slower: NDArray[np.float64]) -> int:
    """The composition that loses least at the timed shapes around a cell, weighed by nearness."""
    distance = np.linalg.norm(places - centre, axis=1)
    near = np.argsort(distance, kind="stable")[:NEAR]
    weight = 1.0 / (distance[near] + 0.1) ** 2
    loss = weight @ slower[near] / weight.sum()
    return int(np.flatnonzero(loss <= loss.min() + TIE)[0])
