"""Parallel fill and padding over the traffic, with thresholds that relax until something is left for every shape.

For tiles that serve a shape alone. FTuner's two filters and their union over the shapes: a tile is useful to a shape by the
share of the device that its grid fills, times the share of what it computes that is wanted. Both are taken together and
relative to the best tile of the shape, because a shape too small for the device can buy one with the other: so small shapes
never lose their kernels.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.select.rejections import Rejections
from haotuner.spec.device import Device
from haotuner.spec.family import Family
from haotuner.spec.kernel import Candidate
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

FIRST_SHARE = 0.95  # of the best tile's usefulness; the step is 0.05: both as FTuner's code has them
STEP = 0.05
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
