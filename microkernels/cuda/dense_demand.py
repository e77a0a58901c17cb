"""Demand of the CUDA dense families: what their thread blocks ask of a GPU, and their constraints.

Constraints of CUDA dense families, beyond every family's (FTuner's hardware filters): whole memory transactions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from haotuner.hw_profiles.typical import typical
from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.demand import Column, CpuStream, Demand, DemandQuery, MatmulTile, Ring, Staging, Tiles, Work
from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint, MicroKernel
from haotuner.spec.occupancy import Room

BANKS = 32.0  # shared-memory banks of 4 bytes on every CUDA and RDNA device
WIDEST_LOAD = 4.0  # fp32 elements of a 16-byte load, the widest instruction
# Registers beside accumulators and operands: addresses, counters, constants. Compilers report 20 to 40 for such loops.
BOOKKEEPING_REGISTERS = 28.0


def waves_of(threads: Column, device: Device) -> Column:
    """Waves of a tile, the last one perhaps partly idle."""
    return np.ceil(threads / device.wave_width)


def strided_ways(lanes: Column, stride: Column, vector: Column) -> Column:
    """Times a shared-memory load is repeated when ``lanes`` threads read ``vector`` words every ``stride`` words; >= 1.

    Words of one lane are adjacent and use different banks, so a vector load counts per word (CUDA guide, shared memory).
    """
    common = np.gcd(stride.astype(np.int64), int(BANKS)).astype(np.float64)
    deepest = np.ceil(lanes * common / BANKS)
    return np.asarray(np.maximum(deepest / vector, 1.0), dtype=np.float64)


def round_of_tiles(device: Device, threads: Column, shared_bytes: Column, tiles: Column) -> Column:
    """Tiles that run at the same time on the whole device, by threads and shared memory alone."""
    usual = typical(device)
    room = Room(threads=device.threads_per_unit or usual.threads_per_unit, shared_bytes=device.l1_bytes or usual.l1_bytes)
    item = np.maximum(threads, 1.0)
    stored = room.holds(threads=item, registers=item, shared_bytes=np.maximum(shared_bytes, 1.0))
    fits = np.minimum(stored["threads"], stored["shared"])
    return np.asarray(np.minimum(device.compute_units * np.maximum(fits, 1.0), tiles), dtype=np.float64)


def for_each_kind(of: Callable[..., float], *columns: Column) -> Column:
    """``of`` of the whole numbers in each row, asked once for every distinct row; many kernels differ in few of them."""
    whole = [column.astype(np.int64) for column in columns]
    key = np.zeros_like(whole[0])
    for column in whole:  # one number a row sorts many times faster than rows do
        key = key * (column.max() + 1) + column
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    return np.array([of(*(int(column[at]) for column in whole)) for at in first.tolist()], dtype=np.float64)[where]


def used_of_sector(vector: Column, stride: Column, size: float) -> Column:
    """Share of each sector that one load uses when neighbours read ``vector`` elements every ``stride``; 0..1."""
    whole = SECTOR_BYTES / size
    share = vector / np.minimum(np.maximum(stride, vector), whole)
    return np.asarray(np.minimum(share, 1.0), dtype=np.float64)


SECTOR_BYTES = 32  # least that an L2 or the memory hands over, on NVIDIA and AMD alike
WASTED_SECTORS = 0.4  # share of fetched bytes that nobody uses; a 32-byte piece of a row off 32 bytes wastes half
# Elements of a warp's tile of mma.sync where wgmma computes the op as well. Larger ones are for products that tensor cores
# bound, and there wgmma has 1.6 times the rate (Luo et al., arXiv 2402.13499); smaller tiles may hide a latency better.
WARP_TILE_BESIDE_WGMMA = 32 * 32
# HMMAs that a large tile of a warp has in a step of k, for each address that a thread copies to or from; with fewer, each
# has more than three instructions of the loop. A long step may have more addresses; where operands begin in registers, in
# all kinds beside dense, no other will do.
LARGE_WARP_TILE, HMMAS_AN_ADDRESS, LONG_STEP = 64 * 32, 3.5, 64
COPY_BYTES, SWIZZLED_ROWS = 16, 8  # of a copy; the swizzle is the same again
MMA_BYTES = 32  # of k that one instruction multiplies
# Tiles no larger than this are let in however small the op or its traffic: the least that every family can make.
SMALL_TILE = 64


def _coalescing(q: ConstraintQuery) -> tuple[float, float] | None:
    """A block fetches ``bk`` neighbours of each row of X; rows that do not start on a sector touch one more."""
    size = DTYPE_BYTES[q.op.dtype]
    static = dict(q.op.static)
    used = q.kernel["bk"] * size
    aligned = "k" in static and static["k"] * size % SECTOR_BYTES == 0
    sectors = -(-used // SECTOR_BYTES) + (0 if aligned else 1)
    return 1.0 - used / (sectors * SECTOR_BYTES), WASTED_SECTORS


def _extent(q: ConstraintQuery, axis: str) -> int:
    """Of an axis, or the largest there will be."""
    return dict(q.op.static).get(axis) or q.most[axis]


def _rows(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.tile.extent["m"], max(SMALL_TILE, _extent(q, "m"))


def _columns(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["bn"], max(SMALL_TILE, _extent(q, "n"))


def _elements(kernel: MicroKernel) -> int:
    """Of Y, of one warp."""
    return kernel["bm"] // kernel["wm"] * (kernel["bn"] // kernel["wn"])


def _warp_tile(q: ConstraintQuery) -> tuple[float, float] | None:
    return _elements(q.kernel), WARP_TILE_BESIDE_WGMMA


def _step(q: ConstraintQuery) -> tuple[float, float] | None:
    """An HMMA makes 16 by 8 elements of 16 of k; of W (k, n) a copy may reach rows of half a swizzle, with two addresses."""
    kernel, tile, size = q.kernel, _elements(q.kernel), DTYPE_BYTES[q.op.dtype]
    hmmas = tile // 128 * (kernel["bk"] * size // MMA_BYTES)
    least = 0 if q.op.kind == "dense" else LONG_STEP
    if tile < LARGE_WARP_TILE or (hmmas >= LONG_STEP and not least):
        return None
    at_once = q.footprint.threads * COPY_BYTES // size
    addresses = (kernel["bm"] + kernel["bn"]) * kernel["bk"] // at_once + (
        kernel["kn"] and at_once < kernel["bn"] * SWIZZLED_ROWS
    )
    return max(least, HMMAS_AN_ADDRESS * addresses), hmmas


# In the order they are asked; a point counts against the first law it breaks.
LAWS: Laws = (
    ("coalescing", _coalescing),
    ("rows", _rows),
    ("columns", _columns),
)
MMA_LAWS: Laws = (*LAWS, ("step", _step))
BESIDE_WGMMA: Laws = (("warp tile", _warp_tile),)


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
