"""Expectation of the CUDA dense families over traffic, from footprint and device alone: what selection ranks them by.

Roller's micro-performance model (OSDI 2022): the time of a shape is the longest of what its resources need, each at the
share that the grid keeps busy. No measurement and no fit enter; it puts candidates in an order worth measuring. It stands
beside the roofline of ``haotuner/cost`` because it knows what that does not: how many steps ahead a ring of stages loads.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from haotuner.hw_profiles.typical import typical
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.words.demand import Column, Expectation
from haotuner.words.device import Device
from haotuner.words.kernel import Footprint, MicroKernel
from haotuner.words.occupancy import occupancy
from haotuner.words.op import Op
from haotuner.words.traffic import Traffic

# Stand-ins where a profile is silent, of the right order: a wrong one moves all kernels of a device alike.
PEAK_TFLOPS, MEMORY_GBPS = 10.0, 500.0
MID_BYTES = 40.0  # L2, bytes per cycle and unit that are sustained (Jia et al. 2018, table 3.2)
LATENCY_US = 0.7  # of a load from memory: 500 to 900 ns by the same authors' and later microbenchmarks
START_US = 1.0  # of a round of blocks: launch, first loads, write-back


class Told(Protocol):
    """What a family tells of its micro-kernels."""

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Registers, shared memory and threads of one block."""
        ...

    def ahead(self, kernel: MicroKernel) -> int:
        """Steps along k whose operands are on their way while one step is computed."""
        ...

    def near_bytes(self, kernel: MicroKernel) -> int:
        """Bytes that one block reads from shared memory for one element of k."""
        ...

    def peak_tflops(self, device: Device) -> float | None:
        """What the device's units for the family's instructions reach at most; None where nobody knows."""
        ...


def expectation(op: Op, family: Told, device: Device, traffic: Traffic) -> Expectation:
    """Mean share of the roofline over the traffic, by its weights; the roofline is that of the device's fastest units."""
    extents = [op.extents(shape) for shape in traffic.shapes()]
    rows, columns, depth = (np.array([e[axis] for e in extents], np.float64) for axis in ("m", "n", "k"))
    weights = np.array([weight for _, weight in traffic], np.float64)
    size = DTYPE_BYTES[op.dtype]
    least_bytes = size * (rows * depth + columns * depth + rows * columns)
    gbps = device.memory_gbps or MEMORY_GBPS
    fastest = (device.tensor_tflops if op.dtype in ("fp16", "bf16") else None) or _tflops(device.peak_gflops)
    roofline_us = np.maximum(2 * rows * columns * depth / (fastest * 1e6), least_bytes / (gbps * 1e3))
    usual = typical(device)
    per_us = device.clock_mhz or usual.clock_mhz  # cycles
    near = usual.near_bytes * per_us
    mid = MID_BYTES * per_us

    def time_us(kernel: MicroKernel) -> Column:
        footprint = family.footprint(kernel)
        held = max(1, occupancy(footprint, device).blocks)
        bm, bn, bk = kernel["bm"], kernel["bn"], kernel["bk"]
        ahead = family.ahead(kernel)
        tiles = np.ceil(rows / bm) * np.ceil(columns / bn)
        of_a_unit = np.ceil(tiles / device.compute_units)  # blocks of the busiest unit
        rounds = np.ceil(of_a_unit / held)
        steps = np.ceil(depth / bk)
        walked = of_a_unit * steps * bk  # elements of k that the busiest unit goes through
        flops_per_us = (family.peak_tflops(device) or _tflops(None)) * 1e6 / device.compute_units
        running = np.minimum(of_a_unit, held) * np.minimum(tiles, device.compute_units)
        in_flight = running * ahead * (bm + bn) * bk * size
        reach = np.minimum(1.0, in_flight / (gbps * 1e3 * LATENCY_US))  # Little's law: bytes on the way hide the latency
        longest = np.maximum.reduce([
            2.0 * bm * bn * walked / flops_per_us,
            family.near_bytes(kernel) * walked / near,
            (bm + bn) * size * walked / mid,
            rounds * steps / ahead * LATENCY_US,
            least_bytes / (gbps * 1e3 * reach),
        ])  # fmt: skip
        return np.asarray(longest + rounds * START_US, np.float64)

    def score(kernels: Sequence[MicroKernel]) -> NDArray[np.float64]:
        return np.array([float(weights @ (roofline_us / time_us(kernel))) for kernel in kernels])

    return score


def _tflops(peak_gflops: float | None) -> float:
    return PEAK_TFLOPS if peak_gflops is None else peak_gflops / 1e3
