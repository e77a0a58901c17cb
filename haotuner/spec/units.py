"""Detection of two units among the times of one problem on one device: no single time shows them, all together do.

In the eight published Kernel Tuner files the slowest kernel takes 12 to 180 times as long as the fastest. No empty stretch
between neighbours in order of time is wider than a factor of 5.9.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

SAME = 100.0  # one kernel at one shape, measured twice: noise makes a few per cent, a busy machine a few times
_RANGE = 500.0  # slowest over fastest: one time in another unit makes it 1000 at least, but for its own noise
_GAP = 10.0  # empty stretch: 1000 over the range that the times of one unit have
_FAR = 20_000.0  # slowest over fastest: a hundred times what the published files reach
_FAR_GAP = 4.0  # beyond that less of a gap says the same, such as 1000 / 180
_FEW = 100  # at most one time in so many is an accident; more, and nobody knows which unit is right
_FEWEST = 10  # times that it takes to call one of them the accident


@dataclass(frozen=True, slots=True)
class Gap:
    """Two groups of times, and nothing for a ``factor`` between them: the ``fast`` first ones of ``count``, and the rest."""

    fast: int
    count: int
    factor: float

    @property
    def accident(self) -> bool:
        """True if the smaller group is so small that it is an accident of its own."""
        smaller = min(self.fast, self.count - self.fast)
        return self.count >= _FEWEST and smaller <= max(1, self.count // _FEW)


def gap_of(times: Sequence[float]) -> Gap | None:
    """The widest empty stretch of times in ascending order, if they reach so far that they may be of two units."""
    if not times or times[-1] < times[0] * _RANGE:
        return None
    at = max(range(1, len(times)), key=lambda i: times[i] / times[i - 1])
    factor = times[at] / times[at - 1]
    empty = _FAR_GAP if times[-1] > times[0] * _FAR else _GAP
    return Gap(at, len(times), factor) if factor > empty else None
