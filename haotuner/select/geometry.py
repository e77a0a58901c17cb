"""Geometry of candidates: which of them compete with each other, and what they compute beyond what is asked."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel, Tile
from haotuner.spec.op import Op
from haotuner.spec.traffic import Traffic

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
