"""Demand of a direct 2-D convolution on a GPU: a thread block computes a box of the image, filter taps are the steps.

The kernel is the one of Kernel Tuner's examples (van Werkhoven 2014): a thread's outputs lie a block apart, taps are
unrolled, so image values that several of its outputs use are loaded once where the block is narrower than the filter.
"""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray

from haotuner.microkernels.cuda.tiles import (
    BANKS,
    BOOKKEEPING_REGISTERS,
    SECTOR_BYTES,
    for_each_kind,
    round_of_tiles,
    waves_of,
)
from haotuner.microkernels.imported.conv2d_code import compiled
from haotuner.spec.demand import Column, CpuStream, Demand, DemandQuery, MatmulTile, Staging, Tiles, Work


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
