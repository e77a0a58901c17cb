"""Failed kernels of a search, and which of them failed by time alone, which on a crowded host says nothing of them."""

from __future__ import annotations

from haotuner.spec.record import Failed, Record

TIMEOUT, BUILD = "timeout", "build"


class FailedKernels(set[str]):
    """Names of kernels that are not timed again, because a trial of theirs failed.

    A time-out counts against a kernel where most others have times. Where more kernels time out than have a time, other
    programs had the cores: they are then as if nobody had tried them.
    """

    def __init__(self) -> None:
        super().__init__()
        self._timed_out: set[str] = set()

    def note(self, kernel: str, record: Record) -> None:
        """Take in a record without a time."""
        if timed_out(record):
            self._timed_out |= {kernel} - self
        else:
            self._timed_out.discard(kernel)
        self.add(kernel)

    def forget_timeouts(self, timed: int) -> bool:
        """Take back what timed out if those are more than the ``timed`` kernels that have times; True if there were any."""
        if len(self._timed_out) <= timed:
            return False
        self.difference_update(self._timed_out)
        self._timed_out.clear()
        return True


def timed_out(record: Record) -> bool:
    """True if a trial of a kernel that was built ended at its limit."""
    outcome = record.outcome
    return isinstance(outcome, Failed) and outcome.reason == TIMEOUT and outcome.stage != BUILD
