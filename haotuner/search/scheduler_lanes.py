"""Lanes of a task scheduler: one scheduler over tasks of several devices, each device at work on its own tasks.

A device can time nothing of another one. So whoever is free asks for the best turn among its own tasks, while gains, the
objective and the budget are those of all.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from threading import Lock

from haotuner.search.task_scheduler import Scheduler, Shared


class Lane:
    """``GivesTurns`` of one device: tasks ``first`` to ``first + count - 1`` of a scheduler that others ask, too."""

    def __init__(self, scheduler: Scheduler, lock: Lock, first: int, count: int) -> None:
        self._scheduler, self._lock, self._first, self._count = scheduler, lock, first, count

    @property
    def tasks(self) -> Sequence[Shared]:
        """The device's own tasks."""
        return self._scheduler.tasks[self._first : self._first + self._count]

    @property
    def done(self) -> Collection[int]:
        """Its tasks that have nothing more to try."""
        with self._lock:
            return {index - self._first for index in self._scheduler.done if self._has(index)}

    def next(self) -> int | None:
        """Its task that promises most for the whole; None when none promises anything."""
        with self._lock:
            index = self._scheduler.next(range(self._first, self._first + self._count))
        return None if index is None else index - self._first

    def tell(self, task: int, us: float, *, finished: bool = False) -> None:
        """A turn of a task ended with this time of a call."""
        with self._lock:
            self._scheduler.tell(self._first + task, us, finished=finished)

    def latencies(self) -> list[float]:
        """Microseconds of all that is tuned for, of each device."""
        with self._lock:
            return self._scheduler.latencies()

    def _has(self, index: int) -> bool:
        return self._first <= index < self._first + self._count


def lanes(scheduler: Scheduler, counts: Sequence[int]) -> list[Lane]:
    """Lanes of a scheduler whose tasks are those of the first device, then of the next, so many each."""
    lock = Lock()
    return [Lane(scheduler, lock, sum(counts[:at]), count) for at, count in enumerate(counts)]
