"""Plan table for one thread count, from what was timed: curves, ways to share, compositions that contend.

The table holds a composition for every m up to its limit. Costs come from curves measured with that thread count and
each way to share the work; at sampled shapes the best few compositions were timed, which corrects the model between them
and overrules it where it was wrong by more than noise.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.backend import Backend
from haotuner.backends.index import backend_for
from haotuner.measure.measurer import GoesOn, Measurer
from haotuner.plan.compose import Curve, alternatives, choose
from haotuner.plan.table import RowTable
from haotuner.search.failures import timed_out
from haotuner.search.probes import DENSE_ROWS, probe
from haotuner.search.task import Task
from haotuner.spec.composition import SERIAL, Composition, Planned
from haotuner.spec.family import Family
from haotuner.spec.record import Timed, Trial
from haotuner.spec.shape import Shape

TABLE_LIMIT = 8192  # rows with an entry of their own (10 bytes each); beyond, the bulk region repeats
EVERY_UP_TO = 64  # every smaller m of the traffic is timed: there a tile more or less is the whole difference
SAMPLES = 32  # larger shapes at which compositions are timed for each thread count
CONTENDERS = 4  # compositions that one thread may have, and those of several threads for each way to share, the best first
SHARED = 6  # of those of several threads, of all ways, that are timed at a shape...
FEWER, FEWER_BEYOND = 3, 256  # ...and at shapes with more rows, where they take most of the time and differ least
# A longer call is always shared when a plan may share: waking a thread costs under 10 us, so only another process on the
# other cores can make one thread look faster, and its load passes while the plan stays. (At 200, a plan of 78 us calls was
# kept on one thread: two took 42; at 40, one of 39 us calls, n=k=1024 m=1 hot: m=3 took 25 on two.)
ALONE_US = 20.0
# Compositions this close to the best of a small shape are timed once more, in another process: the same code differs
# by up to a third there (n=1000 k=600 m=7: a plan's kernel, the best in its process, was 33 % slower in nine others).
CLOSE = 1.15
REPEATS = 2  # the second and third time

Times = Mapping[int, Mapping[Composition, float]]  # extent -> composition -> us


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """Times of one op with one thread count."""

    task: Task
    threads: int
    rows: Mapping[str, int]  # ways to share the work -> rows up to which each is one
    curves: Mapping[str, Sequence[Curve]]  # by the same ways
    limit: int  # rows of the table
    measured: Times


def curves(lab: Measurer, task: Task, family: Family, chosen: Sequence[Curve], goes_on: GoesOn) -> list[Timings]:
    """Measure dense curves of the kept kernels, and say what they are for every thread count; compositions come later."""
    if task.threads and goes_on(None):
        lab.gather([curve.kernel for curve in chosen])
    axis = task.op.dynamic[0]
    limit = min(max(shape[axis] for shape in task.traffic.shapes()), TABLE_LIMIT)
    alone = [_dense(lab, task, family, curve, limit, goes_on) for curve in chosen] if task.threads else []
    backend = backend_for(lab.device)
    return [_timings(backend, task, count, alone, limit) for count in task.threads]


def _timings(backend: Backend, task: Task, threads: int, alone: Sequence[Curve], limit: int) -> Timings:
    """Of one thread count, before any composition was timed."""
    ways = backend.ways(task.op, threads, one_order=task.one_order)
    rows = {way: backend.rows_of(way, task.op, threads, limit) for way in ways}
    rows = {way: most for way, most in rows.items() if most > 0}
    return Timings(
        task=task,
        threads=threads,
        rows=rows,
        curves={way: [backend.shared(curve, way, task.op, threads) for curve in alone] for way in rows},
        limit=limit,
        measured={},
    )


def time_candidates(
    lab: Measurer, timings: Sequence[Timings], goes_on: GoesOn, given_up: Callable[[], bool] = lambda: False
) -> list[Timings]:
    """Time compositions at sampled shapes where they were not timed yet, in an order that may stop anywhere.

    Returns the timings with these times. Shapes at which not all of them could be timed are left out: the best of a few is
    not the best. ``given_up``: whether to end at once, without what an earlier run recorded.
    """
    measured = [dict(t.measured) for t in timings]
    for m in _spread(_samples(timings[0].task, min(t.limit for t in timings)) if timings else []):
        for t, times_us in zip(timings, measured, strict=True):
            if m in times_us or given_up():
                continue
            seen = _time_candidates(lab, t, m, goes_on)
            if seen:
                times_us[m] = seen
    return [replace(t, measured=dict(sorted(times_us.items()))) for t, times_us in zip(timings, measured, strict=True)]


def again(lab: Measurer, timings: Sequence[Timings], goes_on: GoesOn) -> list[Timings]:
    """Time the compositions of small shapes that are close to the best there in two more processes.

    Returns the timings with geometric means. What has fallen behind after one process is not timed in the next (a race, as
    Maron & Moore, NIPS 1993). One new process times what all thread counts ask for.
    """
    times = [
        {m: {composition: [us] for composition, us in times_us.items()} for m, times_us in t.measured.items()}
        for t in timings
    ]
    for repeat in range(1, REPEATS + 1):
        trials = {
            (index, m, composition): _trial(t, composition, m, repeat)
            for index, t in enumerate(timings)
            for m, times_us in times[index].items()
            for composition in _close({composition: _mean(us) for composition, us in times_us.items()}, t.threads)
            if m <= EVERY_UP_TO
        }
        if any(lab.known(trial) is None for trial in trials.values()) and goes_on(None):
            lab.renew()
        for (position, m, composition), record in zip(trials, lab.measure(trials.values(), goes_on), strict=False):
            if isinstance(record.outcome, Timed):
                times[position][m][composition].append(record.outcome.median_us)
    means = [
        {m: {composition: _mean(us) for composition, us in times_us.items()} for m, times_us in by.items()} for by in times
    ]
    return [replace(t, measured=times_us) for t, times_us in zip(timings, means, strict=True)]


def _dense(lab: Measurer, task: Task, family: Family, curve: Curve, limit: int, goes_on: GoesOn) -> Curve:
    """A kernel's curve on one thread through more points."""
    # A flat tile in bulk is never a plan, and costs the most time to look at.
    rows = tuple(r for r in DENSE_ROWS if curve.rows >= 4 or r <= 32 * curve.rows)
    probes = probe(curve.micro_kernel, task.op, family, lab.device, limit, cache=task.cache, rows=rows)
    points = dict(curve.lead_us)
    records = lab.measure([t for _, t in probes.lead], goes_on)
    for (tiles, _), record in zip(probes.lead, records, strict=False):
        if isinstance(record.outcome, Timed):
            points[tiles] = record.outcome.median_us
    return Curve.of(curve.kernel, curve.rows, points, curve.follow_us)


