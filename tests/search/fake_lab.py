"""A lab without processes: a latency surface with seeded noise and scripted failures behind the interface of Lab."""

from __future__ import annotations

import copy
import time
import zlib
from collections.abc import Callable, Iterable, Sequence
from typing import Self, cast

from haotuner.measure.measurer import GoesOn, Measurer
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Outcome, Record, Timed, Trial
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic
from haotuner.tuning.strategies import Task

Fails = Callable[[MicroKernel], bool]
FAMILY = CpuDense()
OP = Op.parse("dense:n=512,k=256")
CORE = Device(
    id="fake-core", kind="cpu", name="fake", arch="x86-64-v4", compute_units=2, wave_width=16, registers_per_thread=32,
    fma_pipes=2, l1_bytes=32 << 10, l2_bytes=1 << 20, l3_bytes=32 << 20, memory_gbps=20.0, memory_gbps_unit=20.0,
    clock_mhz=3000, peak_gflops=384.0,
)  # fmt: skip
TASK = Task(op=OP, traffic=Traffic.of_range(ShapeRange.parse("m=1..256"), samples=40), budget_s=3600.0)


class FakeLab:
    """Answers at once. ``started`` holds the moment each measurement began, ``measured`` the trials in order."""

    def __init__(
        self, device: Device, *, noise: float = 0.01, seed: int = 0, fails: Fails = lambda _: False, pause_s: float = 0.0
    ) -> None:
        self.device, self.noise, self.seed, self.fails, self.pause_s = device, noise, seed, fails, pause_s
        self.failures: dict[str, int] = {}
        self.builders = 2
        self.prepared: list[str] = []
        self.measured: list[Trial] = []
        self.started: list[float] = []
        self.store: dict[str, Record] = {}

    def copied(self) -> Self:
        """A lab that has measured the same."""
        other = copy.copy(self)
        other.failures, other.store = dict(self.failures), dict(self.store)
        other.prepared, other.measured, other.started = list(self.prepared), list(self.measured), list(self.started)
        return other

    def as_lab(self) -> Measurer:
        return cast(Measurer, self)

    def start(self) -> None:
        """There is no process."""

    def prepare(self, names: Sequence[str], goes_on: GoesOn = lambda _: True) -> None:
        self.prepared += names

    def renew(self) -> None:
        pass

    def gather(self, names: Sequence[str]) -> None:
        self.prepared += names

    def known(self, trial: Trial) -> Record | None:
        """The record of a trial that was measured before."""
        return self.store.get(trial.key())

    def measure(self, trials: Iterable[Trial], goes_on: GoesOn = lambda _: True) -> list[Record]:
        records = []
        for trial in trials:
            record = self.known(trial)
            if record is None:
                if not goes_on(None):
                    break
                self.started.append(time.monotonic())
                time.sleep(self.pause_s)
                record = Record(trial=trial, outcome=self._outcome(trial), device_id=self.device.id, fingerprint="fake",
                                session="fake", when=0.0)  # fmt: skip
                self.store[trial.key()] = record
                self.measured.append(trial)
            records.append(record)
            goes_on(record)
        return records

    def _outcome(self, trial: Trial) -> Outcome:
        parts = [(MicroKernel.parse(name), tiles) for name, tiles in trial.composition.parts]
        if any(self.fails(kernel) for kernel, _ in parts):
            self.failures["crash"] = self.failures.get("crash", 0) + 1
            return Failed(stage="verify", reason="crash", detail="scripted")
        us = self.true_us(trial)
        random = (
            zlib.crc32(f"{self.seed} {trial.key()}".encode()) / 2**32
        )  # the same for the same trial, whatever came before
        return Timed(samples_us=(us * (1 + self.noise * random),) * 3)

    def true_us(self, trial: Trial) -> float:
        """A core that starts two FMAs a cycle, reads the weight from memory once a shape, and shares work evenly."""
        op = trial.known_op
        n, k = op["n"], op["k"]
        busy = 0.0
        for kernel, tiles in trial.composition.parts:
            busy += self._region_us(MicroKernel.parse(kernel), n, k, tiles or None, trial.shape["m"])
        stream = n * k * 4 / 20e3 if trial.weights == "cold" else n * k * 4 / 80e3
        overlapped = float((busy**4 + stream**4) ** 0.25)
        return overlapped / trial.threads + (2.0 if trial.threads > 1 else 0.1)

    def _region_us(self, kernel: MicroKernel, n: int, k: int, tiles: int | None, m: int) -> float:
        rows, vectors = kernel["mr"], kernel["nr"] // kernel["vl"]
        tiles = tiles if tiles is not None else m // rows
        accumulators = rows * vectors
        fmas = max(accumulators, 8)  # fewer accumulators wait for their own latency
        loads = (rows + vectors) * 1.1
        cycles = max(fmas / 2, loads / 2) * (1 + 0.3 / kernel["ku"]) * (1 + 0.02 * (kernel["nr"] // kernel["pw"]))
        spill = 4.0 if accumulators > 28 else 1.0
        return tiles * -(-n // kernel["nr"]) * (k * cycles * spill + 40) / 3000
