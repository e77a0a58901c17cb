"""Space of schedules of online softmax, as points that a policy searches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from haotuner.codegen.online_softmax import OnlineSoftmax
from haotuner.codegen.online_softmax_schedule import ALONG, OnlineSchedule, in_parts, schedules
from haotuner.codegen.space import SLICES, STRUCTURE, Hole, Point, Space


@dataclass(frozen=True)
class OnlineSpace(Space):
    """All schedules of an online softmax for vectors of so many lanes. A point without a plan is no point."""

    sums: OnlineSoftmax

    @cached_property
    def _every(self) -> frozenset[OnlineSchedule]:
        usual = list(schedules(self.sums, self.lanes))
        return frozenset(usual + (in_parts(self.sums, usual, SLICES * self.workers) if self.workers > 1 else []))

    @cached_property
    def holes(self) -> tuple[Hole, ...]:
        """Free choices: what runs along the lanes first, then tiles, then what an iteration computes."""
        first, second = self.sums.product.tensor, self.graph.outputs[0]

        def hole(name: str, node: str) -> Hole:
            return Hole(name, node, tuple(sorted({getattr(item, name) for item in self._every})))

        along = Hole("along", STRUCTURE, (0, 1))  # rows, depth
        return (along, hole("rows", STRUCTURE), hole("keys", STRUCTURE), hole("block", first), hole("out_rows", second),
                hole("parts", second))  # fmt: skip

    def _canonical(self, point: Sequence[int]) -> Point | None:
        return tuple(point) if self.schedule(tuple(point)) in self._every else None

    def schedule(self, point: Point) -> Any:
        """The schedule of a point."""
        value = {hole.name: hole.choices[at] for hole, at in zip(self.holes, point, strict=True)}
        return OnlineSchedule(lanes=self.lanes, along=ALONG[value.pop("along")], **value)

    def has_program(self, point: Point) -> bool:
        """True if a point's schedule has a plan."""
        return self.canonical(point) is not None
