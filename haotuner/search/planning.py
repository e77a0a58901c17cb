"""Plan table for one thread count, from what was timed.

The table holds a composition for every m up to its limit. Costs come from curves measured with that thread count and
each way to share the work; at sampled shapes the best few compositions were timed, which corrects the model between them
and overrules it where it was wrong by more than noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import choose
from haotuner.plan.table import RowTable
from haotuner.search.plan_candidates import ALONE_US, EVERY_UP_TO, Times, Timings, foretold, worth_sharing
from haotuner.spec.composition import SERIAL, Composition, Planned

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
