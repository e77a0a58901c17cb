"""Clock: says when a search stops, at its deadline or when whoever watches asks for it."""

from __future__ import annotations

import time
from collections.abc import Callable

from haotuner.search.task import Watch
from haotuner.spec.record import Record


def now() -> float:
    """Seconds of a clock that only rises."""
    return time.monotonic()


class Clock:
    """A deadline and a watcher. ``expired`` and ``given_up`` say what ended it."""

    def __init__(self, until: float, watch: Watch, phase: str = "search", *, given_up: bool = False) -> None:
        self._until, self._watch, self.phase = until, watch, phase
        self.expired, self.given_up = False, given_up

    def not_given_up(self, record: Record | None = None) -> bool:
        """True if nobody asked to stop, whatever the time."""
        if not self._watch(self.phase, record):
            self.given_up = True
        return not self.given_up

    def goes_on(self, record: Record | None = None, *, needing: float = 0.0) -> bool:
        """True if there is time left, so many seconds if the next step needs them, and nobody asked to stop."""
        self.not_given_up(record)
        late = now() + needing >= self._until
        self.expired |= late
        return not (late or self.given_up)

    def within(self, share: float) -> Callable[[Record | None], bool]:
        """Test for a step that may take this share of the time left; the clock itself does not expire."""
        until = part(self._until, share)

        def goes_on(record: Record | None = None) -> bool:
            return self.not_given_up(record) and now() < until

        return goes_on

    def move(self, until: float) -> None:
        """Another deadline, for the next step; that one was missed is not forgotten."""
        self._until = until

    def next_phase(self, until: float, phase: str) -> Clock:
        """A clock for another phase, which nobody's wish to stop is lost to."""
        return Clock(until, self._watch, phase, given_up=self.given_up)


def part(until: float, share: float) -> float:
    """The moment when that share of the time from now on is over."""
    begin = now()
    return begin + (until - begin) * share
