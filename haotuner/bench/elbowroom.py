"""Elbowroom: blocks of several threads are timed again if their threads may have shared a core (see measure/crowding.py)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from haotuner.backends.cpu.crowding import CROWDED, Patience
from haotuner.bench.contender import MACHINE
from haotuner.bench.lineup import Lineup
from haotuner.bench.process import Down

LOOK_LIMIT_S = 20.0
Block = Mapping[str, Any]


class Elbowroom:
    """Has the machine look before and after every block of several threads. Without the machine in the race it takes all."""

    def __init__(self, lineup: Lineup, threads: int) -> None:
        self._lineup, self._watched, self._patience = lineup, threads > 1, Patience()

    def block(self, time_once: Callable[[], Block]) -> tuple[Block, bool]:
        """A block, the least crowded one; and whether it was crowded all the same. Down as ``time_once`` raises it."""
        if not self._watched:
            return time_once(), False
        seen, crowded = self._patience.least_crowded(lambda: self._between(time_once))
        return seen, crowded > CROWDED

    def _between(self, time_once: Callable[[], Block]) -> Block:
        before = self._look()
        return {**time_once(), "compute_us": [1.0], "together_us": [max(before, self._look())]}

    def _look(self) -> float:
        if MACHINE not in self._lineup.names():
            return 1.0
        try:
            return float(self._lineup.ask(MACHINE, {"do": "crowding"}, LOOK_LIMIT_S)["crowding"])
        except Down:
            return 1.0
