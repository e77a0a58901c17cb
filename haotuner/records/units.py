"""Times of one file that cannot all be in one unit, or that contradict what is known of the same trial.

No line of a file says its unit. What a row says of itself (``rows.py``) is not always there, so the times of one problem on
one device are held against each other. In the eight published files the slowest is 12 to 180 times the fastest, and no
empty stretch between neighbours in order of time is wider than a factor of 5.9.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from haotuner.errors import UsageError
from haotuner.record import Record, Timed
from haotuner.records.store import RecordStore

_RANGE = 500.0  # slowest over fastest: one row in another unit makes it 1000 at least, but for its own noise
_GAP = 10.0  # empty stretch: 1000 over the range that the times of one unit have
_FAR = 20_000.0  # slowest over fastest: a hundred times what the published files reach
_FAR_GAP = 4.0  # beyond that less of a gap says the same, such as 1000 / 180
_SAME = 100.0  # one trial, measured twice
_FEW = 100  # at most one row in so many is an accident and is left out; more, and nobody knows which unit is right
_FEWEST = 10  # rows that it takes to call one of them the accident


@dataclass(frozen=True, slots=True)
class _Gap:
    """Two groups of times of one problem, and nothing between them."""

    fast: Sequence[Record]
    slow: Sequence[Record]

    def factor(self) -> float:
        return _us(self.slow[0]) / _us(self.fast[-1])

    def accidents(self) -> Sequence[Record]:
        """The smaller group if it is tiny, else nothing."""
        smaller, rows = min(self.fast, self.slow, key=len), len(self.fast) + len(self.slow)
        return smaller if rows >= _FEWEST and len(smaller) <= max(1, rows // _FEW) else ()

    def told(self) -> str:
        fast, slow = (f"{len(g)} times of {_ms(g[0])} to {_ms(g[-1])} ms" for g in (self.fast, self.slow))
        return f"{fast}, {slow}, and nothing for a factor of {self.factor():.0f} between"


def one_unit(records: Sequence[Record]) -> tuple[list[Record], Counter[str]]:
    """The records without those that another one contradicts, and how many were left out for what reason.

    Raises:
        UsageError: the times of a problem fall into two groups, neither of which is an accident.
    """
    timed = [record for record in records if isinstance(record.outcome, Timed)]
    left_out: dict[int, str] = {}  # ``id()`` of a record, since content hashes of all rows take longer than the rest
    for same in _grouped(timed, lambda record: record.trial.key()):
        if _us(same[-1]) > _us(same[0]) * _SAME:
            reason = f"the same configuration was measured more than {_SAME:g} times apart: mixed units?"
            left_out |= {id(record): reason for record in same}
    for group in _grouped((r for r in timed if id(r) not in left_out), lambda record: record.trial.op):
        gap = _widest(group)
        if gap is None:
            continue
        if not gap.accidents():
            raise UsageError(
                f"mixed units? {group[0].trial.op} on {group[0].device_id} has {gap.told()}; times must be milliseconds: "
                "convert the wrong ones, or import the right ones from a file of their own; nothing was stored"
            )
        reason = f"{gap.factor():.0f} times away from every other time: mixed units?"
        left_out |= {id(record): reason for record in gap.accidents()}
    kept = [record for record in records if id(record) not in left_out]
    return kept, Counter(left_out[id(record)] for record in records if id(record) in left_out)


def fits_store(records: Sequence[Record], store: RecordStore) -> tuple[list[Record], int]:
    """The records without those whose trial the store has timed more than 100 times apart, and how many these are."""
    ids: set[str] = set()
    seen: dict[str, tuple[float, float]] = {}  # trial to its fastest and slowest
    for fingerprint in sorted({record.fingerprint for record in records}):
        for old in store.records(fingerprint=fingerprint):
            ids.add(old.id)
            if isinstance(old.outcome, Timed):
                us, key = old.outcome.median_us, old.trial.key()
                low, high = seen.get(key, (us, us))
                seen[key] = (min(low, us), max(high, us))
    kept = [record for record in records if _agrees(record, seen) or record.id in ids]  # what is stored already stays
    return kept, len(records) - len(kept)


def _agrees(record: Record, seen: dict[str, tuple[float, float]]) -> bool:
    if not isinstance(record.outcome, Timed) or not seen:
        return True
    us = record.outcome.median_us
    low, high = seen.get(record.trial.key(), (us, us))
    return high / _SAME <= us <= low * _SAME


def _grouped(records: Iterable[Record], key: Callable[[Record], str]) -> Iterable[list[Record]]:
    """The records of each key, fastest first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return [sorted(group, key=_us) for group in groups.values()]


def _widest(ordered: Sequence[Record]) -> _Gap | None:
    """The widest empty stretch, if the times reach so far that they may be of two units."""
    times = [_us(record) for record in ordered]
    if times[-1] < times[0] * _RANGE:
        return None
    at = max(range(1, len(times)), key=lambda i: times[i] / times[i - 1])
    empty = _FAR_GAP if times[-1] > times[0] * _FAR else _GAP
    return _Gap(ordered[:at], ordered[at:]) if times[at] > times[at - 1] * empty else None


def _us(record: Record) -> float:
    return record.outcome.median_us if isinstance(record.outcome, Timed) else 0.0


def _ms(record: Record) -> str:
    return f"{_us(record) / 1000:.3g}"
