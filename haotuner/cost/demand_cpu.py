"""What the CPU dense micro-kernels ask of a core."""

from __future__ import annotations

import numpy as np

from haotuner.cost.demand import Asked, Column, Demand
from haotuner.microkernels.cpu_dense import K_BLOCK_LEAST_ROWS, k_block

_LINE_BYTES = 64.0  # every x86-64 and most Arm servers
_BROADCAST_REGISTERS = 1.0  # holds the value of X, or of W, that the current FMA uses
_PAGE_BYTES = 4096.0  # addresses this far apart fall into the same L1 set (64 sets of 64 bytes on every x86-64)
_LEAST_WAYS = 8.0  # of the L1 data caches of x86-64 servers, 8 or 12; a program feature cannot know the device's own
_STREAMS_OF_A_SET = 4.0  # measured: more weight streams than this, a page apart, fall to half speed

_NEXT_PANEL = 8.0  # pf under this is a number of row tiles, from this on of steps
_UNFETCHED = 1.1  # time of a cold weight stream without prefetch instructions; 1.0 to 1.3 measured over tiles of 1 to 8 rows
_SEVERAL_STREAMS = 1.07  # time of cold weights in several streams: measured 1.05 (AVX-512), 1.1 (AVX2), 1.13 (SSE)


def cpu_dense(asked: Asked) -> Demand:
    """``Y[m,n] = X[m,k] W[n,k]^T`` by an ``mr x nr`` register tile over packed panels ``[n/pw, k, pw]``.

    Loop order: panels outside, rows inside, so a panel comes from main memory once and from L2 for every further tile.
    Parameters: mr, nr, ku (k unroll), vl (fp32 lanes a vector); optional pw (packed width, divides nr; without it nr), pf
    (0; under 8: row tiles within which the next panel is fetched; else steps of k fetched ahead) and nt (columns computed of
    the last tile; without it all of them). Long sums over k come in parts.
    """
    mr, nr, vl = asked.param("mr"), asked.param("nr"), asked.param("vl")
    packed = asked.param("pw", np.nan)
    pw = np.where(np.isnan(packed), nr, packed)
    m, n, k = asked.extents["m"], asked.extents["n"], asked.extents["k"]
    size = float(asked.element_bytes)
    part = np.array([k_block(int(depth)) or depth for depth in np.unique(k)])[np.unique(k, return_inverse=True)[1]]
    block = np.where(m >= K_BLOCK_LEAST_ROWS, part, k)
    vectors = np.ceil(nr / np.minimum(vl, asked.device.wave_width))  # the compiler splits wider vectors
    accumulators = mr * vectors
    row_tiles, panels = np.ceil(m / mr), np.ceil(n / nr)
    tail = asked.param("nt", 0.0)
    columns = panels * nr - np.where(tail > 0, nr - tail, 0.0)
    weight = columns * k * size
    l2 = float(asked.device.l2_bytes or 0)
    panel = nr * block * size
    # X is read again for every panel; it comes from main memory only when all of it and one panel overflow L2 and L3
    caches = max(l2, float(asked.device.l3_bytes or 0))
    x_bytes = m * k * size
    far_x = np.where(x_bytes + panel <= caches, x_bytes, x_bytes * panels)
    far_w = weight if asked.cold else np.where(weight + x_bytes <= caches, 0.0, weight)
    ahead = asked.param("pf", 0.0)
    if asked.cold:  # the hardware's prefetchers alone stop at every page; fetching ahead by instruction does not
        far_w = far_w * np.where(ahead > 0, 1.0, _UNFETCHED) * np.where(nr > pw, _SEVERAL_STREAMS, 1.0)
    # Within a panel only the first row tile waits for memory; the others find it in L2, with nothing under way meanwhile.
    ahead_tiles = np.where((ahead > 0) & (ahead < _NEXT_PANEL), ahead, np.inf)
    behind = np.where(np.isfinite(ahead_tiles), np.minimum(row_tiles / ahead_tiles, 1.0), 1.0 / row_tiles)
    result = m * n * size * np.ceil(k / block) * np.where(block < k, 2.0, 1.0)  # partial sums are read back
    # a tile's weights come from L2 unless the panel still lies in L1 from the tile before
    l1 = float(asked.device.l1_bytes or 32 * 2**10)
    in_l1 = panel + mr * block * size <= l1
    sharing = np.ceil(mr * np.gcd((k * size).astype(np.int64), int(_PAGE_BYTES)) / _PAGE_BYTES)
    evicted = _evicted(sharing, l1)
    x_step = mr * size * (evicted * _LINE_BYTES / size + (1.0 - evicted) * size / _LINE_BYTES)  # a line a value, or shared
    weight_ways = np.where(np.mod(k * pw * size, _PAGE_BYTES) == 0, nr / pw / _STREAMS_OF_A_SET, 1.0)
    return Demand(
        rows=m,
        cols=n,
        depth=k,
        flops=2.0 * m * n * k,
        least_bytes=(m * k + n * k + m * n) * size,
        tile_rows=mr,
        tile_cols=nr,
        computed_cols=columns,
        wave_rows=mr,
        wave_cols=nr,
        threads=np.ones_like(m),
        waves=np.ones_like(m),
        vector=vl,
        unroll=asked.param("ku", 1.0),
        depth_block=block,
        streams=nr / pw + mr,
        # x86 FMAs take one operand from memory, but compilers keep in a register what several rows use
        registers=accumulators + np.where(mr > 1, vectors, 1.0) + _BROADCAST_REGISTERS,
        shared_bytes=np.zeros_like(m),
        fmas=accumulators,
        loads=vectors + mr,
        checks=np.zeros_like(m),
        near_bytes=(nr + mr) * size,
        mid_bytes=np.where(in_l1 & (row_tiles > 1), 0.0, nr * size) + x_step,
        code=asked.param("ku", 1.0) * (accumulators + vectors + mr),
        waits=np.zeros_like(m),
        far_bytes=far_x + far_w + result,
        behind=behind,
        l1_set_bytes=panel + mr * block * size,
        l2_set_bytes=panel + np.minimum(x_bytes, l2),
        staged_rows=np.zeros_like(m),
        staged_cols=np.ones_like(m),  # the weight is packed
        staging_rows=np.ones_like(m),
        staging_cols=np.ones_like(m),
        vector_cols=np.ones_like(m),
        line_ratio=np.ones_like(m),  # a panel is read in the order it is stored in
        bank_ways=np.maximum(np.maximum(weight_ways, (sharing + 1.0) / _LEAST_WAYS), 1.0),
        flags=np.log2(1.0 + ahead),
    )


def _evicted(sharing: Column, l1_bytes: float) -> Column:
    """Share of the values of X that come from L2, for ``sharing`` rows of a tile that start whole pages apart; 0..1.

    They lie in the same L1 sets. One way is taken by the weights; what does not fit into the others pushes the rest out. On
    Zen 4 (8 ways) n=k=1024 takes 1.1, 1.8 and 2.5 times as long with 8, 12 and 14 rows as k=1000, on Zen 5 (12) 1.2 with 14.
    """
    ways = max(l1_bytes // _PAGE_BYTES, 1.0)
    return np.clip((sharing + 1.0 - ways) / ways, 0.0, 1.0)
