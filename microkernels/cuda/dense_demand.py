"""Demand of the CUDA dense families: what their thread blocks ask of a GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from haotuner.microkernels.cuda.tiles import SECTOR_BYTES, round_of_tiles, waves_of
from haotuner.spec.demand import CpuStream, Demand, DemandQuery, MatmulTile, Ring, Staging, Tiles, Work
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel

# Row tiles that walk the columns together, so that they share W's tiles in the L2 (the grouped order of Triton's matmul
# tutorial, Tillet 2019); 8 keeps a wave of 100 to 150 blocks about square.
RASTER_ROWS = 8
SUM_BYTES = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Instructions of one warp for one element of k, and rows and columns of Y that one thread holds."""

    fmas: float
    loads: float  # from shared memory or L2, by the warp itself
    checks: float  # other instructions
    rows: float
    columns: float
    tensor: bool = False  # multiplied by units for small matrices
    rate: float = 1.0  # products of the units in the time of one of floats (or, of small matrices, of fp16)


class KernelResources(Protocol):
    """Resources of a family's micro-kernels."""

    def footprint(self, kernel: MicroKernel) -> Footprint:
        """Registers, shared memory and threads of one block."""
        ...

    def ahead(self, kernel: MicroKernel) -> int:
        """Steps along k whose operands are on their way while one step is computed."""
        ...

    def tail(self, kernel: MicroKernel) -> float:
        """Instructions of one warp behind the last step, beside the epilogue's; a shuffle, one a clock of an SM, as four."""
        ...

    def near_bytes(self, kernel: MicroKernel) -> int:
        """Bytes that one block reads from shared memory for one element of k."""
        ...

    def step(self, kernel: MicroKernel) -> Step:
        """Instructions of one warp for one element of k."""
        ...

    def peak_share(self, device: Device) -> float:
        """Share of the units' peak that the family's instructions can reach."""
        ...


def grouped(requested: DemandQuery, family: KernelResources) -> Demand:
    """As many products as groups have rows, of even groups: each reads its own W, their blocks run side by side."""
    m, groups = requested.extents["m"], requested.extents["g"]
    filled = np.minimum(m, groups)
    item = demand(replace(requested, extents={**requested.extents, "m": np.ceil(m / filled)}), family)
    assert item.matmul is not None
    return replace(_side_by_side(item, filled), matmul=replace(item.matmul, rows=m))


def batched(requested: DemandQuery, family: KernelResources) -> Demand:
    """So many products, whose blocks run side by side."""
    return _side_by_side(demand(requested, family), requested.extents["b"])


def _side_by_side(item: Demand, count: Any) -> Demand:
    """The demand of so many equal products in one launch."""
    return replace(item, work=item.work.times(count), tiles=replace(item.tiles, count=item.tiles.count * count))


def demand(requested: DemandQuery, family: KernelResources) -> Demand:
    """``Y[m,n] = X[m,k] W[n,k]^T`` by blocks of ``bm x bn`` that stage ``bk`` elements of k of both operands at a time.

    Extents ``m_seen`` and ``n_seen`` say how much of an operand lies in memory where its rows overlap: a share of it.
    """
    bm, bn, bk, v = (requested.param(name) for name in ("bm", "bn", "bk", "v"))
    m, n, k = (requested.extents[axis] for axis in ("m", "n", "k"))
    m_seen, n_seen = (requested.extents.get(axis, 1.0) for axis in ("m_seen", "n_seen"))
    size, device = float(requested.element_bytes), requested.device
    threads = requested.each(lambda kernel: family.footprint(kernel).threads)
    shared = requested.each(lambda kernel: family.footprint(kernel).shared_bytes)
    steps = {kernel: family.step(kernel) for kernel in requested.kernels}
    fmas = requested.each(lambda kernel: steps[kernel].fmas)
    loads = requested.each(lambda kernel: steps[kernel].loads)
    checks = requested.each(lambda kernel: steps[kernel].checks)
    tensor = requested.each(lambda kernel: float(steps[kernel].tensor))
    rate = requested.each(lambda kernel: steps[kernel].rate)
    written = SUM_BYTES if size == 1.0 else size  # sums of bytes, as they are
    row_tiles, tiles = np.ceil(m / bm), np.ceil(m / bm) * np.ceil(n / bn)
    together = round_of_tiles(device, threads, shared, tiles)
    band = np.minimum(row_tiles, RASTER_ROWS)
    high, wide = np.minimum(together, band) * bm, np.minimum(np.ceil(together / band), np.ceil(n / bn)) * bn
    operands = (m * m_seen + n * n_seen) * k * size
    least = operands + m * n * written
    walked = tiles / together * (high * m_seen + wide * n_seen) * k * size + m * n * written
    # What a later round reads again comes from the L2, as far as that holds both operands.
    again = np.maximum(walked - least, 0.0) * np.maximum(1.0 - (device.l2_bytes or 0) / operands, 0.0)
    near, mid = requested.each(family.near_bytes), (bm + bn) * size
    flops, none, item = 2.0 * m * n * k / rate, np.zeros_like(m), np.ones_like(m)
    return Demand(
        work=Work(
            flops={"simd": flops * (1.0 - tensor), "tensor": flops * tensor},
            least_bytes=least,
            far_bytes=least + again,
            mid_bytes=mid * k * tiles,
            near_bytes=near * k * tiles,
        ),
        tiles=Tiles(
            count=tiles,
            threads=threads,
            waves=waves_of(threads, device),
            vector=v,
            registers=requested.each(lambda kernel: family.footprint(kernel).registers_per_thread),
            shared_bytes=shared,
            l1_set_bytes=none,
            l2_set_bytes=(high + wide) * bk * size,
        ),
        matmul=MatmulTile(
            rows=m,
            cols=n,
            depth=k,
            tile_rows=bm,
            tile_cols=bn,
            computed_cols=np.ceil(n / bn) * bn,
            wave_rows=requested.each(lambda kernel: steps[kernel].rows),
            wave_cols=requested.each(lambda kernel: steps[kernel].columns),
            unroll=bk,
            depth_block=bk,
            streams=2.0 * item,
            fmas=fmas,
            tensor_fmas=tensor * bm * bn / family.peak_share(device),
            loads=loads,
            checks=checks,
            near_bytes=near,
            mid_bytes=mid,
            code=bk * (fmas + loads + checks),
            line_ratio=bk * size / (np.ceil(bk * size / SECTOR_BYTES) * SECTOR_BYTES),
            bank_ways=item,  # stores and loads of shared memory are swizzled
            flags=requested.param("kn", 0.0),
            rate=rate,
        ),
        staging=Staging(rows=item, cols=item, row_threads=bk / v, col_threads=bk / v, vector_cols=v, waits=item),
        stream=CpuStream.none(m),
        ring=Ring(ahead=requested.each(family.ahead), written_bytes=bm * bn * written, tail=requested.each(family.tail)),
    )
