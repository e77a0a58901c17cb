"""Times of one file that cannot all be in one unit, or that contradict what is known of the same trial.

No line of a file says its unit. What a row says of itself (``rows.py``) is not always there, so the times of one problem on
one device are held against each other.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

from haotuner.errors import UsageError
from haotuner.records.store import RecordStore
from haotuner.spec.record import Record, Timed
from haotuner.spec.units import SAME, gap_of


def one_unit(records: Sequence[Record]) -> tuple[list[Record], Counter[str]]:
    """The records without those that another one contradicts, and how many were left out for what reason.

    Raises:
        UsageError: the times of a problem fall into two groups, neither of which is an accident.
    """
    timed = [record for record in records if isinstance(record.outcome, Timed)]
    left_out: dict[int, str] = {}  # ``id()`` of a record, since content hashes of all rows take longer than the rest
    for same in _grouped(timed, lambda record: record.trial.key()):
        if _us(same[-1]) > _us(same[0]) * SAME:
            reason = f"the same configuration was measured more than {SAME:g} times apart: mixed units?"
            left_out |= {id(record): reason for record in same}
    for group in _grouped((r for r in timed if id(r) not in left_out), lambda record: record.trial.op.name):
        gap = gap_of([_us(record) for record in group])
        if gap is None:
            continue
        fast, slow = group[: gap.fast], group[gap.fast :]
        if not gap.accident:
            raise UsageError(
                f"mixed units? {group[0].trial.op.name} on {group[0].device_id} has {_summary(fast)}, {_summary(slow)}, and "
                f"nothing for a factor of {gap.factor:.0f} between; times must be milliseconds: "
                "convert the wrong ones, or import the right ones from a file of their own; nothing was stored"
            )
        reason = f"{gap.factor:.0f} times away from every other time: mixed units?"
        left_out |= {id(record): reason for record in min(fast, slow, key=len)}
    sound = [record for record in records if id(record) not in left_out]
    return sound, Counter(left_out[id(record)] for record in records if id(record) in left_out)


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
    sound = [record for record in records if _agrees(record, seen) or record.id in ids]  # what is stored already stays
    return sound, len(records) - len(sound)


def _agrees(record: Record, seen: dict[str, tuple[float, float]]) -> bool:
    if not isinstance(record.outcome, Timed) or not seen:
        return True
    us = record.outcome.median_us
    low, high = seen.get(record.trial.key(), (us, us))
    return high / SAME <= us <= low * SAME


def _grouped(records: Iterable[Record], key: Callable[[Record], str]) -> Iterable[list[Record]]:
    """The records of each key, fastest first."""
    groups: dict[str, list[Record]] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return [sorted(group, key=_us) for group in groups.values()]


def _summary(group: Sequence[Record]) -> str:
    return f"{len(group)} times of {_ms(group[0])} to {_ms(group[-1])} ms"


def _us(record: Record) -> float:
    return record.outcome.median_us if isinstance(record.outcome, Timed) else 0.0


def _ms(record: Record) -> str:
    return f"{_us(record) / 1000:.3g}"
