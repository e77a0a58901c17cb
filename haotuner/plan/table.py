"""Plan tables: what is served at every shape of one op, for one thread count."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haotuner.plan.cells import CellTable
from haotuner.plan.curves import Curve
from haotuner.spec.composition import Composition, Planned
from haotuner.spec.shape import Shape


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
