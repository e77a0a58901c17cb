"""Padding where tiles cover some axis exactly: what is computed in vain along the others, with a threshold that relaxes."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from haotuner.select.geometry import exact_axes, extents_of, padded_axes, padding
from haotuner.select.rejections import Rejections
from haotuner.spec.family import Family
from haotuner.spec.kernel import Candidate
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

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
