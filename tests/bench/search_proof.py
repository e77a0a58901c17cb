"""Do selection and the cost model earn their place? Measures, replays searches, and writes docs/results/search.md.

    python -m tests.bench.search_proof [--ops NAME,NAME] [--random 2000] [--db FILE] [--seeds 20] [--out docs/results]

Survivors of the funnel and random points of the unpruned space (all tiles that can be served) are measured for every op,
cold, on one core, and kept in the database (run it again to go on). An op is tuned, and at every shape four compositions
are timed against each other: the plan's, the best of the kept kernels, of the survivors, and of everything; chosen in one
pass of measurements, quoted from others. Then searches are replayed on the records, so that they differ in nothing but
their choices. About fifteen minutes for an op on a quiet machine; the replays take five more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.cost.forest import Forest
from haotuner.hw_profiles.find import find_device
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.plan.compose import Curve, alternatives
from haotuner.records import RecordStore, open_store
from haotuner.search.observations import ObservationTable, expectation, names
from haotuner.search.probes import Probe, probe
from haotuner.search.select.funnel import select
from haotuner.spec.composition import SERIAL, Composition, Planned
from haotuner.spec.device import Device
from haotuner.spec.family import Layout
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import Shape, ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.transfer.warm_start import Started
from haotuner.tuning.strategies import Task, tune
from tests.bench.own_records import all_records
from tests.bench.replay import STRATEGIES, Pool, timings_to
from tests.bench.ship_models import fit_without

OPS = ("dense_n1024_k1024", "dense_n1000_k600")
MOST_ROWS = 2048
CACHE = "cold"
CHUNK = 48  # kernels built before their turn to be timed
SHAPES = 40  # at which the best of both sets are timed against each other
FINALISTS = 5  # of each set a shape: predicted times err by more than the sets differ
STAGES = ("plan", "kept", "survivors", "all")
TIMES = 2  # in one process, one after the other
CHOOSING = 3  # passes that choose; of n=1000 k=600 m=7 one pass took 112 us for the best of kept kernels, the plan took 77
PASSES = 9  # after those; ratios are taken within a pass and their median counts
REPLAYED = 200  # random points that searches without the funnel choose among: each is measured twice
WORST = 3  # shapes named for each regret
PATIENCE_S = 600.0  # until the search converges
SHARE = 0.98


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One op: who survived, who was drawn, and what is known of them."""

    op: Op
    traffic: Traffic
    survivors: tuple[str, ...]
    drawn: tuple[str, ...]
    points: int
    probes: dict[str, Probe]

    @property
    def everybody(self) -> list[str]:
        return list(self.probes)

    @property
    def replayed(self) -> list[str]:
        """Those among which searches choose: survivors and some of those drawn."""
        return list(dict.fromkeys([*self.survivors, *self.drawn[:REPLAYED]]))


