"""Cover of one axis where tiles are masked at its end and a device runs many at a time: grids, and their compositions.

A kernel's tiles are a grid of blocks; the device runs ``slots`` of them at a time, so time rises in rounds. Its last round
ends well by one of three: another tile; the sum over k in parts, where the grid is short of a round (split-K); a second
region of smaller tiles behind whole rounds of large ones (after MikPoly, ASPLOS 2024).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import prod

from haotuner.spec.composition import WHOLE, Composition, Part, in_parts
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.occupancy import occupancy
from haotuner.spec.op import Op

MOST_TILES = 64  # along the covered axis where every tile more begins a cell; beyond, only every round of blocks does
MOST_CELLS = 512  # of one table
LEAST_STEPS = 4  # of k in each part of a sum: fewer do not fill the pipeline of loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """One kernel's blocks over an op: ``rows`` of a tile along the covered axis, ``across`` tiles over the other axes."""

    kernel: str
    rows: int
    across: int
    slots: int  # blocks that the whole device runs at a time, at least one
    steps: int  # of the sum over k
    apart: bool = True  # another region may compute some of the rows

    @staticmethod
    def of(kernel: MicroKernel, family: Family, op: Op, device: Device) -> Grid:
        """From tile and footprint. The op has one dynamic axis, which is covered."""
        tile, axis, static = family.tile(kernel), op.dynamic[0], dict(op.static)
        return Grid(
            kernel=kernel.name,
            rows=tile.extent[axis],
            across=prod(-(-static[other] // size) for other, size in tile.extent.items() if other != axis),
            slots=max(1, occupancy(family.footprint(kernel), device).blocks) * device.compute_units,
            steps=prod(-(-static[other] // size) for other, size in tile.step.items()),
            apart=op.meaning.rows_apart,
        )

    def tiles(self, extent: int) -> int:
        """Tiles along the covered axis, the last one perhaps masked."""
        return -(-extent // self.rows)

    def rounds(self, tiles: int, parts: int = 1) -> int:
        """Rounds of blocks that so many tiles along the axis take."""
        return -(-tiles * self.across * parts // self.slots)

    def whole_rounds(self, tiles: int) -> int:
        """Most tiles along the axis, up to so many, whose blocks leave no round unfinished by a row of tiles; 0 if none."""
        rounds = tiles * self.across // self.slots
        return rounds * self.slots // self.across if rounds else 0

    def short(self, tiles: int, parts: int) -> bool:
        """True if so many parts of the sum still run in one round, each with steps enough."""
        return tiles * self.across * parts <= self.slots and self.steps >= parts * LEAST_STEPS

    def ends(self, last: int) -> Iterator[int]:
        """Extents up to ``last`` after which the grid takes a tile more, beyond ``MOST_TILES`` a round more."""
        for tiles in range(1, min(self.tiles(last), MOST_TILES) + 1):
            yield tiles * self.rows
        rounds = self.rounds(min(self.tiles(last), MOST_TILES))
        while (tiles := rounds * self.slots // self.across) < self.tiles(last):
            if tiles > MOST_TILES:
                yield tiles * self.rows
            rounds += 1


def bounds(grids: Sequence[Grid], first: int, last: int) -> tuple[int, ...]:
    """Last extent of each cell between ``first`` and ``last``, ascending: inside a cell no grid grows."""
    result = sorted({end for grid in grids for end in grid.ends(last) if first <= end < last} | {last})
    if len(result) <= MOST_CELLS:
        return tuple(result)
    selected: list[int] = []
    ratio = (last / max(first, 1)) ** (1 / MOST_CELLS)
    for end in result:  # thinned evenly in log space
        if not selected or end >= selected[-1] * ratio or end == last:
            selected.append(end)
    return tuple(selected)


def alone(grid: Grid, extent: int, parts: Iterable[int]) -> Iterator[Composition]:
    """One region: the kernel over everything, and its sum in parts where its grid is short of a round."""
    for count in parts:
        if count == 1 or grid.short(grid.tiles(extent), count):
            yield Composition.of(grid.kernel, share=in_parts(count))


def pairs(grids: Sequence[Grid], extent: int) -> Iterator[Composition]:
    """Two regions: whole rounds, or whole tiles, of one kernel, and what is left by another of lower tiles."""
    for lead in grids:
        tiles = {lead.whole_rounds(lead.tiles(extent)), extent // lead.rows} - {0}
        for count in sorted(tiles):
            if count * lead.rows >= extent:
                continue
            for rest in grids:
                if rest.rows < lead.rows and lead.apart:
                    yield Composition((Part(lead.kernel, count), Part(rest.kernel, WHOLE)), in_parts(1))
