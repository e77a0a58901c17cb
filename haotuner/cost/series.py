"""Series of times: throttled clocks, from which on everything takes longer by a step, and sessions of two devices.

A clock that falls half-way through a tuning run makes late configurations slow, and a model learns them as bad. Two
witnesses show it. Readings of the clock beside the times are one. Where there are none, what was timed more than once is:
the same configuration, a reference kernel, or programs that are equal whatever their names. Times of one program differ by
a step between the two sides of a moment, for all programs by the same factor.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike, NDArray

from haotuner.spec.record import Record, Timed, Trial

# A step of the clock that matters: less changes no order of kernels that are a few percent apart.
LEAST_FACTOR = 1.1
CERTAIN = 6.0  # standard errors of the step: of 30 moments that are tried one is off by 3 by chance
FEWEST_PROGRAMS = 5  # timed on both sides of the moment; fewer may be slow for reasons of their own
FEWEST_ROWS = 4  # of either side
MOMENTS = 64  # tried, evenly over the rows
_ODD = 1.0  # log units from the other times of its program, beyond which a time says nothing more
_HEALTHY = 90  # percentile of the readings that is taken for the clock of a device that is not slowed
COMMON = 8  # trials that two sessions timed, below which an order says nothing
# Two rounds on nine CPUs were within 0.3 % of each other in the middle, with rank correlations from 0.9986 up. A host that
# others use slows for a session by twice and more; a GPU that is alone does not, and neighbours in a row of products differ
# by 1.5 and more.
OTHER_PACE, OTHER_PACE_ALONE, OTHER_ORDER = 2.5, 1.4, 0.5
_READINGS = ("clock_mhz", "core_freq")  # facts of our records; columns of Kernel Tuner's observer


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A step in a series: ``first`` of the slow rows in the order of time, and by what factor they are slower."""

    first: int
    rows: int
    factor: float
    programs: int  # timed on both sides

    def words(self) -> str:
        """Sentence on the step, to follow what was measured where."""
        return (
            f"from row {self.first + 1} of {self.rows} on, {self.programs} programs take {self.factor:.2f} times as long as "
            "before: was the clock throttled half-way?"
        )


def step_of(times_us: ArrayLike, programs: ArrayLike) -> Step | None:
    """The step of a series in the order of time; None where there is none that is certain.

    The model is log(time) = level of the program + step behind the moment; the moment is that which explains most.

    Args:
        times_us: of shape ``(rows,)``.
        programs: a number for the program of each row; equal ones ought to take equally long.
    """
    logs = np.log(np.asarray(times_us, np.float64))
    rows = len(logs)
    if rows < 2 * FEWEST_ROWS:
        return None
    _, program, counts = np.unique(np.asarray(programs), return_inverse=True, return_counts=True)
    if (counts > 1).sum() < FEWEST_PROGRAMS:
        return None
    means = np.bincount(program, logs) / counts
    errors = np.clip(logs - means[program], -_ODD, _ODD)
    best: tuple[float, Step] | None = None
    moments = np.unique(np.linspace(FEWEST_ROWS, rows - FEWEST_ROWS, MOMENTS).astype(np.int64))
    for first in moments.tolist():
        late = (np.arange(rows) >= first).astype(np.float64)
        share = np.bincount(program, late) / counts
        both = (share > 0) & (share < 1)
        if both.sum() < FEWEST_PROGRAMS:
            continue
        inside = late - share[program]
        mass = float(inside @ inside)
        step = float(inside @ errors) / mass
        left = (errors - step * inside)[both[program]]
        freedom = max(len(left) - int(both.sum()) - 1, 1)
        error = max(float(np.sqrt(left @ left / freedom / mass)), 1e-9)
        explained = step * step * mass
        if step >= np.log(LEAST_FACTOR) and step >= CERTAIN * error and (best is None or explained > best[0]):
            best = explained, Step(first=first, rows=rows, factor=float(np.exp(step)), programs=int(both.sum()))
    return None if best is None else best[1]


