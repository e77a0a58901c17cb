"""Pruning report of a selection: number of points that each constraint refused, and some of them word for word."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from haotuner.spec.kernel import MicroKernel, Refused


@dataclass(slots=True, kw_only=True)
class Rejections:
    """Counts are complete; of the refusals themselves the first ``room`` are kept."""

    room: int
    counts: Counter[str] = field(default_factory=Counter)
    examples: list[Refused] = field(default_factory=list)

    def note(self, refused: Refused) -> None:
        """Take down one refusal."""
        self.refuse(refused.kernel, refused.law, refused.asked, refused.allowed)

    def refuse(self, kernel: MicroKernel, law: str, value: float, allowed: float) -> None:
        """Counts a refusal given by its parts; asked is over allowed."""
        self.counts[law] += 1
        if len(self.examples) < self.room:
            self.examples.append(Refused(kernel=kernel, law=law, asked=value, allowed=allowed))