def main() -> None:
    """Measure, judge, replay, write."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--ops", default=",".join(OPS))
    words.add_argument("--random", type=int, default=2000)
    words.add_argument("--db", default="search.records.db")
    words.add_argument("--seeds", type=int, default=20)
    words.add_argument("--out", type=Path, default=Path("docs/results"))
    args = words.parse_args()
    device = find_device("cpu")
    store, twice = open_store(f"sqlite:///{args.db}"), open_store(f"sqlite:///{args.db}.again")
    text = ["# Do selection and the cost model earn their place?", "",
            f"Made by `python -m tests.bench.search_proof --ops {args.ops} --random {args.random} --seeds {args.seeds}` "
            f"on `{device.id}`, weights {CACHE}, one core, m log-uniform in 1..{MOST_ROWS}.", ""]  # fmt: skip
    regrets, replays = list[str](), list[str]()
    summary: dict[str, dict[str, Any]] = {}
    cases = [case_of(Op.parse(name), device, args.random) for name in args.ops.split(",")]
    records = [measured(case, device, store, case.everybody) for case in cases]
    for case, known in zip(cases, records, strict=True):  # everything that is timed comes first
        regret = regrets_of(case, known, device, store)
        print(f"{case.op.name}: {regret}", file=sys.stderr, flush=True)
        regrets.append(regret_row(case, known, regret))
        summary[case.op.name] = {"regrets": regret}
    again = [measured(case, device, twice, case.replayed) for case in cases]
    for case, known, other in zip(cases, records, again, strict=True):
        results = replayed(case, known, other, device, args.seeds)
        replays += replay_rows(case, results)
        summary[case.op.name]["timings_to_98"] = {key: counts.tolist() for key, counts in results.items()}
    text += ["## Three regrets", "", REGRET_TEXT, "", REGRET_HEAD, "|" + "---|" * 10, *regrets, ""]
    text += ["## Timings until the plan is within 2 % of the best", "", REPLAY_TEXT, "",
             REPLAY_HEAD, "|" + "---|" * 7, *replays, ""]  # fmt: skip
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "search.md").write_text("\n".join(text))
    print(json.dumps(summary))


REGRET_TEXT = f"""Mean and 99th percentile over {SHAPES} shapes. *Dispatch*: the plan against the best composition of the
kept kernels. *Cover*: that one against the best of all survivors of the funnel. *Selection*: that one against the best
of survivors and random points. Each best is chosen among the {FINALISTS} best by curve in {CHOOSING} passes; ratios are
medians over {PASSES} more, each timed twice. In brackets the {WORST} shapes that lose most. Noise: the plan's composition
against itself."""
REGRET_HEAD = "| op | points | survivors | random | failed | kept | dispatch | cover | selection | noise |"
REPLAY_TEXT = f"""Searches replayed on the same records. *Started*: what `haotuner tune` does, LightGBM that begins with
the model of this device, here fitted without the op (behind the funnel only); *model*: LightGBM from cold; *analytic*: the
same search with the roofline only; *random*: any order. *Without the funnel* they choose among survivors and
{REPLAYED} random points. A plan is chosen with the times that the search saw and judged by those of a second round of
measurements (the best of hundreds of noisy times is the luckiest, too). Its quality is the geometric mean time over the
traffic; the best is the plan chosen with all kernels of the set measured. Median and 90 % range over seeds."""
REPLAY_HEAD = "| op | search | candidates | median | 5 % | 95 % | against the model |"


def case_of(op: Op, device: Device, count: int) -> Case:
    """Survivors, as tune selects them, and random points of one op; the draw depends on the count only.

    Points are all those that can be served: the runtime's scratch tile is all registers of a core, whatever they hold.
    """
    family, traffic = CpuDense(), Traffic.of_range(ShapeRange.parse(f"m=1..{MOST_ROWS}"))
    funnel = select(op, family, device, traffic, expectation(op, family, device, CACHE, started(device, op)))
    survivors = names(funnel.candidates)
    points = [
        k.name for k in family.points(op, device) if k["mr"] * k["nr"] <= device.registers_per_thread * device.wave_width
    ]
    drawn = random.Random(0).sample(points, min(count, len(points)))
    probes = {
        name: probe(MicroKernel.parse(name), op, family, device, MOST_ROWS, cache=CACHE)
        for name in dict.fromkeys([*survivors, *drawn])
    }
    return Case(op=op, traffic=traffic, survivors=tuple(survivors), drawn=tuple(drawn), points=len(points), probes=probes)


def started(device: Device, op: Op) -> Forest | None:
    """The shipped model of this device, fitted without the op; None for a device without one."""
    return next((fit_without(own, op.name) for own in all_records() if own.device.id == device.id), None)


def lab_of(device: Device, store: RecordStore, *, resume: bool, what: str) -> DeviceMeasurer:
    """A started lab."""
    lab = DeviceMeasurer(device, store, environment=dict(os.environ), resume=resume, what=what)
    lab.start()
    return lab


def measured(case: Case, device: Device, store: RecordStore, names: Sequence[str]) -> dict[str, Record]:
    """Records of every probe of these kernels by trial key; what the store holds is not measured again."""
    lab = lab_of(device, store, resume=True, what=f"search proof {case.op.name}")
    try:
        records: dict[str, Record] = {}
        for start in range(0, len(names), CHUNK):
            chunk = names[start : start + CHUNK]
            lab.prepare([n for n in chunk if any(lab.known(t) is None for t in case.probes[n].trials())])
            for name in chunk:
                records |= {r.trial.key(): r for r in lab.measure(case.probes[name].trials())}
            print(f"{case.op.name}: {start + len(chunk)}/{len(names)}", file=sys.stderr, flush=True)
        return records
    finally:
        lab.close()


def book_of(case: Case, known: dict[str, Record], device: Device, *, note: bool) -> ObservationTable:
    """A book over everybody; with ``note`` it knows all records."""
    book = ObservationTable(case.op, CpuDense(), device, list(case.probes.values()), cache=CACHE, seed=0)
    if note:
        for probe in case.probes.values():
            for trial in probe.trials():
                book.note(known[trial.key()])
    return book


def regrets_of(case: Case, known: dict[str, Record], device: Device, store: RecordStore) -> dict[str, dict[str, float]]:
    """Mean and p99 of the loss at every stage, and of the same composition against itself."""
    lab = lab_of(device, store, resume=True, what=f"search proof {case.op.name}")
    try:
        task = Task(op=case.op, traffic=case.traffic, cache=CACHE, budget_s=PATIENCE_S)
        start = started(device, case.op)
        tuned = tune(task, lab, CpuDense(), model=None if start is None else Started(start))
    finally:
        lab.close()
    book = book_of(case, known, device, note=True)
    every = [name for name in case.everybody if name not in book.failed]
    rows = sorted({shape["m"] for shape in case.traffic.shapes()})
    shapes = sorted({rows[round(i)] for i in np.linspace(0, len(rows) - 1, SHAPES).tolist()})
    selected = book.layouts([kernel.name for kernel in tuned.kernels])
    layouts = {"kept": selected, "survivors": book.layouts(list(case.survivors)), "all": book.layouts(every)}
    finalists = {(stage, m): _best(result, m) for stage, result in layouts.items() for m in shapes}
    finalists |= {("plan", m): [tuned.row_tables[0].at(Shape.of(m=m))] for m in shapes}
    expected = {m: {item.composition for stage in STAGES for item in finalists[stage, m]} for m in shapes}
    finals = lab_of(device, open_store("memory://"), resume=False, what="finals")
    try:
        finals.gather(sorted({kernel for every_ in expected.values() for item in every_ for kernel, _ in item.parts}))
        first = [_timed(case.op, finals, expected) for _ in range(CHOOSING)]
        best = {m: _stages(finalists, first, m) for m in shapes}
        passes = [_timed(case.op, finals, {m: set(best[m].values()) for m in shapes}) for _ in range(PASSES)]
    finally:
        finals.close()
    losses: dict[str, dict[int, float]] = {"dispatch": {}, "cover": {}, "selection": {}, "noise": {}}
    pairs = dict(zip(losses, zip(STAGES, STAGES[1:], strict=False), strict=False))
    for m in shapes:
        for loss, (item, other) in pairs.items():
            seen = [(result[m, best[m][item], i], result[m, best[m][other], i]) for result in passes for i in range(TIMES)]
            ratios = [us / least for us, least in seen]
            losses[loss][m] = float(np.median(ratios)) - 1
        again = [result[m, best[m]["plan"], 1] / result[m, best[m]["plan"], 0] for result in passes]
        losses["noise"][m] = abs(float(np.median(again)) - 1)
    for name, (item, other) in pairs.items():
        for m in sorted(shapes, key=lambda m: -losses[name][m])[:WORST]:
            print(
                f"{case.op.name} {name} m={m}: {losses[name][m]:.1%}, {best[m][item].text} against {best[m][other].text}",
                file=sys.stderr,
            )
    return {name: _figures(result) for name, result in losses.items()} | {"kept": {"count": float(len(tuned.kernels))}}


def _figures(losses: Mapping[int, float]) -> dict[str, float]:
    """Mean, 99th percentile, and the shapes that lose most as ``m=...``."""
    worst = sorted(losses, key=lambda m: -losses[m])[:WORST]
    every = list(losses.values())
    return {"mean": float(np.mean(every)), "p99": float(np.percentile(every, 99)), **{f"m={m}": losses[m] for m in worst}}


def _best(layouts: Mapping[Layout, Sequence[Curve]], m: int) -> list[Planned]:
    plans = [planned for curves in layouts.values() for planned in alternatives(curves, m, FINALISTS, SERIAL)]
    return sorted(plans, key=lambda planned: planned.us)[:FINALISTS]


def _stages(
    finalists: Mapping[tuple[str, int], Sequence[Planned]],
    passes: Sequence[Mapping[tuple[int, Composition, int], float]],
    m: int,
) -> dict[str, Composition]:
    """Every stage's best composition by its median; what a stage may choose, the next may choose too."""

    def median(item: Composition) -> float:
        return float(np.median([result.get((m, item, i), np.inf) for result in passes for i in range(TIMES)]))

    best: dict[str, Composition] = {}
    for stage in STAGES:
        offered = {planned.composition for planned in finalists[stage, m]} | set(best.values())
        best[stage] = min(sorted(offered), key=median)
    return best


