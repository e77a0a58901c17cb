"""Demand of a direct 2-D convolution on a GPU, from the code of its unrolled filter taps.

Found in the records of Kernel Tuner's convolution on two RDNA and three NVIDIA GPUs and explained by what the source asks:

- where whole blocks cover the image there is no bounds check, and an image value that several outputs of a thread use is
  loaded once. Otherwise reads of the image are checked one by one and none is shared. LLVM (HIP) checks staged reads too.
- a value that is loaded once has to be kept until its last use. LLVM does so whatever it costs, nvcc only for reads through
  the read-only cache; what does not fit into registers is spilled.

The kernel is the one of Kernel Tuner's examples (van Werkhoven 2014): a thread's outputs lie a block apart, taps are
unrolled, so image values that several of its outputs use are loaded once where the block is narrower than the filter.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from haotuner.hw_profiles.typical import typical
from haotuner.microkernels.cuda.dense_demand import (
    BANKS,
    BOOKKEEPING_REGISTERS,
    SECTOR_BYTES,
    for_each_kind,
    round_of_tiles,
    waves_of,
)
from haotuner.spec.demand import Column, CpuStream, Demand, DemandQuery, MatmulTile, Staging, Tiles, Work
from haotuner.spec.device import Device

# Instructions of one checked read beside the read: nvcc compares row and column into a predicate; LLVM compares twice, saves
# the mask of lanes, branches, waits for the value and restores the mask.
CHECKED_READ_NVCC, CHECKED_READ_LLVM = 2.0, 6.0
UNROLLED_INSTRUCTIONS = 16384.0  # LLVM's -pragma-unroll-threshold: what would be longer is not unrolled at all
# Accesses of a multiply-add whose image value was spilled; 0.5 and 2 rank the two RDNA GPUs' kernels as well within 0.01.
SPILLED_READ = 1.0
_RDNA_WAVE = 32  # lanes; CDNA and GCN have 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Columns of shape ``(rows,)``; instructions are those of one thread in one step, a filter tap."""

    read: Column  # image values one thread reads over all taps, where only the source decides
    loads: Column  # loads of image values, those of spilled values included
    checks: Column  # instructions that check bounds
    spilled: Column  # accesses to values that were spilled
    unrolled: Column  # taps unrolled; 1 where the compiler gives up


def compiled(
    device: Device,
    *,
    outputs: tuple[Column, Column],
    apart: tuple[Column, Column],
    filter_size: tuple[Column, Column],
    exact: Column,
    staged: Column,
    read_only: Column,
) -> Compiled:
    """Instructions that one thread executes in a step.

    Pairs are rows and columns: outputs of a thread, their distance, filter. ``exact`` is 1 where whole blocks cover the
    image, ``staged`` where it is read from shared memory, ``read_only`` where it is read through the read-only cache.
    """
    (ty, tx), (by, bx), (fh, fw) = outputs, apart, filter_size
    taps, every = fh * fw, ty * tx
    shared = distinct(ty, by, fh) * distinct(tx, bx, fw)
    llvm = typical(device).compiler == "llvm"
    checked = 1.0 - exact if llvm else (1.0 - exact) * (1.0 - staged)
    selected = kept_values(ty, by, fh) * distinct(tx, bx, fw) + ty * kept_values(tx, bx, fw)
    keeps = 1.0 - checked if llvm else (1.0 - checked) * read_only * (1.0 - staged)
    room = np.maximum(registers_of_a_thread(device) - every - BOOKKEEPING_REGISTERS, 0.0)
    spilled = SPILLED_READ * every * keeps * np.maximum(1.0 - room / np.maximum(selected, 1.0), 0.0)
    loads = np.where(checked > 0, every, shared / taps) + spilled
    checks = checked * every * (CHECKED_READ_LLVM if llvm else CHECKED_READ_NVCC)
    too_long = llvm & (checked > 0) & (taps * (every + loads + checks) > UNROLLED_INSTRUCTIONS)
    return Compiled(
        read=np.where((exact > 0) | (staged > 0), shared, every * taps),
        loads=loads,
        checks=checks,
        spilled=spilled,
        unrolled=np.where(too_long, 1.0, taps),
    )


def registers_of_a_thread(device: Device) -> float:
    """32-bit registers that a kernel without launch bounds may use.

    LLVM then leaves room for the largest block there is, on RDNA (waves of 32) on the two compute units of a work-group
    processor: 128 on RDNA 2, 192 on RDNA 3, where the records of both begin to be slow; 128 on CDNA 2, of which there were
    no records. nvcc takes the architectural limit.
    """
    most = float(device.registers_per_thread)
    if typical(device).compiler != "llvm" or not device.registers_per_unit or not device.threads_per_block:
        return most
    units = 2.0 if device.wave_width <= _RDNA_WAVE else 1.0
    return min(most, units * device.registers_per_unit / device.threads_per_block)


def distinct(outputs: Column, apart: Column, taps: Column) -> Column:
    """Values along one axis that a thread reads for ``outputs`` outputs ``apart`` from each other under ``taps`` taps."""
    return np.where(apart < taps, (outputs - 1.0) * apart + taps, outputs * taps)


def kept_values(outputs: Column, apart: Column, taps: Column) -> Column:
    """Most values along one axis that are loaded before some tap and used again at it or later."""
    return for_each_kind(_kept, outputs, apart, taps)


