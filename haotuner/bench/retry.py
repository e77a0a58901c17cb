"""Blocks that are timed again: their threads may have shared a core, or the GPU slowed itself down."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

from haotuner.backends.cpu.interference import CROWDED, RetryPolicy
from haotuner.backends.cuda.clocks import Clocks
from haotuner.bench.contender import MACHINE
from haotuner.bench.processes import Processes
from haotuner.isolate.answers import ChildNotResponding

LOOK_LIMIT_S = 20.0
Block = Mapping[str, Any]


class RetryContended:
    """Has the machine look before and after every block of several threads. Without the machine in the race it takes all."""

    watched = "cores shared by threads"

    def __init__(self, processes: Processes, threads: int) -> None:
        self._processes, self._watched, self._patience = processes, threads > 1, RetryPolicy()

    def block(self, time_once: Callable[[], Block]) -> tuple[Block, bool]:
        """A block, the least crowded one; and whether it was crowded all the same. Unanswered as ``time_once`` raises it."""
        if not self._watched:
            return time_once(), False
        seen, crowded = self._patience.least_crowded(lambda: self._between(time_once))
        return seen, crowded > CROWDED

    def _between(self, time_once: Callable[[], Block]) -> Block:
        before = self._look()
        return {**time_once(), "compute_us": [1.0], "together_us": [max(before, self._look())]}

    def _look(self) -> float:
        if MACHINE not in self._processes.names():
            return 1.0
        try:
            return float(self._processes.ask(MACHINE, {"do": "crowding"}, LOOK_LIMIT_S)["crowding"])
        except ChildNotResponding:
            return 1.0


TRIES, PAUSE_S = 3, 0.5  # of a block that was slowed: heat takes seconds to go, a brake is over sooner


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
