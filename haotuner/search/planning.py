"""From what was timed to a plan table for one thread count.

The table holds a composition for every m up to its limit. Costs come from curves measured with that thread count and
each way to share the work; at sampled shapes the best few compositions were timed, which corrects the model between them
and overrules it where it was wrong by more than noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from haotuner.plan.compose import Choice, choose
from haotuner.plan.curves import Curve
from haotuner.search.contenders import ALONE_US, EVERY_UP_TO, Times, Timings, foretold, worth_sharing
from haotuner.words.composition import Covered, Plan, Region
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.shape import Shape

# Weight of a composition's own time beside the sum of its curves, which rest on many measurements: up to EVERY_UP_TO rows
# on one thread (several are timed in more processes there), and beyond. What took longer than SLOWER times the best is out
# whatever its curves say. One thread, loss to the best contender in three other processes, seven ops in a noisy hour, up to
# 64 rows and beyond: by the time alone 2.0 and 1.3 %, by the curves alone 1.9 and 1.5, so 1.6 and 1.25; SLOWER (three of the
# ops, to 16 rows) made 0.7 of 1.7 (time: 1.1). Two threads beyond 64 rows, four ops: 2.8, 2.3, and 2.4 so.
TIME_SHARE = (0.25, 0.5)
SLOWER = 1.1
SMOOTH = 2  # shapes to either side: the median of five times errs half as much as one
TIE = 0.015  # measured differences under it are noise: the same work timed twice in a row differs by 1 % in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Plan of one op and thread count: ``entries[m-1]`` is (composition, split)."""

    plan: Plan
    threads: int
    entries: tuple[tuple[Choice, str], ...]
    curves: Mapping[str, Sequence[Curve]]  # split -> kept kernels
    measured: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # m -> "composition@split" -> us


def decide(timings: Timings) -> Table:
    """The best of what was timed and of what the curves say, for every m of the table."""
    op, threads, curves, measured = timings.op, timings.threads, timings.curves, timings.measured
    splits, every = list(curves), list(range(1, timings.limit + 1))
    chosen = {split: choose(found, every) for split, found in curves.items()}
    said = {m: foretold(curves, m) for m in measured}
    corrections = _corrections(splits, said, measured, timings.limit)
    corrected = {s: np.array([c.us for c in chosen[s]]) * corrections[s] for s in splits}
    corrected = {s: np.where(np.array(every) <= timings.rows[s], us, np.inf) for s, us in corrected.items()}
    if threads > 1:
        corrected = _shared_first(corrected)
        measured = {m: worth_sharing(times) for m, times in measured.items()}
    judged = {
        m: _with_curves(times, said[m], m) if threads == 1 or m > EVERY_UP_TO else times for m, times in measured.items()
    }
    entries: list[tuple[Choice, str]] = []
    for m in every:
        split = min(splits, key=lambda s: float(corrected[s][m - 1]))
        entry = (replace(chosen[split][m - 1], us=float(corrected[split][m - 1])), split)
        entries.append(_overrule(entry, judged.get(m, {})))
    plan = _plan(op, threads, timings.kept, entries, judged)
    return Table(plan=plan, threads=threads, entries=tuple(entries), curves=curves, measured=measured)


def _with_curves(times: Mapping[str, float], said: Mapping[str, float], m: int) -> dict[str, float]:
    """Times of contenders, each drawn towards what its curves say, at the level of the times; without those far behind."""
    near = {name: us for name, us in times.items() if us <= min(times.values()) * SLOWER and name in said}
    logs = {name: np.log(us / said[name]) for name, us in near.items()}
    level = float(np.median(list(logs.values()))) if logs else 0.0
    share = TIME_SHARE[m > EVERY_UP_TO]
    return {name: said[name] * float(np.exp(level + share * (log - level))) for name, log in logs.items()}