def _timed(
    op: Op, lab: DeviceMeasurer, compositions: dict[int, set[Composition]]
) -> dict[tuple[int, Composition, int], float]:
    """One pass, measured anew in a process of its own: the compositions of a shape one after the other, twice."""
    times: dict[tuple[int, Composition, int], float] = {}
    lab.anew("finals")
    for m, every in sorted(compositions.items()):
        for repeat in range(TIMES):
            trials = [Trial.of(op, item, Shape.of(m=m), cache=CACHE, repeat=repeat) for item in every]
            for trial, record in zip(trials, lab.measure(trials), strict=True):
                if isinstance(record.outcome, Timed):
                    times[m, trial.composition, repeat] = record.outcome.median_us
    return times


def replayed(
    case: Case, known: dict[str, Record], again: dict[str, Record], device: Device, seeds: int
) -> dict[str, NDArray[np.int64]]:
    """Timings until the plan is good enough, by search and seed."""
    rows = np.array([shape["m"] for shape in case.traffic.shapes()], np.int64)
    shares = np.array([share for _, share in case.traffic], np.float64)
    times = [{key for key, record in round_.items() if isinstance(record.outcome, Timed)} for round_ in (known, again)]
    usable = {n for n, p in case.probes.items() if all(t.key() in seen for t in p.trials() for seen in times)}
    pools = {
        "": [n for n in case.survivors if n in usable],
        " without the funnel": [n for n in case.replayed if n in usable],
    }
    results = {}
    start = started(device, case.op)
    for suffix, members in pools.items():
        pool = Pool(op=case.op, device=device, probes=[case.probes[n] for n in members], known=known, again=again,
                    rows=rows, shares=shares, state=CACHE)  # fmt: skip
        ways = {name: (pool, strategy) for name, strategy in STRATEGIES.items()}
        if start is not None and not suffix:
            ways["started"] = (replace(pool, start=start), STRATEGIES["model"])
        for name, (among, strategy) in ways.items():
            begin = time.monotonic()
            results[name + suffix] = np.array([timings_to(SHARE, among, strategy, seed) for seed in range(seeds)], np.int64)
            print(f"{case.op.name}: {name}{suffix} {time.monotonic() - begin:.0f} s", file=sys.stderr, flush=True)
    return results


