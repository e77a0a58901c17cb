"""Agreement of measurements: sessions of one device, a series with itself, and devices of one family with each other."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations

import numpy as np
import pandas as pd

from haotuner.cost.throttling import Step, step_of
from haotuner.spec.record import Record, Timed, Trial
from haotuner.transfer.device_table import DeviceTable, Keys, program_keys

COMMON = 8  # trials that two sessions timed, below which an order says nothing
# Sessions of one host under other load are up to 1.9 times apart in the middle (records of Zen 4, alone and beside others);
# their orders of the same trials, over all shapes, correlate by 0.97 and more.
OTHER_PACE, OTHER_ORDER = 2.5, 0.5
PROGRAMS = 30  # that two devices timed, below which their orders are not held against each other
OPPOSITE = -0.2  # of programs on two devices of one kind; the least of public pairs is 0.1 (convolutions)


def contradiction(sessions: Mapping[str, Mapping[Trial, Sequence[float]]]) -> str | None:
    """Reason why two sessions are not of one device, in words; None where there is none."""
    for (name, times), (other, times_there) in combinations(sessions.items(), 2):
        common = [trial for trial in times if trial in times_there]
        if len(common) < COMMON:
            continue
        here, there = (np.log([statistics.median(t[trial]) for trial in common]) for t in (times, times_there))
        factor = float(np.exp(abs(np.median(here - there))))
        if factor > OTHER_PACE:
            return f"two devices under one name? {name} and {other} timed {len(common)} trials {factor:.1f} times apart"
        if (order := _order(here, there)) < OTHER_ORDER:
            return (
                f"two devices under one name? {name} and {other} timed {len(common)} trials in other orders "
                f"(rank correlation {order:.2f})"
            )
    return None


def in_time(group: Sequence[Record]) -> list[Record]:
    """Timed records in the order in which they were measured; none where that is not known.

    Without times of day a file's order counts, as tools append; one time of day for all says that there is no order.
    """
    timed = [record for record in group if isinstance(record.outcome, Timed)]
    moments = {record.when for record in timed}
    return [] if len(moments) == 1 and 0.0 not in moments else sorted(timed, key=lambda record: record.when)


def step_of_programs(series: Sequence[Record], trials: Sequence[Trial], keys: Keys) -> Step | None:
    """The step of a clock that was throttled, seen in programs that were timed more than once.

    ``series`` in the order of time, ``keys`` of shape ``(trials,)``: programs of one key and shape ought to take equally
    long.
    """
    program: dict[Trial, int] = {}
    codes: dict[tuple[object, ...], int] = {}
    for trial, key in zip(trials, keys.tolist(), strict=True):
        task = (trial.op.name, str(trial.shape), trial.threads, trial.weights, trial.split, key)
        program[trial] = codes.setdefault(task, len(codes))
    rows = [record for record in series if record.trial in program]
    if len(rows) != len(series):  # rows of which no feature is known have no program
        return None
    times = [record.outcome.median_us for record in rows if isinstance(record.outcome, Timed)]
    return step_of(times, [program[record.trial] for record in rows])


def opposite_orders(tables: Sequence[DeviceTable]) -> Iterator[str]:
    """Words on each pair of devices that rank the programs of one family in opposite orders."""
    for table, other in combinations(sorted(tables, key=lambda item: item.device.id), 2):
        if table.family != other.family or table.device.id == other.device.id:
            continue
        keys, keys_there = program_keys(table.frame), program_keys(other.frame)
        common, at, there = np.intersect1d(keys, keys_there, return_indices=True)
        if len(common) < PROGRAMS:
            continue
        if (order := _order(table.labels[at], other.labels[there])) < OPPOSITE:
            yield (
                f"{table.device.id} and {other.device.id} contradict each other: their orders of {len(common)} programs of "
                f"{table.family} correlate by {order:.2f}; is one of them another device, or in another unit?"
            )


def _order(values: np.ndarray, others: np.ndarray) -> float:
    """Rank correlation; 1 where either is constant."""
    if np.ptp(values) == 0 or np.ptp(others) == 0:
        return 1.0
    ranks, other_ranks = (pd.Series(each).rank().to_numpy() for each in (values, others))
    return float(np.corrcoef(ranks, other_ranks)[0, 1])
