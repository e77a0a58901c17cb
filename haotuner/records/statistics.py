"""Statistics of a record store for reports, aggregated by SQLite: a million records pass no Python loop.

They rest on columns that are derived when a row is written (``status``, ``median_us``), which no digest covers;
``haotuner records check`` reads every record.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from haotuner.records.sqlite import Owner, SqliteStore

LOG_LETTERS = 2000  # of a failure's text: the end of a compiler's output is what says the reason
LOGS = 3  # texts of a class of failures
CURVE_POINTS = 300  # of an improvement curve


class Count(NamedTuple):
    """Records of one op on one device. ``first``, ``last``: seconds since the epoch."""

    device: str
    op: str
    timed: int
    failed: int
    first: float
    last: float


class Best(NamedTuple):
    """The least median of one op at one shape, in microseconds, and the kernel or composition that has it."""

    device: str
    op: str
    shape: str  # JSON, as the record has it
    threads: int
    cache: str  # cold or hot
    us: float
    kernel: str
    timings: int


class FailureClass(NamedTuple):
    """Failures of one stage and reason on a device, and the texts of the latest few."""

    device: str
    stage: str
    reason: str
    count: int
    logs: tuple[tuple[str, str, str, str], ...]  # op, kernel, shape, text


class Claim(NamedTuple):
    """A trial that somebody measures now. ``alive``: False where its process is known to be gone."""

    session: str
    trial: str  # ``Trial.key``
    owner: str
    alive: bool
    expires: float


@dataclass(frozen=True, slots=True)
class Statistics:
    """Aggregates over a store, of one session or of all. ``session``: empty for all."""

    store: SqliteStore
    session: str = ""

    def counts(self) -> list[Count]:
        """Records by device and op."""
        statement = (
            "SELECT device_id, op, SUM(median_us IS NOT NULL), SUM(median_us IS NULL), MIN(measured_at), MAX(measured_at) "
            "FROM record WHERE :session IN ('', session) GROUP BY device_id, op ORDER BY device_id, op"
        )
        return [Count(*row) for row in self._rows(statement)]

    def best(self) -> list[Best]:
        """The least time at each shape; SQLite takes the other columns from the row of the minimum."""
        statement = (
            "SELECT device_id, op, shape, threads, weights, MIN(median_us), kernel, COUNT(*) FROM record "
            "WHERE median_us IS NOT NULL AND :session IN ('', session) GROUP BY device_id, op, shape, threads, weights"
        )
        return [Best(*row) for row in self._rows(statement)]

    def improvements(self) -> dict[tuple[str, str], list[tuple[int, float]]]:
        """Curves by device and op: measurements made, and how far the best times then were behind the last ones.

        The value is a geometric mean over shapes of the best time so far over the least of all; a shape that has no time
        yet counts with its first one. So a curve never rises, and ends at 1.
        """
        statement = """
            SELECT device_id, op, turn, cell, us FROM (
                SELECT device_id, op, shape || threads || weights AS cell, median_us AS us,
                    ROW_NUMBER() OVER (PARTITION BY device_id, op ORDER BY seq) AS turn,
                    MIN(median_us) OVER (PARTITION BY device_id, op, shape, threads, weights ORDER BY seq
                        ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS best
                FROM record WHERE :session IN ('', session))
            WHERE us IS NOT NULL AND (best IS NULL OR us < best) ORDER BY device_id, op, turn"""
        steps: dict[tuple[str, str], list[tuple[int, str, float]]] = {}
        for device, op, turn, cell, us in self._rows(statement):
            steps.setdefault((device, op), []).append((turn, cell, us))
        return {key: _thinned(_improvement(rows)) for key, rows in steps.items()}

    def failures(self) -> list[FailureClass]:
        """Failures by device, stage and reason, the most common first."""
        failed = f"""
            SELECT device_id, op, kernel, shape, seq,
                CASE WHEN json_valid(outcome) THEN COALESCE(json_extract(outcome, '$.stage'), '?') ELSE '?' END AS stage,
                CASE WHEN json_valid(outcome) THEN COALESCE(json_extract(outcome, '$.reason'), '?') ELSE '?' END AS reason,
                CASE WHEN json_valid(outcome) THEN substr(COALESCE(json_extract(outcome, '$.detail'), ''), -{LOG_LETTERS})
                    ELSE 'the outcome of this row is not JSON' END AS detail
            FROM record WHERE median_us IS NULL AND :session IN ('', session)"""
        logs: dict[tuple[str, str, str], list[tuple[str, str, str, str]]] = {}
        latest = f"""
            SELECT device_id, stage, reason, op, kernel, shape, detail FROM (
                SELECT *, ROW_NUMBER() OVER (PARTITION BY device_id, stage, reason ORDER BY seq DESC) AS age FROM ({failed}))
            WHERE age <= {LOGS} ORDER BY age"""
        for device, stage, reason, *log in self._rows(latest):
            logs.setdefault((str(device), str(stage), str(reason)), []).append(
                (str(log[0]), str(log[1]), str(log[2]), str(log[3]))
            )
        counted = f"SELECT device_id, stage, reason, COUNT(*) FROM ({failed}) GROUP BY device_id, stage, reason"
        result = [
            FailureClass(*map(str, row[:3]), int(row[3]), tuple(logs[tuple(map(str, row[:3]))]))  # type: ignore[arg-type, index]
            for row in self._rows(counted)
        ]
        return sorted(result, key=lambda failure: (-failure.count, failure))

    def timings(self, device: str, most: int) -> Iterator[tuple[str, str, str, str, float]]:
        """At most so many times of single kernels on one thread, spread evenly: op, kernel, shape, cache state, us."""
        where = (
            "FROM record WHERE median_us IS NOT NULL AND threads = 1 AND device_id = :device AND :session IN ('', session)"
        )
        (total,) = next(self._rows(f"SELECT COUNT(*) {where}", device=device))
        step = max(1, math.ceil(total / most))
        statement = f"SELECT op, kernel, shape, weights, median_us {where} AND seq % {step} = 0 ORDER BY seq LIMIT {most}"
        yield from self._rows(statement, device=device)

    def claims(self) -> list[Claim]:
        """Trials that are being measured."""
        rows = self._rows("SELECT session, trial_key, owner, expires FROM claim WHERE :session IN ('', session)")
        return [Claim(session, trial, owner, _lives(owner), expires) for session, trial, owner, expires in rows]

    def _rows(self, statement: str, **values: str) -> Iterator[tuple]:  # type: ignore[type-arg]
        return iter(self.store.select(statement, {"session": self.session, **values}))


def _improvement(rows: list[tuple[int, str, float]]) -> list[tuple[int, float]]:
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for _, cell, us in rows:
        first.setdefault(cell, us)
        last[cell] = us  # every row is the best so far
    behind = math.fsum(math.log(us / last[cell]) for cell, us in first.items())
    now, points = dict(first), []
    for turn, cell, us in rows:
        behind -= math.log(now[cell] / us)
        now[cell] = us
        points.append((turn, math.exp(max(0.0, behind) / len(first))))
    return [*points[:-1], (points[-1][0], 1.0)]  # sums of many logs are off by an ulp or two


def _thinned(points: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """At most ``CURVE_POINTS``, both ends among them."""
    if len(points) <= CURVE_POINTS:
        return points
    return [points[round(at * (len(points) - 1) / (CURVE_POINTS - 1))] for at in range(CURVE_POINTS)]


def _lives(owner: str) -> bool:
    """True unless the process is known to be gone; a text of others is no owner and says nothing."""
    try:
        return Owner.parse(owner).lives()
    except ValueError:
        return True