def _samples(task: Task, limit: int) -> list[int]:
    """Extents of the traffic at which compositions are timed: every small one, and some of the others."""
    axis = task.op.dynamic[0]
    rows = sorted({min(shape[axis], limit) for shape in task.traffic.shapes()})
    small = [m for m in rows if m <= EVERY_UP_TO]
    large = rows[len(small) :]
    picks = np.unique(np.round(np.linspace(0, len(large) - 1, min(SAMPLES, len(large)))).astype(int))
    return small + [large[i] for i in picks.tolist()]


def _spread(shapes: Sequence[int]) -> list[int]:
    """Every shape once; the first so many of them lie evenly in between the others (van der Corput, 1935)."""
    bits = max(len(shapes) - 1, 0).bit_length()
    order = sorted(range(len(shapes)), key=lambda at: f"{at:0{bits}b}"[::-1])
    return [shapes[at] for at in order]


def foretold(curves: Mapping[str, Sequence[Curve]], m: int) -> dict[Composition, float]:
    """Times of each way's best compositions, in us, by the curves."""
    return {c.composition: c.us for way, curve in curves.items() for c in alternatives(curve, m, CONTENDERS, way)}


def _compositions_to_time(timings: Timings, m: int) -> list[Composition]:
    """The compositions to time: the best of every way to share, then the next best of all.

    Those of one thread beside them only where a call may be one thread's at all, which is told from twice the limit on.
    """
    predicted_us = foretold({way: curve for way, curve in timings.curves.items() if m <= timings.rows[way]}, m)
    ranked = sorted(predicted_us, key=lambda item: (predicted_us[item], item))
    alone = [composition for composition in ranked if composition.share == SERIAL]
    together = [composition for composition in ranked if composition.share != SERIAL]
    if not together:
        return alone[: CONTENDERS if m <= FEWER_BEYOND else FEWER]
    if alone and predicted_us[alone[0]] > 2 * ALONE_US:
        alone = []
    first = {composition.share: composition for composition in reversed(together)}.values()
    most = max(SHARED if m <= FEWER_BEYOND else FEWER, len(first))
    return alone + list(dict.fromkeys([*first, *together]))[:most]


