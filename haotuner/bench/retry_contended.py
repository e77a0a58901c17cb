"""Blocks of several threads, timed again if their threads may have shared a core (see measure/contention.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from haotuner.backends.cpu.contention import CROWDED, RetryPolicy
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
