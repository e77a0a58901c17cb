"""Vendors' measured GEMM times on five GPUs, to compare expected times with.

``hw_profiles/vendor_gemm_bf16.csv`` has medians in us of 24 (n, k) at 23 numbers of rows m, cut from
ai-dynamo/aiconfigurator (commit 095f58a5, Apache-2.0). Another (n, k) takes the share of the roofline that its neighbours in
log2(n), log2(k) reach. From 256 rows on, with each (n, k) left out in turn, that is off by 5 to 9 % in the median by device.
The 90th percentile is 15 to 24 %. Fewer rows are not compared: weights lie in caches there, ours come from memory.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np

from haotuner.spec.demand import Column
from haotuner.spec.device import Device
from haotuner.spec.op import Op

LEAST_ROWS = 256  # from which times are comparable
WARN = 1.5  # times the vendor's, in the geometric mean, from which an expectation is called slow
LEAST_DEPTH = 256  # of (n, k) that others are judged by: shallow sums are another regime
_LAUNCH_US = 3.0  # that every call takes beside its roofline; the choice moves errors by less than a percent
_HALVING = 0.5  # doublings of n or k that halve a neighbour's weight


@dataclass(frozen=True, slots=True)
class _Table:
    """One device's times: ``(pairs of n and k, rows)`` in us."""

    sizes: Column  # (pairs, 2)
    rows: Column
    us: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """Expected times beside the vendor's, in us, by number of rows."""

    rows: tuple[int, ...]
    expected_us: tuple[float, ...]
    vendor_us: tuple[float, ...]

    @property
    def ratio(self) -> float:
        """Geometric mean of expected over vendor's."""
        return float(np.exp(np.mean(np.log(np.array(self.expected_us) / np.array(self.vendor_us)))))

    def warning(self, device: Device) -> str:
        """Sentence for people where the expectation is far above the vendor's time; else empty."""
        if self.ratio < WARN:
            return ""
        return (
            f"{device.id}: from {LEAST_ROWS} rows on the best kernel is expected at {self.ratio:.1f} times the vendor's: "
            "no family here uses what that device is fastest with; prefer the vendor's library there"
        )


def vendor_us(device: Device, op: Op, rows: Sequence[int]) -> Column | None:
    """Microseconds of the vendor's GEMM at each number of rows; None where no such times are known.

    Known are products in bf16 on A100, H100, H200, B200 (SXM) and L40S.
    """
    static = dict(op.static)
    table = _tables().get(device.id)
    if table is None or op.dtype != "bf16" or not {"n", "k"} <= static.keys() or len(op.dynamic) != 1:
        return None
    size = np.array([static["n"], static["k"]], np.float64)
    deep = table.sizes[:, 1] >= LEAST_DEPTH
    at = np.flatnonzero((table.sizes == size).all(axis=1))
    at = at if len(at) else np.flatnonzero(deep)
    distances = np.linalg.norm(np.log2(table.sizes[at] / size), axis=1)
    neighbour_weights = np.exp2(-distances / _HALVING)
    shares = np.stack([np.log(table.us[pair] / _least_us(device, table.sizes[pair], table.rows)) for pair in at])
    mean = neighbour_weights @ shares / neighbour_weights.sum()
    m = np.asarray(rows, np.float64)
    return np.asarray(np.exp(np.interp(np.log(m), np.log(table.rows), mean)) * _least_us(device, size, m), np.float64)


def beside_vendor(device: Device, op: Op, rows: Sequence[int], expected: Sequence[float]) -> Beside | None:
    """Expected times of the numbers of rows that are comparable beside the vendor's; None where there are none."""
    pairs = [(m, us) for m, us in zip(rows, expected, strict=True) if m >= LEAST_ROWS]
    vendor = vendor_us(device, op, [m for m, _ in pairs]) if pairs else None
    if vendor is None:
        return None
    compared = tuple(m for m, _ in pairs)
    return Beside(rows=compared, expected_us=tuple(us for _, us in pairs), vendor_us=tuple(vendor.tolist()))


def _least_us(device: Device, size: Column, m: Column) -> Column:
    """Roofline of a product in bf16 of ``size`` (n, k), and a launch; of shape ``(rows,)``."""
    n, k = float(size[0]), float(size[1])
    flops, moved = 2.0 * m * n * k, 2.0 * (n * k + m * n + m * k)
    tensor, memory = (device.tensor_tflops or 1.0) * 1e6, (device.memory_gbps or 1.0) * 1e3
    return np.asarray(np.maximum(flops / tensor, moved / memory) + _LAUNCH_US, np.float64)


@cache
def _tables() -> dict[str, _Table]:
    """Tables by device id."""
    text = files("haotuner.hw_profiles").joinpath("vendor_gemm_bf16.csv").read_text(encoding="utf-8")
    head, *lines = list(csv.reader(text.splitlines()))
    rows = np.array([float(m) for m in head[3:]])
    result = {}
    for device in sorted({line[0] for line in lines}):
        numbers = np.array([[float(value) for value in line[1:]] for line in lines if line[0] == device])
        result[device] = _Table(sizes=numbers[:, :2], rows=rows, us=numbers[:, 2:])
    return result