def slow_readings(facts: Sequence[Mapping[str, float | str]]) -> tuple[NDArray[np.bool_], str]:
    """Rows whose clock was read too low, and words on it; none where no clock was read.

    A kernel that draws all the power that a device may have runs at a lower clock for good, and the best ones do. So a row
    that says so (``throttled: power cap``) is believed. One that says that nothing slowed it is too low a tenth below the
    series. Where no row says anything, only a clock that fell at one moment and stayed low is taken for throttling.
    """
    clocks = np.array([next((_number(row[name]) for name in _READINGS if name in row), np.nan) for row in facts], np.float64)
    reasons = np.array([str(row.get("throttled", "")) for row in facts])
    known = np.isfinite(clocks) & (clocks > 0) & ((reasons == "") | (reasons == "no"))
    slow = np.zeros(len(clocks), np.bool_)
    if known.sum() < 2 * FEWEST_ROWS:
        return slow, ""
    if (reasons[known] == "no").all():
        healthy = float(np.percentile(clocks[known], _HEALTHY))
        slow[known] = clocks[known] * LEAST_FACTOR < healthy
    else:
        healthy, late = _fallen(clocks[known])
        slow[np.flatnonzero(known)[late]] = True
    if not slow.any():
        return slow, ""
    return slow, f"the clock was throttled: as low as {clocks[slow].min():.0f} MHz, before up to {healthy:.0f}"


def _fallen(clocks: NDArray[np.float64]) -> tuple[float, NDArray[np.int64]]:
    """Clock before it fell, and the rows behind that moment that are a tenth below it; none where it did not."""
    rows = len(clocks)
    moments = np.unique(np.linspace(FEWEST_ROWS, rows - FEWEST_ROWS, MOMENTS).astype(np.int64)).tolist()
    best, moment = LEAST_FACTOR, 0
    for first in moments:
        before, after = clocks[:first], clocks[first:]
        apart = np.percentile(after, _HEALTHY) < np.percentile(before, 100 - _HEALTHY)
        if apart and (fall := float(np.median(before) / np.median(after))) > best:
            best, moment = fall, first
    if not moment:
        return 0.0, np.array([], np.int64)
    before, after = clocks[:moment], clocks[moment:]
    healthy = float(np.median(before))
    return healthy, moment + np.flatnonzero(after * LEAST_FACTOR < healthy)


def without_throttled(records: Sequence[Record]) -> tuple[list[Record], Counter[str]]:
    """Records of one file without those of a throttled clock, and how many were left out for what reason.

    Witnesses are readings of the clock, and configurations that were timed more than once; a file's order is that of time.
    """
    slow, why = slow_readings([record.facts for record in records])
    left_out = Counter({why: int(slow.sum())} if why else {})
    sound = [record for record, item in zip(records, slow.tolist(), strict=True) if not item]
    timed = [record for record in sound if isinstance(record.outcome, Timed)]
    programs = {key: at for at, key in enumerate({replace(record.trial, repeat=0).key(): 0 for record in timed})}
    step = step_of(
        [record.outcome.median_us for record in timed if isinstance(record.outcome, Timed)],
        [programs[replace(record.trial, repeat=0).key()] for record in timed],
    )
    if step is None:
        return sound, left_out
    late = {id(record) for record in timed[step.first :]}
    left_out[step.words()] += len(late)
    return [record for record in sound if id(record) not in late], left_out


def contradiction(sessions: Mapping[str, Mapping[Trial, Sequence[float]]], *, alone: bool) -> str | None:
    """Reason why two sessions are not of one device, in words; None where there is none.

    ``alone``: nobody else uses the device while it is timed, as on GPUs.
    """
    limit = OTHER_PACE_ALONE if alone else OTHER_PACE
    for (name, times), (other, times_there) in combinations(sessions.items(), 2):
        common = [trial for trial in times if trial in times_there]
        if len(common) < COMMON:
            continue
        here, there = (np.log([statistics.median(t[trial]) for trial in common]) for t in (times, times_there))
        factor = float(np.exp(abs(np.median(here - there))))
        if factor > limit:
            return f"two devices under one name? {name} and {other} timed {len(common)} trials {factor:.1f} times apart"
        if (order := rank_correlation(here, there)) < OTHER_ORDER:
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


def step_of_programs(series: Sequence[Record], trials: Sequence[Trial], keys: NDArray[np.uint64]) -> Step | None:
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


def rank_correlation(values: ArrayLike, others: ArrayLike) -> float:
    """Spearman's rank correlation; 1 where either is constant."""
    if np.ptp(values) == 0 or np.ptp(others) == 0:
        return 1.0
    ranks, other_ranks = (pd.Series(each).rank().to_numpy() for each in (values, others))
    return float(np.corrcoef(ranks, other_ranks)[0, 1])


def _number(value: float | str) -> float:
    try:
        return float(value)
    except ValueError:
        return float("nan")
