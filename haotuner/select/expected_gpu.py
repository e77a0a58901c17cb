"""Expectation of a GPU micro-kernel over traffic, from its footprint and the device alone: what selection ranks by.

Roller's micro-performance model (OSDI 2022): the time of a shape is the longest of what its resources need, each at the
share that the grid keeps busy. No measurement and no fit enter; it puts candidates in an order worth measuring.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.select.occupancy import occupancy
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.traffic import Traffic

# Stand-ins where a profile is silent, of the right order: a wrong one moves all kernels of a device alike.
CLOCK_MHZ, PEAK_TFLOPS, MEMORY_GBPS = 1500.0, 10.0, 500.0
NEAR_BYTES = 128.0  # shared memory, bytes per cycle and unit: 32 banks of 4 bytes
NEAR_BYTES_OF_ARCH = {"sm_75": 64.0}  # GA102 white paper
MID_BYTES = 40.0  # L2, bytes per cycle and unit that are sustained (Jia et al. 2018, table 3.2)
LATENCY_US = 0.7  # of a load from memory: 500 to 900 ns by the same authors' and later microbenchmarks
START_US = 1.0  # of a round of blocks: launch, first loads, write-back

Expectation = Callable[[Sequence[MicroKernel]], NDArray[np.float64]]
Column = NDArray[np.float64]


def expectation_gpu(op: Op, family: CudaDense, device: Device, traffic: Traffic) -> Expectation:
    """Mean share of the roofline over the traffic, by its weights; the roofline is that of the device's fastest units."""
    extents = [op.extents(shape) for shape in traffic.shapes()]
    rows, columns, depth = (np.array([e[axis] for e in extents], np.float64) for axis in ("m", "n", "k"))
    weights = np.array([weight for _, weight in traffic], np.float64)
    size = DTYPE_BYTES[op.dtype]
    least_bytes = size * (rows * depth + columns * depth + rows * columns)
    gbps = device.memory_gbps or MEMORY_GBPS
    fastest = (device.tensor_tflops if op.dtype in ("fp16", "bf16") else None) or _tflops(device.peak_gflops)
    roofline_us = np.maximum(2 * rows * columns * depth / (fastest * 1e6), least_bytes / (gbps * 1e3))
    per_us = device.clock_mhz or CLOCK_MHZ  # cycles
    near = NEAR_BYTES_OF_ARCH.get(device.arch, NEAR_BYTES) * per_us
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
