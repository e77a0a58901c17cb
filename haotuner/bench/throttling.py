"""Blocks on a GPU, timed again if it slowed itself down meanwhile (heat, power brake); NVML says so, where it is there."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from haotuner.backends.cuda.clocks import Clocks

TRIES, PAUSE_S = 3, 0.5  # of a block that was slowed: heat takes seconds to go, a brake is over sooner
Block = Mapping[str, Any]


class Throttling:
    """Looks at the GPU before and after every block."""

    def __init__(self, ordinal: int, clocks: Clocks | None = None, pause_s: float = PAUSE_S) -> None:
        self._clocks, self._pause_s = clocks or Clocks(ordinal), pause_s
        has_reasons = "reasons" in self._clocks.look()
        self.watched = "reasons to throttle" if has_reasons else f"nothing: {self._clocks.absent or 'NVML does not tell'}"

    def block(self, time_once: Callable[[], Block]) -> tuple[Block, bool]:
        """A block, and whether the GPU was slowed while it ran at every try. Unanswered as ``time_once`` raises it."""
        for left in reversed(range(TRIES)):
            before = self._clocks.look()
            seen = time_once()
            if not self._clocks.slowed(before, self._clocks.look()):
                return seen, False
            if left:
                time.sleep(self._pause_s)
        return seen, True
