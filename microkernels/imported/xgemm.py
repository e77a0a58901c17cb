"""Demand of CLBlast's Xgemm on a GPU: an MWG x NWG tile by MDIMC x NDIMC threads (Nugteren 2018, section 4)."""

from __future__ import annotations

import numpy as np

from haotuner.microkernels.cuda.dense_demand import (
    BANKS,
    BOOKKEEPING_REGISTERS,
    WIDEST_LOAD,
    round_of_tiles,
    strided_ways,
    used_of_sector,
    waves_of,
)
from haotuner.spec.demand import CpuStream, Demand, DemandQuery, MatmulTile, Staging, Tiles, Work


def xgemm(requested: DemandQuery) -> Demand:
    """Parameters in lower case as CLBlast names them; those that a kernel does not use are neutral (MDIMA when SA is 0)."""
    mwg, nwg, kwg, kwi = (requested.param(name) for name in ("mwg", "nwg", "kwg", "kwi"))
    mdimc, ndimc, vwm, vwn = (requested.param(name) for name in ("mdimc", "ndimc", "vwm", "vwn"))
    sa, sb, strm, strn = (requested.param(name) for name in ("sa", "sb", "strm", "strn"))
    m, n, k = (requested.extents[axis] for axis in ("m", "n", "k"))
    size, device = float(requested.element_bytes), requested.device
    rows, cols = mwg / mdimc, nwg / ndimc  # of one thread
    threads = mdimc * ndimc
    waves = waves_of(threads, device)
    across = np.minimum(mdimc, device.wave_width)  # lanes of a wave side by side along m
    down = np.maximum(device.wave_width / across, 1.0)  # and along n
    wide_m, wide_n = np.minimum(vwm, WIDEST_LOAD), np.minimum(vwn, WIDEST_LOAD)
    load_m, load_n = rows / np.minimum(wide_m, rows), cols / np.minimum(wide_n, cols)
    # without STRM a thread's elements are adjacent and its neighbour's are `rows` away; with it they alternate
    stride_m, stride_n = np.where(strm > 0, vwm, rows), np.where(strn > 0, vwn, cols)
    ways_m, ways_n = strided_ways(across, stride_m, wide_m), strided_ways(down, stride_n, wide_n)
    words_m = load_m * np.maximum(across * wide_m / BANKS, 1.0)  # cycles of 32 words, at least one an instruction
    words_n = load_n * np.maximum(down * wide_n / BANKS, 1.0)
    shared = (sa * mwg + sb * nwg) * kwg * size
    tiles_m, tiles = np.ceil(m / mwg), np.ceil(m / mwg) * np.ceil(n / nwg)
    together = round_of_tiles(device, threads, shared, tiles)
    wide = np.minimum(together, tiles_m) * mwg  # CLBlast's grid runs along m first
    high = np.ceil(together / tiles_m) * nwg
    staging_m, staging_n = requested.param("mdima"), requested.param("ndimb")
    # a staged operand is fetched by other threads than those that use it
    fetch_m = np.where(sa > 0, np.where(strm > 0, vwm, mwg / staging_m), stride_m)
    fetch_n = np.where(sb > 0, np.where(strn > 0, vwn, nwg / staging_n), stride_n)
    line = used_of_sector(vwm, fetch_m, size) * mwg + used_of_sector(vwn, fetch_n, size) * nwg
    near, mid = waves * BANKS * size * (words_m * ways_m + words_n * ways_n), (mwg + nwg) * size
    return Demand(
        work=Work(
            flops={"simd": 2.0 * m * n * k},
            least_bytes=(m * k + n * k + m * n) * size,
            far_bytes=tiles / together * (wide + high) * k * size + m * n * size,
            mid_bytes=mid * k * tiles,
            near_bytes=near * k * tiles,
        ),
        tiles=Tiles(
            count=tiles,
            threads=threads,
            waves=waves,
            vector=vwm,
            registers=rows * cols + rows + cols + BOOKKEEPING_REGISTERS,
            shared_bytes=shared,
            l1_set_bytes=((1.0 - sa) * mwg + (1.0 - sb) * nwg) * kwg * size,
            l2_set_bytes=(wide + high) * kwg * size,
        ),
        matmul=MatmulTile(
            rows=m,
            cols=n,
            depth=k,
            tile_rows=mwg,
            tile_cols=nwg,
            computed_cols=np.ceil(n / nwg) * nwg,
            wave_rows=rows,
            wave_cols=cols,
            unroll=kwi,
            depth_block=np.where(sa + sb > 0, kwg, kwi),
            streams=2.0 - sa * 0.5 - sb * 0.5,
            fmas=rows * cols,
            tensor_fmas=np.zeros_like(m),
            loads=load_m + load_n,
            checks=np.zeros_like(m),
            near_bytes=near,
            mid_bytes=mid,
            code=kwi * (rows * cols + load_m + load_n),
            line_ratio=line / (mwg + nwg),
            bank_ways=np.maximum(ways_m, ways_n),
            flags=strm + 2.0 * strn,
        ),
        staging=Staging(
            rows=sa,
            cols=sb,
            row_threads=np.where(sa > 0, staging_m, 1.0),
            col_threads=np.where(sb > 0, staging_n, 1.0),
            vector_cols=vwn,
            waits=np.zeros_like(m),
        ),
        stream=CpuStream.none(m),
    )
