"""Records of this host as several devices: AVX-512, AVX2 and SSE, one and two threads, weights cold and hot.

``python -m tests.bench.own_devices --db sqlite:///own.db`` measures everything twice (about half an hour, alone on the
machine) and writes the medians as text to ``tests/bench/records``, where ``ship_models`` and ``transfer_use`` read them.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from haotuner.host.cache_folder import cache_folder
from haotuner.hw_profiles.find import find_device
from haotuner.measure.device_measurer import DeviceMeasurer
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.records import open_store
from haotuner.search.observations import expectation
from haotuner.search.probes import probe
from haotuner.search.select.funnel import select
from haotuner.search.select.limits import laws_of, question
from haotuner.spec.constraint import refusals
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from tests.bench.own_records import FOLDER, OwnRecords, comparable

# Spread over n and k, over powers of two and not, over weights of 0.6 to 6 MiB; none of the default workload's.
SIZES = ((320, 480), (640, 2048), (1024, 1024), (1536, 384), (2560, 640), (1000, 1500))
OPS = tuple(f"dense_n{n}_k{k}" for n, k in SIZES)
ISAS = ("cpu", "cpu:avx2", "cpu:sse")
ROWS = 2048  # of the range, as `--shapes dynamic`
KEPT = 120  # survivors of selection by the analytic rule, which owes nothing to an earlier model, spread over their order
BY_CHANCE = 160  # legal kernels that selection did not keep: a model ranks all of them to select
ROUNDS = 2  # apart by half a minute: other load on a shared host comes and goes
FEWER = 64  # kernels for hot weights and for two threads
FAMILY = CpuDense()


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """Kernels of one op to be timed in one state."""

    op: Op
    kernels: tuple[str, ...]
    threads: int = 1
    weights: str = "cold"


def parts(device: Device, ops: Sequence[str] = OPS, seed: int = 0) -> Iterator[Part]:
    """What is measured on one device, the most useful first."""
    rng = np.random.default_rng(seed)
    for state in ((1, "cold"), (1, "hot"), (device.compute_units, "cold")):
        for name in ops if state == (1, "cold") else ops[1:4:2]:
            op = Op.parse(name)
            every = kernels_of(op, device, seed)
            if state != (1, "cold"):
                every = tuple(sorted(rng.permutation(every)[:FEWER].tolist()))
            yield Part(op=op, kernels=every, threads=state[0], weights=state[1])


def kernels_of(op: Op, device: Device, seed: int = 0, *, kept: int = KEPT, by_chance: int = BY_CHANCE) -> tuple[str, ...]:
    """Survivors of selection, then some legal kernels by chance."""
    traffic = Traffic.of_range(ShapeRange.parse(f"m=1..{ROWS}"))
    survivors = [
        c.kernel.name for c in select(op, FAMILY, device, traffic, expectation(op, FAMILY, device, "cold")).candidates
    ]
    spread = [survivors[round(i)] for i in np.linspace(0, len(survivors) - 1, min(kept, len(survivors))).tolist()]
    legal = [k.name for k in FAMILY.points(op, device) if _legal(k, op, device) and k.name not in set(survivors)]
    chosen = np.random.default_rng([seed, op["n"], op["k"]]).permutation(len(legal))[:by_chance].tolist()
    return (*spread, *(legal[i] for i in sorted(chosen)))


def _legal(kernel: MicroKernel, op: Op, device: Device) -> bool:
    return next(refusals(question(FAMILY, kernel, op, device, {"m": ROWS}), laws_of(FAMILY, op, device)), None) is None


def measure(lab: DeviceMeasurer, part: Part, rounds: int) -> None:
    """Measure one part in rounds."""
    probes = [
        probe(MicroKernel.parse(name), part.op, FAMILY, lab.device, ROWS, cache=part.weights, threads=part.threads)
        for name in part.kernels
    ]
    trials = [t for p in probes for t in (p.trials() if part.threads == 1 else [t for _, t in p.lead])]
    lab.prepare(sorted({trial.kernel for trial in trials}))
    for again in range(rounds):
        lab.anew(f"own devices, round {again + 1}")
        begin = time.monotonic()
        lab.measure(trials)
        seconds = time.monotonic() - begin
        print(f"{lab.device.id} {part.op.name} threads={part.threads} {part.weights}: {len(trials)} in {seconds:.0f} s")


def main() -> None:
    """Measure, then write the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--db", default="sqlite:///own.records.db")
    parser.add_argument("--out", type=Path, default=FOLDER)
    parser.add_argument("--isas", default=",".join(ISAS))
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    store = open_store(arguments.db)
    for isa in arguments.isas.split(","):
        device = find_device(isa, cache_dir=cache_folder(os.environ))
        lab = DeviceMeasurer(device, store, environment=dict(os.environ), what="own devices")
        try:
            lab.start()
            for part in parts(device):
                measure(lab, part, arguments.rounds)
        finally:
            lab.close()
        OwnRecords.of(device, comparable(store, lab.fingerprint)).write(arguments.out)
    store.close()


if __name__ == "__main__":
    main()