def _time_candidates(lab: Measurer, timings: Timings, m: int, goes_on: GoesOn) -> dict[Composition, float]:
    """Times of the best few compositions; none if time ran out before the last, or for one of them."""
    compositions = _compositions_to_time(timings, m)
    records = lab.measure([_trial(timings, composition, m) for composition in compositions], goes_on)
    if len(records) < len(compositions) or any(map(timed_out, records)):
        return {}
    return {
        composition: record.outcome.median_us
        for composition, record in zip(compositions, records, strict=True)
        if isinstance(record.outcome, Timed)
    }


def _trial(timings: Timings, composition: Composition, m: int, repeat: int = 0) -> Trial:
    task = timings.task
    shape = Shape.of({task.op.dynamic[0]: m})
    return Trial.of(task.op, composition, shape, threads=timings.threads, cache=task.cache, repeat=repeat)


def _close(times: Mapping[Composition, float], threads: int) -> list[Composition]:
    """Compositions within ``CLOSE`` of the best of those that may be chosen."""
    near = times if threads == 1 else worth_sharing(times)
    return [composition for composition, us in near.items() if us <= min(near.values()) * CLOSE]


def worth_sharing(times: Mapping[Composition, float]) -> dict[Composition, float]:
    """Without what one thread alone takes longer than ``ALONE_US`` for, unless nothing else was timed."""
    shared = {composition: us for composition, us in times.items() if us <= ALONE_US or composition.share != SERIAL}
    return shared or dict(times)


def _mean(us: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(us))))


# Weight of a composition's own time beside the sum of its curves, which rest on many measurements: up to EVERY_UP_TO rows
# on one thread (several are timed in more processes there), and beyond. What took longer than SLOWER times the best is out
# whatever its curves say. One thread, loss to the best contender in three other processes, seven ops in a noisy hour, up to
# 64 rows and beyond: by the time alone 2.0 and 1.3 %, by the curves alone 1.9 and 1.5, so 1.6 and 1.25; SLOWER (three of the
# ops, to 16 rows) made 0.7 of 1.7 (time: 1.1). Two threads beyond 64 rows, four ops: 2.8, 2.3, and 2.4 so.
TIME_SHARE = (0.25, 0.5)
SLOWER = 1.1
SMOOTH = 2  # shapes to either side: the median of five times errs half as much as one
TIE = 0.015  # measured differences under it are noise: the same work timed twice in a row differs by 1 % in the mean


def decide(timings: Timings) -> RowTable:
    """The best of what was timed and of what the curves say, for every m of the table."""
    threads, curves, measured = timings.threads, timings.curves, timings.measured
    ways, every = list(curves), list(range(1, timings.limit + 1))
    chosen = {way: choose(curve, every, way) for way, curve in curves.items()}
    predicted_us = {m: foretold(curves, m) for m in measured}
    corrections = _corrections(ways, predicted_us, measured, timings.limit)
    corrected = {way: np.array([c.us for c in chosen[way]]) * corrections[way] for way in ways}
    corrected = {way: np.where(np.array(every) <= timings.rows[way], us, np.inf) for way, us in corrected.items()}
    if threads > 1:
        corrected = _shared_first(corrected)
        measured = {m: worth_sharing(times) for m, times in measured.items()}
    judged = {
        m: _with_curves(times, predicted_us[m], m) if threads == 1 or m > EVERY_UP_TO else times
        for m, times in measured.items()
    }
    entries: list[Planned] = []
    for m in every:
        way = min(ways, key=lambda w: float(corrected[w][m - 1]))
        entry = Planned(chosen[way][m - 1].composition, float(corrected[way][m - 1]))
        entries.append(_overrule(entry, judged.get(m, {})))
    lost = _regrets(entries, judged)
    return RowTable(
        threads=threads,
        axis=timings.task.op.dynamic[0],
        entries=tuple(entries),
        curves=curves,
        measured=measured,
        regret_mean=float(np.mean(lost)) if lost else 0.0,
        regret_max=float(np.max(lost)) if lost else 0.0,
    )


