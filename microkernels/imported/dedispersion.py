"""Demand of a dedispersion on a GPU: a block sums shifted samples over all channels for a box of DMs and samples.

The kernel is AMBER's, as tuned with Kernel Tuner (Sclocco 2016; van Werkhoven's benchmark set): one thread adds, channel by
channel, one byte a DM and sample, read ``DM x shift`` samples further on. Neighbouring DMs read nearly the same bytes, so
main memory is asked for little and the caches next to the units for all.
"""

from __future__ import annotations

import numpy as np

from haotuner.microkernels.cuda.dense_demand import BANKS, BOOKKEEPING_REGISTERS, SECTOR_BYTES, round_of_tiles, waves_of
from haotuner.spec.demand import Column, CpuStream, Demand, DemandQuery, MatmulTile, Staging, Tiles, Work

# Samples by which the next DM reads further on, a mean over channels: 4148.808 (1/f^2 - 1/f_max^2) / 40.96 us x 0.02, with
# 1536 channels of 0.195 MHz from 1425 MHz up (AutoTuningAssociation/benchmark_hub, kernels/dedisp_milo).
SHIFT_OF_A_DM = 0.14
# What a wave's load of scattered bytes keeps L1 busy for, as bytes of whole lines: 128 a cycle. Every address is looked up,
# and every sector found sends a line. The three GPUs at hand take 3.6 to 4.5 cycles a load at best.
LOOKED_UP_BYTES, SENT_BYTES = 256.0, 128.0
# Instructions beside the load and the addition: a shift is multiplied, made an integer and added; a byte becomes a float.
OF_A_SHIFT, OF_A_BYTE = 3.0, 1.0
UNROLLED_LOADS = 16.0  # that a loop left to the compiler is unrolled to: bounded by the size of its body, not by a count


def dedispersion(requested: DemandQuery) -> Demand:
    """Parameters: bx, by threads along samples and DMs; tx, ty outputs a thread; sx, sy strided; un channels unrolled.

    ``sx``: 1 where a thread's samples lie a block apart and its neighbours' are adjacent, 0 the other way round; ``sy``
    says so of its DMs. ``un`` 0 leaves unrolling to the compiler. Extents: s samples, d DMs, c channels.
    """
    bx, by, tx, ty = (requested.param(name) for name in ("bx", "by", "tx", "ty"))
    sx, sy, un = requested.param("sx"), requested.param("sy"), requested.param("un", 0.0)
    samples, dms, channels = (requested.extents[axis] for axis in "sdc")
    device, item = requested.device, np.ones_like(bx)
    threads, box_dms, box_samples = bx * by, by * ty, bx * tx
    waves, tiles_across = waves_of(threads, device), np.ceil(samples / box_samples)
    tiles = tiles_across * np.ceil(dms / box_dms)
    together = round_of_tiles(device, threads, 0.0 * item, tiles)
    across = np.minimum(bx, device.wave_width)  # lanes of a wave side by side along samples
    down = np.minimum(by, np.maximum(device.wave_width / across, 1.0))
    lane_apart = np.where(sx > 0, item, tx), np.where(sy > 0, item, ty) * SHIFT_OF_A_DM
    sectors = _sectors((across - 1.0) * lane_apart[0] + (down - 1.0) * lane_apart[1] + 1.0)  # of one load of a wave
    span = box_samples + box_dms * SHIFT_OF_A_DM  # bytes a tile reads of one channel
    wide = np.minimum(together, tiles_across) * box_samples  # the grid runs along samples first
    high = np.ceil(together / tiles_across) * box_dms * SHIFT_OF_A_DM
    of_round, written = wide + high, dms * samples * 4.0
    near = waves * tx * ty * (LOOKED_UP_BYTES + sectors * SENT_BYTES)
    unroll = np.where(un > 0, un, np.maximum(UNROLLED_LOADS / (tx * ty), 1.0))
    checks = ty * OF_A_SHIFT + tx * ty * OF_A_BYTE
    return Demand(
        work=Work(
            flops={"simd": 2.0 * samples * dms * channels},  # an addition takes the place of a multiply-add
            least_bytes=channels * samples + written,
            far_bytes=tiles / together * of_round * channels + written,
            mid_bytes=span * channels * tiles,
            near_bytes=near * channels * tiles,
        ),
        tiles=Tiles(
            count=tiles,
            threads=threads,
            waves=waves,
            vector=item,
            registers=tx * ty + ty + BOOKKEEPING_REGISTERS,
            shared_bytes=0.0 * item,
            l1_set_bytes=span * unroll,
            l2_set_bytes=of_round * unroll,
        ),
        matmul=MatmulTile(
            rows=dms,
            cols=samples,
            depth=channels,
            tile_rows=box_dms,
            tile_cols=box_samples,
            computed_cols=tiles_across * box_samples,
            wave_rows=ty,
            wave_cols=tx,
            unroll=unroll,
            depth_block=unroll,
            streams=np.ceil(BANKS / bx),  # DMs that 32 threads side by side read, whatever the width of a wave
            fmas=tx * ty,
            tensor_fmas=0.0 * item,
            loads=tx * ty,  # the channel's shift is the same for all lanes: a scalar or a broadcast
            checks=checks,
            near_bytes=near,
            mid_bytes=span,
            code=unroll * (2.0 * tx * ty + checks),
            line_ratio=span / (_sectors(span) * SECTOR_BYTES),
            bank_ways=item,
            flags=sx + 2.0 * sy,
        ),
        staging=Staging(
            rows=0.0 * item, cols=0.0 * item, row_threads=item, col_threads=item, vector_cols=item, waits=0.0 * item
        ),
        stream=CpuStream.none(item),
    )


def _sectors(span: Column) -> Column:
    """Sectors that so many adjacent bytes touch, wherever they begin."""
    return np.asarray(1.0 + (span - 1.0) / SECTOR_BYTES, dtype=np.float64)