def _kept(outputs: int, apart: int, taps: int) -> int:
    at = np.add.outer(np.arange(outputs) * apart, np.arange(taps))  # value that an output uses at a tap
    tap = np.broadcast_to(np.arange(taps), at.shape)
    first, last = np.full(at.max() + 1, taps), np.full(at.max() + 1, -1)
    np.minimum.at(first, at, tap)
    np.maximum.at(last, at, tap)
    return max(int(((first < now) & (now <= last)).sum()) for now in range(taps))


def conv2d(requested: DemandQuery) -> Demand:
    """Parameters: bx, by threads; tx, ty outputs a thread; fh, fw filter; ro, pad, sh, cm switches.

    ``ro``: image read through the read-only cache; ``pad``: shared rows padded against bank conflicts; ``sh``: image
    staged in shared memory; ``cm``: filter in constant memory.
    """
    bx, by, tx, ty = (requested.param(name) for name in ("bx", "by", "tx", "ty"))
    fh, fw = requested.param("fh"), requested.param("fw")
    ro, pad = requested.param("ro"), requested.param("pad")
    shared_on, constant = requested.param("sh", 1.0), requested.param("cm", 1.0)
    h, w = requested.extents["h"], requested.extents["w"]
    size, device = float(requested.element_bytes), requested.device
    taps = fh * fw
    threads = bx * by
    waves = waves_of(threads, device)
    box_rows, box_cols = by * ty, bx * tx
    needed_rows, needed_cols = box_rows + fh - 1.0, box_cols + fw - 1.0
    row_words = np.where(pad > 0, needed_cols + np.mod(bx - needed_cols, BANKS), needed_cols)
    shared = shared_on * needed_rows * row_words * size
    code = compiled(
        device,
        outputs=(ty, tx),
        apart=(by, bx),
        filter_size=(fh, fw),
        exact=((np.mod(h, box_rows) == 0) & (np.mod(w, box_cols) == 0)).astype(np.float64),
        staged=shared_on,
        read_only=ro,
    )
    of_filter = np.where(constant > 0, 0.0, 1.0)
    ways = np.where(shared_on > 0, bank_ways(bx, row_words, threads, device.wave_width), 1.0)
    lines = np.ceil(device.wave_width / bx) * np.maximum(np.minimum(bx, device.wave_width) / BANKS, 0.25)
    apart = np.where(shared_on > 0, 1.0, np.maximum(lines, 1.0))
    tiles_across, tiles = np.ceil(w / box_cols), np.ceil(w / box_cols) * np.ceil(h / box_rows)
    image = needed_rows * needed_cols * size  # of one tile
    together = round_of_tiles(device, threads, shared, tiles)
    band = np.ceil(together / tiles_across) * box_rows + fh - 1.0  # rows of the image that a round of tiles reads
    rounds = tiles / together
    near = waves * (code.read / taps + of_filter) * BANKS * size * apart
    mid = image / taps + code.spilled * waves * device.wave_width * size
    item = np.ones_like(h)
    return Demand(
        work=Work(
            flops={"simd": 2.0 * h * w * taps},
            least_bytes=2.0 * h * w * size,
            far_bytes=rounds * np.minimum(band, h) * np.minimum(w, together * box_cols) * size + h * w * size,
            mid_bytes=mid * taps * tiles,
            near_bytes=near * taps * tiles,
        ),
        tiles=Tiles(
            count=tiles,
            threads=threads,
            waves=waves,
            vector=item,
            registers=tx * ty + np.minimum(code.read / fh, 4.0 * tx * ty) + BOOKKEEPING_REGISTERS,
            shared_bytes=shared,
            l1_set_bytes=(1.0 - shared_on) * image,
            l2_set_bytes=together * image,
        ),
        matmul=MatmulTile(
            rows=h,
            cols=w,
            depth=taps,
            tile_rows=box_rows,
            tile_cols=box_cols,
            computed_cols=np.ceil(w / box_cols) * box_cols,
            wave_rows=ty,
            wave_cols=tx,
            unroll=taps,
            depth_block=taps,
            streams=np.ceil(BANKS / bx),  # image rows that 32 threads side by side read, whatever the width of a wave
            fmas=tx * ty,
            tensor_fmas=np.zeros_like(h),
            loads=code.loads + of_filter,
            checks=code.checks,
            near_bytes=near,
            mid_bytes=mid,
            code=code.unrolled * (tx * ty + code.loads + of_filter + code.checks),
            line_ratio=np.minimum(bx * size / (np.ceil(bx * size / SECTOR_BYTES) * SECTOR_BYTES), 1.0),
            bank_ways=ways,
            flags=ro + 2.0 * pad,
        ),
        staging=Staging(
            rows=shared_on,
            cols=constant,
            row_threads=np.where(shared_on > 0, bx, 1.0),
            col_threads=item,
            vector_cols=item,
            waits=shared_on * np.ceil(needed_rows / by) * np.ceil(needed_cols / bx),
        ),
        stream=CpuStream.none(h),
    )


def bank_ways(bx: Column, row_words: Column, threads: Column, wave_width: int) -> Column:
    """Ways of the worst bank conflict among the first waves of a block that reads one word a thread, rows apart."""
    ways = partial(_ways, wave_width=wave_width)
    return for_each_kind(ways, bx, np.mod(row_words, BANKS), np.minimum(threads, 3.0 * wave_width))


def _ways(bx: int, row_words: int, threads: int, wave_width: int) -> int:
    worst = 1
    for first in range(0, threads, wave_width):
        lanes: NDArray[np.int64] = np.arange(first, min(first + wave_width, threads))
        banks = (lanes // bx * row_words + lanes % bx) % int(BANKS)
        worst = max(worst, int(np.bincount(banks).max()))
    return worst
