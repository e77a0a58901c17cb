"""What the search of a GPU loses against brute force, on counted work: ``python -m tests.bench.cuda_plans FOLDER``.

The device is a stand-in of 8 units. Its clock is written down once more here, so that any kernel's time at any number of
rows is known without a launch; ``--records STORE`` holds it to times that the stand-in said (those of
``tests/cli/brute_force.py``). It needs each kernel's registers: FOLDER keeps them, from the records, else from a build
(ten minutes of two cores for 192 kernels, gone on with where it stopped). Then the search runs on that clock, by seed, and
its budget is a count: a build takes some seconds of one of two compilers, a timing ``TIMING_S``, whatever the load of this
host. ``--out PAGE`` writes the page.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from unittest import mock

import numpy as np

from haotuner.backends.cuda.device_code import resident_blocks
from haotuner.backends.cuda.processes import building
from haotuner.backends.index import backend_for
from haotuner.hw_profiles.find import find_device
from haotuner.measure.measurer import GoesOn
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.index import family_named
from haotuner.plan.grids import Grid, alone, pairs
from haotuner.plan.table import CellTable
from haotuner.records import open_store
from haotuner.search.wave_search import selected
from haotuner.spec.composition import WHOLE, Composition, sum_parts
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed, Trial
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Task, tune
from tests.search.fake_lab import FakeLab
from tests.standin import devices, environment

OP, SHAPES, ARCH, UNITS = "dense:n=256,k=128,dtype=fp16", "m=1..256", "sm_80", 8
BUILDS_S = (3.0, 10.0)  # nvcc of one kernel on a core with nothing else to do, twice over; on a host of many users
TIMING_S = 0.06  # a warm-up and three batches
BUDGETS, SEEDS = (30.0, 60.0, 120.0), 5
NOISE = 0.01  # up to so much slower than the clock, as a timing on a device is
START_US = 1.2  # of a launch in a graph (``launch_us`` of tests/standin/native/clock.cc, as all that follows)
NEAR = 1e-3  # what the stand-in adds between launches is a thousandth of the shortest
PARTS = (1, 2, 4)
UNIT = 8  # kernels built together


@dataclass(frozen=True, slots=True)
class Clock:
    """The stand-in's clock for cold weights and warm rows, in a graph."""

    op: Op
    device: Device
    registers: Mapping[str, int]
    said: dict[tuple[str, int, int], float] = field(default_factory=dict)

    def launch_us(self, name: str, m: int, parts: int) -> float:
        """Of one kernel over m rows, its sum in so many parts."""
        key = (name, m, parts)
        if key not in self.said:
            self.said[key] = self._launch_us(*key)
        return self.said[key]

    def _launch_us(self, name: str, m: int, parts: int) -> float:
        kernel = MicroKernel.parse(name)
        family, sizes = family_named(kernel.family), devices.DEVICES[ARCH]
        assert isinstance(family, CudaDense)
        launch = family.launch(kernel)
        n, k, matrix = self.op["n"], self.op["k"], "_mma_" in kernel.family
        resident = max(resident_blocks(self.device, threads=launch.threads, registers=self.registers[name],
                                   shared_bytes=launch.shared_bytes), 1)  # fmt: skip
        tile_m, tile_n, mhz = kernel["bm"], kernel["bn"], float(sizes.clock_mhz)
        memory, cache = 2e-3 * sizes.memory_mhz * 1000 * sizes.bus_bits / 8, 64 * mhz
        grid = Grid.of(kernel, family, self.op, self.device)
        blocks = grid.tiles(m) * grid.across * parts
        bytes_ = 2.0 if matrix else 4.0
        share, warps = math.ceil(k / parts), resident * -(-launch.threads // 32)
        flight = max(resident * launch.shared_bytes, 512 * warps)
        arithmetic = tile_m * tile_n * share / ((1024 if matrix else 128) * mhz * warps / (warps + 4))
        loads = (tile_m + tile_n) * share * bytes_ / (cache * flight / (flight + 16384))
        stores = tile_m * tile_n * (4 if parts > 1 else bytes_) / cache

        def round_us(on_a_unit: int) -> float:
            return 0.4 + on_a_unit * (max(arithmetic, loads) + stores) + share * 4e-4

        whole, rest = divmod(blocks, resident * UNITS)
        us = whole * round_us(resident) + (round_us(-(-rest // UNITS)) if rest else 0.0)
        once = (n * k * bytes_ + m * k * bytes_ / 3 + m * n * bytes_) / memory
        total = START_US + max(us, once)
        if parts > 1:
            total += START_US + 0.5 + (parts * 4 + 4) * m * n / min(memory * 3, cache * UNITS)
        return total

    def us(self, composition: Composition, m: int) -> float:
        """Of a composition: one launch a region."""
        total, left = 0.0, m
        for name, tiles in composition.parts:
            rows = left if tiles == WHOLE else tiles * MicroKernel.parse(name)["bm"]
            total += self.launch_us(name, rows, sum_parts(composition.share))
            left -= rows
        return total


class CountedLab(FakeLab):
    """Answers by a clock; its time passes by what is built and timed, and by nothing else."""

    def __init__(self, clock: Clock, build_s: float, seed: int) -> None:
        super().__init__(clock.device, noise=NOISE, seed=seed)
        self.clock, self.build_s, self.seconds = clock, build_s, 0.0
        self.backend = backend_for(clock.device)

    def monotonic(self) -> float:
        """Seconds passed."""
        return self.seconds

    def prepare(self, names: Sequence[str], goes_on: GoesOn = lambda _: True) -> None:
        """As the lab: several at a time, and none more when time is over."""
        new = [name for name in dict.fromkeys(names) if name not in self.prepared]
        for at in range(0, len(new), self.builders):
            if not goes_on(None):
                return
            self.prepared += new[at : at + self.builders]
            self.seconds += self.build_s

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        """One at a time."""
        records: list[Record] = []
        for trial in trials:
            new = self.known(trial) is None
            records += super().measure([trial], goes_on)
            self.seconds += TIMING_S * new
        return records

    def true_us(self, trial: Trial) -> float:
        """By the clock."""
        return self.clock.us(trial.composition, trial.shape["m"])


@dataclass(frozen=True, slots=True)
class Ended:
    """One search: kernels built and timed, plan over brute force (mean and worst over the traffic), why it ended."""

    built: int
    timings: int
    mean: float
    worst: float
    stopped: str


def task(budget_s: float, seed: int) -> Task:
    """What is tuned."""
    return Task(op=Op.parse(OP), traffic=Traffic.of_range(ShapeRange.parse(SHAPES)), budget_s=budget_s, seed=seed)


def searched(clock: Clock, best: Mapping[int, float], build_s: float, budget_s: float, seed: int) -> Ended:
    """Search once on the clock, and hold the plan to the best there is."""
    lab, request = CountedLab(clock, build_s, seed), task(budget_s, seed)
    with mock.patch("haotuner.search.task.time", lab):
        tuned = tune(request, lab.as_lab(), backend_for(clock.device).searched(clock.op, clock.device))
    (table,) = tuned.tables
    assert isinstance(table, CellTable)
    ratios = {shape["m"]: clock.us(table.at(shape), shape["m"]) / best[shape["m"]] for shape, _ in request.traffic}
    mean = sum(np.log(ratios[shape["m"]]) * share for shape, share in request.traffic)
    return Ended(tuned.measured, len(lab.measured), float(np.exp(mean)), max(ratios.values()), tuned.stopped)


def brute_force(clock: Clock, kernels: Sequence[MicroKernel]) -> dict[int, float]:
    """The least time of every kernel, sum in parts and pair of regions, by rows."""
    grids = [Grid.of(kernel, family_named(kernel.family), clock.op, clock.device) for kernel in kernels]
    best: dict[int, float] = {}
    two_launches = 2 * min(clock.launch_us(grid.kernel, 1, 1) for grid in grids)  # no pair takes less
    for shape, _ in task(0, 0).traffic:
        m = shape["m"]
        best[m] = min(clock.us(candidate, m) for grid in grids for candidate in alone(grid, m, PARTS))
        if best[m] > two_launches:
            best[m] = min([best[m], *(clock.us(candidate, m) for candidate in pairs(grids, m))])
    return best


def registers(folder: Path, kernels: Sequence[MicroKernel], recorded: Mapping[str, int]) -> dict[str, int]:
    """Of each kernel's thread: as the records have them, as FOLDER has them, or from a build."""
    cache = folder / "registers.json"
    known: dict[str, int] = json.loads(cache.read_text()) if cache.exists() else {}
    known |= recorded
    left = [kernel.name for kernel in kernels if kernel.name not in known]
    build = building({"cache": str(folder / "code")}).verbs["build"] if left else None
    for at in range(0, len(left), UNIT):
        assert build is not None
        names = left[at : at + UNIT]
        answer = build({"kernels": names, "arch": ARCH, "out": str(folder / "unit.cubin")})
        known |= {name: int(answer["resources"][name]["registers"]) for name in names}
        cache.write_text(json.dumps(known))
    return known


def recorded(store: str) -> dict[tuple[str, int], tuple[int, float]]:
    """Registers and microseconds of each kernel alone in one part, by its name and rows."""
    times: dict[tuple[str, int], tuple[int, float]] = {}
    with closing(open_store(store)) as records:
        for record in records.records():
            composed, shape = record.trial.composition, record.trial.shape
            if isinstance(record.outcome, Timed) and len(composed.parts) == 1 and sum_parts(composed.share) == 1:
                times[composed.parts[0].kernel, shape["m"]] = int(record.facts["registers"]), record.outcome.median_us
    return times


def inside(folder: Path, store: str) -> str:
    """In a process whose driver is the stand-in: search, and the page."""
    device, op = find_device("cuda:0"), Op.parse(OP)
    kernels = list(selected(task(0, 0), device, backend_for(device).searched(op, device), None)[1])
    seen = recorded(store) if store else {}
    clock = Clock(op, device, registers(folder, kernels, {name: regs for (name, _), (regs, _) in seen.items()}))
    off = max((abs(clock.launch_us(name, m, 1) / us - 1) for (name, m), (_, us) in seen.items()), default=0.0)
    assert off <= NEAR, f"the clock of this file is not the stand-in's: {off:.2%} off"
    best = brute_force(clock, kernels)
    lines = [
        "# What the search of a GPU loses against brute force, counted", "",
        "By `python -m tests.bench.cuda_plans FOLDER --records STORE --out docs/results/cuda-plans.md`:",
        f"`{OP}`, `{SHAPES}`, a stand-in of {ARCH} with {UNITS} units, {len(kernels)} kernels,",
        f"{SEEDS} seeds. Times are of the stand-in's virtual clock, and say nothing of a GPU. The budget is counted:",
        f"some seconds for a build (two at a time), {TIMING_S:g} s for a timing, whose result",
        f"is up to {NOISE:.0%} too long.",
        f"The clock agrees with {len(seen)} times that the stand-in said to {off:.2%}. *Lost*: the plan's time over brute",
        "force over every kernel, sum in parts and pair of regions, geometric mean over the traffic; *one size*: the worst",
        f"of {len(best)} sizes and all seeds.", "",
        "| a build | budget | kernels built | timings | lost, mean | lost, worst seed | one size | why it ended |",
        "|---|---|---|---|---|---|---|---|",
    ]  # fmt: skip
    for build_s, budget_s in product(BUILDS_S, BUDGETS):
        ends = [searched(clock, best, build_s, budget_s, seed) for seed in range(SEEDS)]
        means = [end.mean - 1 for end in ends]
        why = ", ".join(f"{[e.stopped for e in ends].count(word)} {word}" for word in sorted({e.stopped for e in ends}))
        lines.append(
            f"| {build_s:g} s | {budget_s:g} s | {np.mean([e.built for e in ends]):.0f} | "
            f"{np.mean([e.timings for e in ends]):.0f} | "
            f"{np.mean(means):.1%} | {max(means):.1%} | {max(e.worst for e in ends) - 1:.1%} | {why} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    """Write the page, or print it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--records", default="", metavar="STORE", help="times of a stand-in, as sqlite:///PATH")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    if args.inside:
        print(inside(args.folder, args.records), end="")
        return
    where = environment(args.folder / "images", device=ARCH, units=UNITS, noise=0.0, execute="never")
    command = [sys.executable, "-m", "tests.bench.cuda_plans", str(args.folder), "--inside", "--records", args.records]
    page = subprocess.run(command, env={**os.environ, **where}, capture_output=True, text=True, check=False)
    if page.returncode:
        sys.exit(page.stderr)
    if args.out is None:
        print(page.stdout, end="")
    else:
        args.out.write_text(page.stdout)


if __name__ == "__main__":
    main()