def _corrections(
    splits: Sequence[str], said: Mapping[int, Mapping[str, float]], measured: Times, limit: int
) -> dict[str, NDArray[np.float64]]:
    """Times over what the curves say, by way to share: 1 where nothing was timed.

    Of all ways that share at once at the sampled shapes, interpolated in log m: memory is as short for each of them. What
    one way takes more or less than the others is smoothed, since the noise of single times must not choose between them.
    """
    logs = {
        split: {
            m: float(np.median(found))
            for m, times in sorted(measured.items())
            if (found := [np.log(us / said[m][x]) for x, us in times.items() if x.endswith(f"@{split}") and x in said[m]])
        }
        for split in splits
    }
    corrections = {}
    for split in splits:
        alike = [logs[s] for s in splits if (s == "serial") == (split == "serial")]
        known = {m: float(np.median([of[m] for of in alike if m in of])) for m in sorted({m for of in alike for m in of})}
        own = [log - known[m] for m, log in logs[split].items()]
        smooth = [float(np.median(own[max(0, at - SMOOTH) : at + SMOOTH + 1])) for at in range(len(own))]
        corrections[split] = np.exp(
            _between(list(known), list(known.values()), limit) + _between(list(logs[split]), smooth, limit)
        )
    return corrections


def _between(rows: Sequence[int], values: Sequence[float], limit: int) -> NDArray[np.float64]:
    """Values at every m up to the limit, interpolated in log m; 0 where none is known."""
    if not rows:
        return np.zeros(limit)
    return np.asarray(np.interp(np.log(np.arange(1, limit + 1)), np.log(np.asarray(rows, np.float64)), values), np.float64)


def _overrule(entry: tuple[Choice, str], measured: Mapping[str, float]) -> tuple[Choice, str]:
    """What was measured decides; among those tied with the best a fixed rule does, so that noise does not choose.

    The rule: the fewest row tiles, because each passes over the weight again, then the fewest regions, then the time.
    """
    if not measured:
        return entry
    limit = min(measured.values()) * (1 + TIE)
    tied = [(*_choice(name, us), us) for name, us in measured.items() if us <= limit]
    choice, split, _ = min(tied, key=lambda c: (sum(t for _, t in c[0].parts), len(c[0].parts), c[2], c[0].name))
    return choice, split


def _shared_first(us: Mapping[str, NDArray[np.float64]]) -> dict[str, NDArray[np.float64]]:
    """The same rule for the times of what each way would choose, by m: infinite where another way shares the work."""
    left = {s: np.where(us[s] > ALONE_US, np.inf, us[s]) if s == "serial" else us[s] for s in us}
    nobody = np.isinf(np.min(list(left.values()), axis=0))
    return {s: np.where(nobody, us[s], left[s]) for s in us}


def _choice(name: str, us: float) -> tuple[Choice, str]:
    composition, _, split = name.partition("@")
    parts = tuple((k, int(t)) for k, _, t in (part.partition("*") for part in composition.split("+")))
    return Choice(parts, us), split


def _plan(
    op: Op,
    threads: int,
    kept: Sequence[Curve],
    entries: Sequence[tuple[Choice, str]],
    measured: Mapping[int, Mapping[str, float]],
) -> Plan:
    compositions, regrets = {}, []
    for m, times in measured.items():
        choice, split = entries[m - 1]
        compositions[Shape.of(m=m)] = Covered(regions=regions(op, choice), expected_us=choice.us, split=split)
        own = times.get(f"{choice.name}@{split}")
        if own is not None:
            regrets.append(own / min(times.values()) - 1)
    return Plan(
        op=op.name,
        threads=threads,
        kernels=tuple(curve.kernel for curve in kept),
        compositions=compositions,
        regret_mean=float(np.mean(regrets)) if regrets else 0.0,
        regret_max=float(np.max(regrets)) if regrets else 0.0,
    )


def regions(op: Op, choice: Choice) -> tuple[Region, ...]:
    """The boxes of a composition, from the first row down."""
    found, row = [], 0
    for kernel, tiles in choice.parts:
        last = row + tiles * MicroKernel.parse(kernel)["mr"]
        found.append(Region(kernel=kernel, box={"m": (row, last), "n": (0, op["n"])}, tiles=tiles))
        row = last
    return tuple(found)
