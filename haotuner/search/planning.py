"""From kept kernels to a plan table for one thread count: curves, compositions, then a check by measurement.

The table holds a composition for every m up to its limit. Costs come from curves measured with that thread count and
each way to share the work; at sampled shapes the best few compositions are timed, which corrects the model between them
and overrules it where it was wrong by more than noise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from haotuner.composition import Composition, Plan, Region
from haotuner.kernel import MicroKernel
from haotuner.measure.lab import GoesOn, Lab
from haotuner.op import Op
from haotuner.plan.compose import Choice, alternatives, choose
from haotuner.plan.curves import Curve
from haotuner.plan.sharing import rows_of, ways
from haotuner.record import Timed, Trial
from haotuner.search.probes import DENSE_ROWS, probe
from haotuner.shape import Shape, Traffic

TABLE_LIMIT = 8192  # rows with an entry of their own (10 bytes each); beyond, the bulk region repeats
EVERY_UP_TO = 64  # every smaller m of the traffic is timed: there a tile more or less is the whole difference
SAMPLES = 32  # larger shapes at which compositions are timed for each thread count
CONTENDERS = 4  # compositions timed a shape and way to share the work
# A longer call is always shared when a plan may share: waking a thread costs under 10 us, so only another process on the
# other cores can make one thread look faster, and its load passes while the plan stays. (At 200, a plan of 78 us calls was
# kept on one thread: two took 42; at 40, one of 39 us calls, n=k=1024 m=1 hot: m=3 took 25 on two.)
ALONE_US = 20.0
# Serial compositions this close to the best of a small shape are timed once more, in another process: the same code differs
# by up to a third there (n=1000 k=600 m=7: a plan's kernel, the best in its process, was 33 % slower in nine others).
CLOSE = 1.15
# Weight of a composition's own time beside the sum of its curves, which rest on many measurements (one thread): up to
# EVERY_UP_TO rows, and beyond. What took longer than SLOWER times the best contender is out whatever its curves say. Loss to
# the best contender in three other processes, seven ops in a noisy hour, up to 64 rows and beyond: by the time alone 2.0 and
# 1.3 %, by the curves alone 1.9 and 1.5, so 1.6 and 1.25; SLOWER (three of the ops, to 16 rows) made 0.7 of 1.7 (time: 1.1).
TIME_SHARE = (0.25, 0.5)
SLOWER = 1.1
MORE_TIMES = ("m", "serial")  # splits that name the second and third time
TIE = 0.015  # measured differences under it are noise: the same work timed twice in a row differs by 1 % in the mean


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Plan of one op and thread count: ``entries[m-1]`` is (composition, split)."""

    plan: Plan
    threads: int
    entries: tuple[tuple[Choice, str], ...]
    curves: Mapping[str, Sequence[Curve]]  # split -> kept kernels
    measured: Mapping[int, Mapping[str, float]] = field(default_factory=dict)  # m -> "composition@split" -> us


def make_table(
    lab: Lab,
    op: Op,
    kept: Sequence[Curve],
    traffic: Traffic,
    threads: int,
    weights: str,
    goes_on: GoesOn,
    *,
    one_order: bool = False,
) -> Table:
    """Measure curves and contenders of the kept kernels, and decide for every m of the table."""
    if goes_on(None):
        lab.gather([curve.kernel for curve in kept])
    last = max(shape["m"] for shape in traffic.shapes())
    limit = min(last, TABLE_LIMIT)
    rows = {way: rows_of(way, op, threads, limit) for way in ways(op, threads, one_order=one_order)}
    splits = [way for way in rows if rows[way] > 0]
    timed = {s: _curves(lab, op, kept, rows[s], 1 if s == "serial" else threads, s, weights, goes_on) for s in splits}
    # A way to share that nothing was measured of looks as fast as one thread's curves divided: it is one only if all are.
    if any(timed[s][1] for s in splits if s != "serial"):
        splits = [s for s in splits if timed[s][1]]
    curves = {s: timed[s][0] for s in splits}
    every = list(range(1, limit + 1))
    chosen = {split: choose(found, every) for split, found in curves.items()}
    sampled = _samples(traffic, limit)
    measured = {
        m: _contend(lab, op, {s: curves[s] for s in splits if m <= rows[s]}, m, threads, weights, goes_on) for m in sampled
    }
    measured = _again(lab, op, measured, weights, goes_on)
    corrected = {s: np.array([c.us for c in chosen[s]]) * _correction(chosen[s], s, measured, limit) for s in splits}
    corrected = {s: np.where(np.array(every) <= rows[s], us, np.inf) for s, us in corrected.items()}
    if threads > 1:
        corrected = _shared_first(corrected, chosen)
        measured = {m: _worth_sharing(times) for m, times in measured.items()}
    judged = {m: _with_curves(times, curves["serial"], m) for m, times in measured.items()} if threads == 1 else measured
    entries: list[tuple[Choice, str]] = []
    for m in every:
        split = min(splits, key=lambda s: float(corrected[s][m - 1]))
        entry = (replace(chosen[split][m - 1], us=float(corrected[split][m - 1])), split)
        entries.append(_overrule(entry, judged.get(m, {})))
    plan = _plan(op, threads, kept, entries, judged)
    return Table(plan=plan, threads=threads, entries=tuple(entries), curves=curves, measured=measured)


