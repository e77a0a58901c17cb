"""Constraint: an inequality that a micro-kernel must obey to be worth measuring; and the check of all of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel, Refused, Tile
from haotuner.spec.op import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class ConstraintQuery:
    """Query that every constraint reads."""

    kernel: MicroKernel
    footprint: Footprint
    op: Op
    device: Device
    tile: Tile
    most: Mapping[str, int]  # the largest extent of every dynamic axis in the range
    suits: bool = True  # the device has the family's instructions


Law = Callable[[ConstraintQuery], tuple[float, float] | None]
Laws = Sequence[tuple[str, Law]]


def no_larger(axis: str, *, least: int = 1) -> Law:
    """The tile is no larger along a dynamic axis than any extent there will be; one up to ``least`` always may be."""

    def law(q: ConstraintQuery) -> tuple[float, float] | None:
        return q.tile.extent[axis], max(least, q.most[axis])

    return law


def refusals(question: ConstraintQuery, laws: Laws) -> Iterator[Refused]:
    """Every constraint that the kernel breaks, in order."""
    for law, sides in laws:
        sides_ = sides(question)
        if sides_ is not None and sides_[0] > sides_[1]:
            yield Refused(kernel=question.kernel, law=law, requested=sides_[0], allowed=sides_[1])