def _with_curves(
    times: Mapping[Composition, float], predicted_us: Mapping[Composition, float], m: int
) -> dict[Composition, float]:
    """Times of contenders, each drawn towards what its curves say, at the level of the times; without those far behind."""
    near = {
        composition: us
        for composition, us in times.items()
        if us <= min(times.values()) * SLOWER and composition in predicted_us
    }
    logs = {composition: np.log(us / predicted_us[composition]) for composition, us in near.items()}
    level = float(np.median(list(logs.values()))) if logs else 0.0
    share = TIME_SHARE[m > EVERY_UP_TO]
    return {
        composition: predicted_us[composition] * float(np.exp(level + share * (log - level)))
        for composition, log in logs.items()
    }


def _corrections(
    ways: Sequence[str], predicted_us: Mapping[int, Mapping[Composition, float]], measured: Times, limit: int
) -> dict[str, NDArray[np.float64]]:
    """Times over what the curves say, by way to share: 1 where nothing was timed.

    Of all ways that share at once at the sampled shapes, interpolated in log m: memory is as short for each of them. What
    one way takes more or less than the others is smoothed, since the noise of single times must not choose between them.
    """
    logs = {
        way: {
            m: float(np.median(logs_))
            for m, times in sorted(measured.items())
            if (
                logs_ := [
                    np.log(us / predicted_us[m][x]) for x, us in times.items() if x.share == way and x in predicted_us[m]
                ]
            )
        }
        for way in ways
    }
    corrections = {}
    for way in ways:
        alike = [logs[w] for w in ways if (w == SERIAL) == (way == SERIAL)]
        known = {m: float(np.median([of[m] for of in alike if m in of])) for m in sorted({m for of in alike for m in of})}
        own = [log - known[m] for m, log in logs[way].items()]
        smooth = [float(np.median(own[max(0, at - SMOOTH) : at + SMOOTH + 1])) for at in range(len(own))]
        corrections[way] = np.exp(
            _between(list(known), list(known.values()), limit) + _between(list(logs[way]), smooth, limit)
        )
    return corrections


def _between(rows: Sequence[int], values: Sequence[float], limit: int) -> NDArray[np.float64]:
    """Values at every m up to the limit, interpolated in log m; 0 where none is known."""
    if not rows:
        return np.zeros(limit)
    return np.asarray(np.interp(np.log(np.arange(1, limit + 1)), np.log(np.asarray(rows, np.float64)), values), np.float64)


def _overrule(entry: Planned, measured: Mapping[Composition, float]) -> Planned:
    """Entry by what was measured; among those tied with the best a fixed rule decides, so that noise does not choose.

    The rule: the fewest row tiles, because each passes over the weight again, then the fewest regions, then the time.
    """
    if not measured:
        return entry
    limit = min(measured.values()) * (1 + TIE)
    tied = [Planned(composition, us) for composition, us in measured.items() if us <= limit]
    return min(tied, key=lambda p: (p.composition.tiles, len(p.composition.parts), p.us, p.composition.text))


def _shared_first(us: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """Times of what each way to share would choose, by m: infinite where one thread takes long and another way shares."""
    left = {way: np.where(us[way] > ALONE_US, np.inf, us[way]) if way == SERIAL else us[way] for way in us}
    nobody = np.isinf(np.min(list(left.values()), axis=0))
    return {way: np.where(nobody, us[way], left[way]) for way in us}


def _regrets(entries: Sequence[Planned], measured: Mapping[int, Mapping[Composition, float]]) -> list[float]:
    """Fraction that each entry loses against the best that was timed, where it was timed itself."""
    result = []
    for m, times in measured.items():
        own = times.get(entries[m - 1].composition)
        if own is not None:
            result.append(own / min(times.values()) - 1)
    return result