def regret_row(case: Case, known: dict[str, Record], regret: dict[str, dict[str, float]]) -> str:
    """One line of the first table."""
    failed = {r.trial.kernel for r in known.values() if not isinstance(r.outcome, Timed)}
    shares = " | ".join(
        f"{figures['mean']:.1%}, {figures['p99']:.1%} ({worst(figures)})"
        for figures in (regret[name] for name in ("dispatch", "cover", "selection"))
    )
    return (
        f"| {case.op.name} | {case.points:,} | {len(case.survivors)} | {len(case.drawn):,} | {len(failed)} | "
        f"{regret['kept']['count']:.0f} | {shares} | {regret['noise']['mean']:.1%}, {regret['noise']['p99']:.1%} |"
    )


def worst(figures: Mapping[str, float]) -> str:
    """The shapes that lose most, and how much."""
    return ", ".join(f"{key} {loss:.0%}" for key, loss in figures.items() if key.startswith("m="))


def replay_rows(case: Case, results: dict[str, NDArray[np.int64]]) -> list[str]:
    """Lines of the second table."""
    text = []
    for name, counts in results.items():
        low, middle, high = np.percentile(counts, (5, 50, 95))
        least = float(np.median(results["model" + (" without the funnel" if "without" in name else "")]))
        size = len(case.replayed) if "without" in name else len(case.survivors)
        text.append(
            f"| {case.op.name} | {name} | {size:,} | {middle:.0f} | {low:.0f} | {high:.0f} | {middle / least:.1f}x |"
        )
    return text


if __name__ == "__main__":
    main()
