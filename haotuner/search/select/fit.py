"""Fit of candidates to the traffic: parallel fill, padding, what competes, and the report of what was refused.

Padding where tiles cover some axis exactly: what is computed in vain along the others, with a threshold that relaxes.

Parallel fill and padding over the traffic, with thresholds that relax until something is left for every shape.

For tiles that serve a shape alone. FTuner's two filters and their union over the shapes: a tile is useful to a shape by the
share of the device that its grid fills, times the share of what it computes that is wanted. Both are taken together and
relative to the best tile of the shape, because a shape too small for the device can buy one with the other: so small shapes
never lose their kernels.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil, prod

import numpy as np
from numpy.typing import NDArray

from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import Candidate, MicroKernel, Refused, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic


@dataclass(slots=True, kw_only=True)
class Rejections:
    """Counts are complete; of the refusals themselves the first ``room`` are kept."""

    room: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Refused] = field(default_factory=list)

    def note(self, refused: Refused) -> None:
        """Take down one refusal."""
        self.refuse(refused.kernel, refused.law, refused.requested, refused.allowed)

    def refuse(self, kernel: MicroKernel, law: str, value: float, allowed: float) -> None:
        """Counts a refusal given by its parts; asked is over allowed."""
        self.counts[law] += 1
        if len(self.examples) < self.room:
            self.examples.append(Refused(kernel=kernel, law=law, requested=value, allowed=allowed))


Extents = tuple[int, ...]


def exact_axes(tile: Tile) -> tuple[str, ...]:
    """Axes of which the tile covers whole pieces only: several tiles together fit every shape, so nothing is padded."""
    return tuple(axis for axis, edge in tile.edge.items() if edge == "exact")


def padded_axes(tile: Tile) -> tuple[str, ...]:
    """The other parallel axes."""
    return tuple(axis for axis, edge in tile.edge.items() if edge != "exact")


def group(family: Family, kernel: MicroKernel) -> Extents:
    """Micro-kernels of one group stand in for each other; of every group some are kept, whatever their rank.

    An exact cover needs small tiles of every extent, in each layout of the packed constants. Where no axis is exact a tile
    serves a shape alone, and its whole extent is the group.
    """
    tile = family.tile(kernel)
    axes = exact_axes(tile) or tuple(tile.extent)
    return (*(tile.extent[axis] for axis in axes), *family.layout(kernel))


def extents_of(op: Op, traffic: Traffic, axes: Sequence[str]) -> list[Extents]:
    """The distinct extents of some axes over the traffic, in its order."""
    every = (op.extents(shape) for shape in traffic.shapes())
    return list(dict.fromkeys(tuple(extents[axis] for axis in axes) for extents in every))


def padding(family: Family, kernel: MicroKernel, axes: Sequence[str], requested: Extents) -> float:
    """Padding along some axes: what is computed beyond what is asked, as a share of it."""
    computed = prod(family.computed(kernel, axis, extent) for axis, extent in zip(axes, requested, strict=True))
    return computed / prod(requested) - 1


FIRST = 0.03  # of what is asked; FTuner starts at 0.05 for all axes together, the exact ones have none here
STEP = 0.05


def unpadded(op: Op, family: Family, traffic: Traffic, legal: Sequence[Candidate], ledger: Rejections) -> list[Candidate]:
    """Candidates whose padding is let pass for some extents of the traffic, in their order; the others are refused.

    Every exact extent (a tile height) keeps its least padded kernels: a small shape must not lose them.
    """
    tiles = [family.tile(candidate.kernel) for candidate in legal]
    axes = padded_axes(tiles[0])
    heights = [tuple(tile.extent[axis] for axis in exact_axes(tile)) for tile in tiles]
    nearest: list[tuple[float, float, float]] = [(float("inf"), 0.0, 0.0)] * len(legal)  # excess, asked, allowed
    for extents in extents_of(op, traffic, axes):
        waste = [padding(family, candidate.kernel, axes, extents) for candidate in legal]
        least: dict[tuple[int, ...], float] = {}
        for height, share in zip(heights, waste, strict=True):
            least[height] = min(share, least.get(height, share))
        allowed = {height: FIRST + STEP * ceil(max(0.0, share - FIRST) / STEP) for height, share in least.items()}
        for at, (height, share) in enumerate(zip(heights, waste, strict=True)):
            nearest[at] = min(nearest[at], (share - allowed[height], share, allowed[height]))
    for candidate, (_, share, limit) in zip(legal, nearest, strict=True):
        if share > limit:
            ledger.refuse(candidate.kernel, "padding", share, limit)
    return [candidate for candidate, (_, share, limit) in zip(legal, nearest, strict=True) if share <= limit]


FIRST_SHARE = 0.95  # of the best tile's usefulness; the step is 0.05: both as FTuner's code has them
LEAST_OF_A_SHAPE = 10  # thresholds relax until as many are left for a shape, or all there were; FTuner measures ten a shape

Shares = NDArray[np.float64]


def fitting(
    op: Op, family: Family, device: Device, traffic: Traffic, legal: Sequence[Candidate], ledger: Rejections
) -> list[Candidate]:
    """Candidates that fit some shape of the traffic, in their order; the others are refused for fill or for padding."""
    if not family.tile(legal[0].kernel).edge:  # tiles that end no axis of their own fill and pad alike
        return list(legal)
    extents = [op.extents(shape) for shape in traffic.shapes()]
    shapes = [family.tile(candidate.kernel) for candidate in legal]
    tiles, computed, requested = (
        np.ones((1, 1)),
        np.ones((1, 1)),
        np.ones((1, 1)),
    )  # (shapes, candidates), as everything here
    for axis, edge in shapes[0].edge.items():
        along = np.array([e[axis] for e in extents], np.float64)[:, None]
        size = np.array([tile.extent[axis] for tile in shapes], np.float64)[None, :]
        count = np.ceil(along / size)
        done = _done(family, legal, axis, [e[axis] for e in extents]) if edge == "tail" else count * size
        tiles, computed, requested = tiles * count, computed * done, requested * along
    fill = _filled(tiles, device.compute_units)
    required = requested / computed
    useful = fill * required
    share = useful / useful.max(axis=1, keepdims=True)
    floors = np.array([relaxed(row) for row in share])
    fits = [bool(fit) for fit in np.any(share >= floors[:, None], axis=0)]
    for at in (index for index, fit in enumerate(fits) if not fit):
        nearest = int((floors - share[:, at]).argmin())
        law = "fill" if fill[nearest, at] < required[nearest, at] else "padding"  # the larger loss of the two
        ledger.refuse(legal[at].kernel, law, 1.0 - float(share[nearest, at]), 1.0 - float(floors[nearest]))
    return [candidate for candidate, fit in zip(legal, fits, strict=True) if fit]


def relaxed(shares: Shares) -> float:
    """The highest threshold, from ``FIRST_SHARE`` down by ``STEP``, that lets enough pass; 0 lets all."""
    enough = min(LEAST_OF_A_SHAPE, len(shares))
    for step in range(round(FIRST_SHARE / STEP)):
        threshold = FIRST_SHARE - STEP * step
        if int((shares >= threshold).sum()) >= enough:
            return threshold
    return 0.0


def _done(family: Family, legal: Sequence[Candidate], axis: str, along: Sequence[int]) -> Shares:
    """Extent that each candidate computes along an axis that it has a program for the end of."""
    distinct = sorted(set(along))
    every = np.array(
        [[family.computed(candidate.kernel, axis, extent) for candidate in legal] for extent in distinct], float
    )
    return every[[distinct.index(extent) for extent in along]]


def _filled(tiles: Shares, units: int) -> Shares:
    """Share of the units' time that has a tile when the busiest unit does its share: 1 for whole rounds of tiles."""
    return np.asarray(tiles / (np.ceil(tiles / units) * units), np.float64)
