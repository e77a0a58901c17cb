"""Time budget of a race: how long the next row may take."""

from __future__ import annotations

import time

from haotuner.bench.contest import Contest


class Budget:
    """Shares what is left of ``Contest.seconds`` among what is left to do.

    A group is the rows of one op, state and thread count: so no op goes without rows because others came first.
    """

    def __init__(self, contest: Contest) -> None:
        self._contest = contest
        self._end = time.monotonic() + (contest.seconds or 0.0)
        self._groups = contest.rows() // len(contest.shapes)
        self._group_end = self._end

    def next_group(self) -> None:
        """A group begins."""
        now = time.monotonic()
        self._group_end = now + max(0.0, self._end - now) / self._groups
        self._groups -= 1

    def row_seconds(self, rows_left: int) -> float:
        """Time for the next of so many rows of this group; 0 when there is none left."""
        if self._contest.seconds is None:
            return self._contest.seconds_per_row
        return max(0.0, self._group_end - time.monotonic()) / rows_left
