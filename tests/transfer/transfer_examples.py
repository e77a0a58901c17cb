"""Devices, records and tables that the transfer tests share: a made-up truth that depends on program and hardware."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from haotuner.cost.families import demand, problem_of
from haotuner.cost.features import frame
from haotuner.cost.roofline import expected_us
from haotuner.errors import UnknownDevice
from haotuner.records.codec import trial_of
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Failed, OpName, Record, Timed, Trial
from haotuner.spec.shape import Shape
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.reading import DeviceTables, read_records
from tests.cost.cost_examples import CPU_DENSE, kernel

OP = "dense_n2304_k768"
WIDE = Device(
    id="wide", kind="cpu", name="wide core", arch="znver4", compute_units=1, wave_width=16, registers_per_thread=32,
    fma_pipes=1, l1_bytes=32 * 2**10, l2_bytes=2**20, l3_bytes=32 * 2**20, memory_gbps=20.0, clock_mhz=3700,
    peak_gflops=117.0,
)  # fmt: skip
COUSIN = replace(WIDE, id="cousin", l2_bytes=2**19, memory_gbps=16.0, clock_mhz=3200, peak_gflops=102.0)
NARROW = replace(
    WIDE,
    id="narrow",
    wave_width=8,
    registers_per_thread=16,
    fma_pipes=2,
    l1_bytes=16 * 2**10,
    l2_bytes=2**18,
    peak_gflops=96.0,
)
DEVICES = {device.id: device for device in (WIDE, COUSIN, NARROW)}
KERNELS = tuple(kernel(mr, nr, vl=16, ku=ku) for mr in range(1, 15) for nr in (16, 32, 48, 64, 96) for ku in (1, 4))
SHAPES = (Shape.of(m=7), Shape.of(m=240))


def find_device(name: str) -> Device:
    """The made-up devices by id."""
    if name not in DEVICES:
        raise UnknownDevice(f"unknown device {name!r}")
    return DEVICES[name]


def times_us(device: Device, kernels: Iterable[MicroKernel], shape: Shape, seed: int, odd: float = 1.0) -> np.ndarray:
    """Analytic time, bent by a program effect that all devices share (``odd`` of it) and by 1 % noise."""
    demands = demand(device, CPU_DENSE, problem_of(OpName(OP)), [(k, shape) for k in kernels])
    program = frame(device, demands)
    bend = odd * (0.4 * np.sin(2.5 * program["wave_rows_log2"]) + 0.15 * program["unroll_log2"])
    noise = np.random.default_rng(seed).normal(0.0, 0.01, len(program))
    return np.asarray(expected_us(device, demands) * np.exp(bend + noise))


def record(trial: Trial, outcome: Timed | Failed, device: str) -> Record:
    return Record(trial=trial, outcome=outcome, device_id=device, fingerprint="f", session="s", when=0.0)


def records(device: Device, *, kernels: Iterable[MicroKernel] = KERNELS, odd: float = 1.0, seed: int = 0) -> list[Record]:
    """Records of every kernel at every shape on a device."""
    chosen = list(kernels)
    return [
        record(trial_of(op=OP, kernel=k.name, shape=shape), Timed(samples_us=(float(us),)), device.id)
        for shape in SHAPES
        for k, us in zip(chosen, times_us(device, chosen, shape, seed, odd), strict=True)
    ]


def read(*devices: Device, odd: float = 1.0) -> DeviceTables:
    """What was read of the records of some devices."""
    return read_records([r for i, d in enumerate(devices) for r in records(d, odd=odd, seed=i)], find_device)


def tables(*devices: Device) -> list[DeviceTable]:
    """Tables in the order of the devices."""
    by_id = {table.device.id: table for table in read(*devices).tables}
    return [by_id[device.id] for device in devices]