def _curves(
    lab: Lab,
    op: Op,
    kept: Sequence[Curve],
    limit: int,
    threads: int,
    split: str,
    weights: str,
    goes_on: GoesOn,
) -> tuple[list[Curve], bool]:
    """Curves of the kernels with that many threads, and whether anything was measured of them.

    Out of time, a point is the one-thread curve's, shared as well as the last point that was measured.
    """
    found, any_measured = [], threads == 1
    loss = 1.0  # of sharing: times over one thread's divided evenly
    for curve in kept:
        kernel = MicroKernel.parse(curve.kernel)
        # A flat tile in bulk is never a plan, and costs the most time to look at.
        rows = tuple(r for r in DENSE_ROWS if kernel["mr"] >= 4 or r <= 32 * kernel["mr"])
        wanted = probe(kernel, op, lab.device, limit, weights=weights, threads=threads, split=split, rows=rows)
        points = dict(curve.lead_us) if threads == 1 else {}
        even = {tiles: float(curve.lead(np.array([tiles]))[0]) / threads for tiles, _ in wanted.lead}
        records = lab.measure([t for _, t in wanted.lead], goes_on)
        for (tiles, _), record in zip(wanted.lead, records, strict=False):
            if isinstance(record.outcome, Timed):
                points[tiles] = record.outcome.median_us
                loss, any_measured = points[tiles] / even[tiles], True
        if threads > 1:
            points |= {tiles: even[tiles] * loss for tiles, _ in wanted.lead[len(records) :]}
        if not points:  # none ran
            points = {tiles: us / threads for tiles, us in curve.lead_us}
        found.append(Curve.of(curve.kernel, curve.mr, points, curve.follow_us / threads))
    return found, any_measured


def _samples(traffic: Traffic, limit: int) -> list[int]:
    rows = sorted({min(shape["m"], limit) for shape in traffic.shapes()})
    small = [m for m in rows if m <= EVERY_UP_TO]
    large = rows[len(small) :]
    picks = np.unique(np.round(np.linspace(0, len(large) - 1, min(SAMPLES, len(large)))).astype(int))
    return small + [large[i] for i in picks.tolist()]


def _contend(
    lab: Lab,
    op: Op,
    curves: Mapping[str, Sequence[Curve]],
    m: int,
    threads: int,
    weights: str,
    goes_on: GoesOn,
) -> dict[str, float]:
    trials = {}
    for split, found in curves.items():
        for choice in alternatives(found, m, CONTENDERS):
            serial = split == "serial"
            trials[f"{choice.name}@{split}"] = Trial(
                op=op.name,
                kernel=choice.name,
                shape=Shape.of(m=m),
                threads=1 if serial else threads,
                weights=weights,
                split="n" if serial else split,
            )
    records = lab.measure(trials.values(), goes_on)
    return {
        name: record.outcome.median_us
        for name, record in zip(trials, records, strict=False)
        if isinstance(record.outcome, Timed)
    }


