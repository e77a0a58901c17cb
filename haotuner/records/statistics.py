"""Statistics of a record store for reports. No record is decoded for them.

They rest on columns that are derived when a row is written (``status``, ``median_us``), which no digest covers;
``haotuner records check`` reads every record.
"""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

from haotuner.records.sqlite import Owner
from haotuner.records.store import RecordStore

LOG_LETTERS = 2000  # of a failure's text: the end of a compiler's output is what says the reason
LOGS = 3  # texts of a class of failures
PAGE_ROWS = 50_000  # read at once: some tens of megabytes
CURVE_POINTS = 300  # of an improvement curve


@runtime_checkable
class Queryable(RecordStore, Protocol):
    """A store that answers aggregates over its tables; those of all stores have the same columns."""

    def select(self, statement: str, values: Mapping[str, str | int]) -> list[tuple[Any, ...]]:
        """Rows of a statement with named values."""
        ...

    def now(self) -> float:
        """Seconds since the epoch by the clock that leases of claims go by."""
        ...


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
    failures: int
    logs: tuple[tuple[str, str, str, str], ...]  # op, kernel, shape, text


class Claim(NamedTuple):
    """A trial that somebody measures now.

    ``alive``: False where its process is known to be gone; ``expired``: its lease is over.
    """

    session: str
    trial: str  # ``Trial.key``
    owner: str
    alive: bool
    expired: bool


class Summary(NamedTuple):
    """Records by device and op, the best time of each cell, improvement curves by device and op, classes of failures."""

    counts: list[Count]
    best: list[Best]
    improvements: dict[tuple[str, str], list[tuple[int, float]]]
    failures: list[FailureClass]  # the most common first


@dataclass(frozen=True)
class Statistics:
    """Aggregates over a store, of one session or of all. ``session``: empty for all."""

    store: Queryable
    session: str = ""

    @cached_property
    def summary(self) -> Summary:
        """Sums of one pass in the order of the rows, without an index or a sort: a million take some seconds.

        A curve says for numbers of measurements how far the best times then were behind the last ones: a geometric mean
        over shapes of the best time so far over the least of all. A shape that has no time yet counts with its first one.
        So a curve never rises, and ends at 1.
        """
        counts: dict[tuple[str, str], list[float]] = {}
        best: dict[tuple[str, str, str, int, str], list[Any]] = {}
        steps: dict[tuple[str, str], list[tuple[int, tuple[Any, ...], float]]] = {}
        failed: dict[tuple[str, str, str], list[Any]] = {}
        for _, device, op, shape, threads, cache, us, kernel, when, outcome in self._scan():
            device, op = str(device), str(op)  # a store of others may have bytes in any column, or texts for numbers
            us, when = us if isinstance(us, float) else None, when if isinstance(when, float) else 0.0
            count = counts.setdefault((device, op), [0, 0, when, when])
            count[us is None] += 1
            count[2:] = min(count[2], when), max(count[3], when)
            if us is None:
                stage, reason, detail = _failure(outcome)
                of_class = failed.setdefault((device, stage, reason), [0, deque(maxlen=LOGS)])
                of_class[0] += 1
                of_class[1].appendleft((op, str(kernel), str(shape), detail))
                continue
            cell = device, op, shape, threads, cache
            least = best.setdefault(cell, [math.inf, "", 0])
            least[2] += 1
            if us < least[0]:
                least[:2] = us, kernel
                steps.setdefault((device, op), []).append((int(count[0] + count[1]), cell, us))
        return Summary(
            sorted(
                Count(*key, int(timed), int(failed), first, last) for key, (timed, failed, first, last) in counts.items()
            ),
            [Best(*cell, *least) for cell, least in best.items()],
            {key: _thinned(_improvement(rows)) for key, rows in steps.items()},
            sorted((FailureClass(*key, count, tuple(logs)) for key, (count, logs) in failed.items()),
                   key=lambda failure: (-failure.failures, failure)),
        )  # fmt: skip

    def _scan(self) -> Iterator[tuple[Any, ...]]:
        """Rows in the order of arrival, some at a time, so that none of a large store has to stay."""
        after = 0
        columns = "seq, device_id, op, shape, threads, weights, median_us, kernel, measured_at, "
        columns += "CASE WHEN median_us IS NULL THEN outcome END"
        where = f"seq > :after AND :session IN ('', session) ORDER BY seq LIMIT {PAGE_ROWS}"
        while rows := list(self._rows(f"SELECT {columns} FROM record WHERE {where}", after=after)):
            yield from rows
            after = rows[-1][0]

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
        now = self.store.now()
        return [
            Claim(session, trial, owner, _lives(owner), not isinstance(expires, float) or expires < now)
            for session, trial, owner, expires in rows
        ]

    def _rows(self, statement: str, **values: str | int) -> Iterator[tuple[Any, ...]]:
        return iter(self.store.select(statement, {"session": self.session, **values}))


def _failure(outcome: object) -> tuple[str, str, str]:
    """Stage, reason and the end of the text; of what others wrote question marks."""
    try:
        document = json.loads(outcome) if isinstance(outcome, str) else None
        return str(document["stage"]), str(document["reason"]), str(document["detail"])[-LOG_LETTERS:]  # type: ignore[index]
    except (KeyError, TypeError, ValueError, RecursionError):
        return "?", "?", "the outcome of this row is no failure's JSON"


def _improvement(rows: list[tuple[int, tuple[Any, ...], float]]) -> list[tuple[int, float]]:
    first: dict[tuple[Any, ...], float] = {}
    last: dict[tuple[Any, ...], float] = {}
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