def _again(
    lab: Lab, op: Op, measured: Mapping[int, Mapping[str, float]], weights: str, goes_on: GoesOn
) -> dict[int, dict[str, float]]:
    """The same with the close ones of small shapes timed in more processes, too: the geometric mean of all counts.

    What has fallen behind after one process is not timed in the next (a race, as Maron & Moore, NIPS 1993). One thread
    shares nothing, so each more time is kept as a record of its own under another split.
    """
    times = {m: {name: [us] for name, us in found.items()} for m, found in measured.items()}
    for split in MORE_TIMES:
        means = {m: {name: _mean(us) for name, us in found.items()} for m, found in times.items()}
        trials = {
            (m, name): Trial(op=op.name, kernel=name.partition("@")[0], shape=Shape.of(m=m), weights=weights, split=split)
            for m, found in means.items()
            for name in _close(found)
            if m <= EVERY_UP_TO
        }
        if any(lab.known(trial) is None for trial in trials.values()) and goes_on(None):
            lab.renew()
        for (m, name), record in zip(trials, lab.measure(trials.values(), goes_on), strict=False):
            if isinstance(record.outcome, Timed):
                times[m][name].append(record.outcome.median_us)
    return {m: {name: _mean(us) for name, us in found.items()} for m, found in times.items()}


def _with_curves(times: Mapping[str, float], curves: Sequence[Curve], m: int) -> dict[str, float]:
    """Times of contenders, each drawn towards what its curves say, at the level of the times; without those far behind."""
    said = {f"{choice.name}@serial": choice.us for choice in alternatives(curves, m, CONTENDERS)}
    near = {name: us for name, us in times.items() if us <= min(times.values()) * SLOWER and name in said}
    logs = {name: np.log(us / said[name]) for name, us in near.items()}
    level = float(np.median(list(logs.values()))) if logs else 0.0
    share = TIME_SHARE[m > EVERY_UP_TO]
    return {name: said[name] * float(np.exp(level + share * (log - level))) for name, log in logs.items()}


def _close(times: Mapping[str, float]) -> list[str]:
    """Compositions on one thread within ``CLOSE`` of the best, whoever that is."""
    return [name for name, us in times.items() if name.endswith("@serial") and us <= min(times.values()) * CLOSE]


def _mean(us: Sequence[float]) -> float:
    return float(np.exp(np.mean(np.log(us))))


def _correction(
    chosen: Sequence[Choice], split: str, measured: Mapping[int, Mapping[str, float]], limit: int
) -> NDArray[np.float64]:
    """Measured over predicted at the sampled shapes, interpolated in log m; 1 where nothing was measured."""
    known = {m: us[f"{chosen[m - 1].name}@{split}"] / chosen[m - 1].us
             for m, us in measured.items() if f"{chosen[m - 1].name}@{split}" in us}  # fmt: skip
    if not known:
        return np.ones(limit)
    at = np.log(np.array(sorted(known), np.float64))
    return np.asarray(np.interp(np.log(np.arange(1, limit + 1)), at, [known[m] for m in sorted(known)]), np.float64)


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


def _worth_sharing(times: Mapping[str, float]) -> dict[str, float]:
    """Without what one thread alone takes longer than ``ALONE_US`` for, unless nothing else was timed."""
    shared = {name: us for name, us in times.items() if us <= ALONE_US or not _alone(name)}
    return shared or dict(times)


def _shared_first(
    us: Mapping[str, NDArray[np.float64]], chosen: Mapping[str, Sequence[Choice]]
) -> dict[str, NDArray[np.float64]]:
    """The same rule for the times of what each way would choose, by m: infinite where another way shares the work."""
    alone = {s: np.array([_alone(f"{choice.name}@{s}") for choice in chosen[s]]) for s in us}
    left = {s: np.where(alone[s] & (us[s] > ALONE_US), np.inf, us[s]) for s in us}
    nobody = np.isinf(np.min(list(left.values()), axis=0))
    return {s: np.where(nobody, us[s], left[s]) for s in us}


def _alone(name: str) -> bool:
    """Whether one thread does all of ``composition@split``: not shared, or by rows where there is a single row tile."""
    composition, _, split = name.partition("@")
    return split == "serial" or (split == "m" and "+" not in composition and composition.endswith("*1"))


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
        compositions[Shape.of(m=m)] = Composition(regions=regions(op, choice), expected_us=choice.us, split=split)
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
