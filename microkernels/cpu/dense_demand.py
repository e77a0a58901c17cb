"""Demand of the dense fp32 family for CPUs on a core, its constraints, and long sums in parts."""

from __future__ import annotations

import numpy as np

from haotuner.spec.constraint import ConstraintQuery, Laws, no_larger
from haotuner.spec.demand import Column, CpuStream, Demand, DemandQuery, MatmulTile, Staging, Tiles, Work

# From so many rows on the runtime computes a long sum over k in parts of about K_BLOCK terms, so that a weight panel of them
# stays in L2 while the rows pass. Cold, one Zen 5 core, best of three tiles: k=4096 m=32 from 212 to 235 GFLOP/s, m=256 from
# 210 to 230; k=3072 m=64 from 232 to 240; k=2048 and 2560 no gain; under 16 rows a loss where the weight is cold. Parts of
# 512 and 2048 terms were level or slower.
K_BLOCK = 1024
K_BLOCK_LEAST_K = 3072
K_BLOCK_LEAST_ROWS = 32


def k_block(k: int) -> int:
    """Terms of a part of the sum over k; 0 where it is not cut."""
    return -(-k // round(k / K_BLOCK)) if k >= K_BLOCK_LEAST_K else 0


# Reading more weight streams than this fell to half speed: with k a power of two they meet in the same L1 sets.
MAX_STREAMS = 4
# A longer unrolled body leaves the micro-op cache (Zen 5: 6K ops, Golden Cove: 4K) and gains nothing in loop overhead.
MAX_BODY_FMAS = 512
# One row or two are bound by memory, or by L3 where the weight lies there. Fetching each line (``pf`` from EVERY_LINE on)
# costs a quarter there and brings nothing from memory that one line of 512 bytes does not (Zen 4, decision 668).
FLAT, EVERY_LINE, SPARSE, SPARSE_BYTES = range(1, 3), 8, 1, 512
LEAST_VECTORS = 2


def _columns(q: ConstraintQuery) -> tuple[float, float] | None:
    lanes = q.kernel["vl"]
    return q.kernel["nr"], -(-q.op["n"] // lanes) * lanes


def _depth(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["ku"], q.op["k"]


def _streams(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["nr"] // q.kernel["pw"], MAX_STREAMS


def _prefetch(q: ConstraintQuery) -> tuple[float, float] | None:
    """Lines fetched by instruction, of the eight that 512 bytes have: of flat tiles at most one (decision 668)."""
    fetched = dict(q.kernel.params).get("pf", 0)
    if fetched == SPARSE:  # an unrolled group that is shorter would fetch more
        return SPARSE_BYTES / (q.kernel["ku"] * q.kernel["pw"] * 4), 1.0
    return (8.0 if fetched >= EVERY_LINE and q.kernel["mr"] in FLAT else 0.0), 1.0


def _sums(q: ConstraintQuery) -> tuple[float, float] | None:
    """A sum waits four cycles for itself, in which L3 has two vectors of the weight ready: one for each sum of a row."""
    lanes, rows = q.kernel["vl"], q.kernel["mr"]
    return min(LEAST_VECTORS, -(-q.op["n"] // lanes)), q.kernel["nr"] // lanes * (1 if rows in FLAT else rows)


def _body(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["mr"] * q.kernel["nr"] // q.kernel["vl"] * q.kernel["ku"], MAX_BODY_FMAS


# In the order they are asked; a point counts against the first law it breaks.
LAWS: Laws = (
    ("rows", no_larger("m")),
    ("columns", _columns),
    ("depth", _depth),
    ("streams", _streams),
    ("body", _body),
    ("prefetch", _prefetch),
    ("sums", _sums),
)


_LINE_BYTES = 64.0  # every x86-64 and most Arm servers
_BROADCAST_REGISTERS = 1.0  # holds the value of X, or of W, that the current FMA uses
_PAGE_BYTES = 4096.0  # addresses this far apart fall into the same L1 set (64 sets of 64 bytes on every x86-64)
_LEAST_WAYS = 8.0  # of the L1 data caches of x86-64 servers, 8 or 12; a program feature cannot know the device's own

# Of 16 address registers these are left for rows of X; further rows load theirs from the stack. Zen 4, AVX2, one vector: 7
# rows take 0.85 cycles each, 8 to 10 0.85, 12 to 14 1.0. Pairwise accuracy of the analysis is level from 5 to 9.
_ROW_POINTERS = 7.0
_BEFORE_FMA = {"x86-64-v2"}  # no fused multiply-add, no broadcast from memory, one operand is overwritten
_NEXT_PANEL = 8.0  # pf under this is a number of row tiles, from this on of steps


def demand(requested: DemandQuery) -> Demand:
    """``Y[m,n] = X[m,k] W[n,k]^T`` by an ``mr x nr`` register tile over packed panels ``[n/pw, k, pw]``.

    Loop order: panels outside, rows inside, so a panel comes from main memory once and from L2 for every further tile.
    Parameters: mr, nr, ku (k unroll), vl (fp32 lanes a vector); optional pw (packed width, divides nr; without it nr), pf
    (0; SPARSE; under 8: row tiles within which the next panel is fetched; else steps of k fetched ahead) and nt (columns
    computed of the last tile; without it all of them). Long sums over k come in parts.
    """
    mr, nr, vl = requested.param("mr"), requested.param("nr"), requested.param("vl")
    packed = requested.param("pw", np.nan)
    pw = np.where(np.isnan(packed), nr, packed)
    m, n, k = requested.extents["m"], requested.extents["n"], requested.extents["k"]
    size = float(requested.element_bytes)
    part = np.array([k_block(int(depth)) or depth for depth in np.unique(k)])[np.unique(k, return_inverse=True)[1]]
    block = np.where(m >= K_BLOCK_LEAST_ROWS, part, k)
    vectors = np.ceil(nr / np.minimum(vl, requested.device.wave_width))  # the compiler splits wider vectors
    accumulators = mr * vectors
    row_tiles, panels = np.ceil(m / mr), np.ceil(n / nr)
    before_fma = float(requested.device.arch in _BEFORE_FMA)
    tail = requested.param("nt", 0.0)
    columns = panels * nr - np.where(tail > 0, nr - tail, 0.0)
    weight = columns * k * size
    l2 = float(requested.device.l2_bytes or 0)
    panel = nr * block * size
    # X is read again for every panel; it comes from main memory only when all of it and one panel overflow L2 and L3
    caches = max(l2, float(requested.device.l3_bytes or 0))
    x_bytes = m * k * size
    far_x = np.where(x_bytes + panel <= caches, x_bytes, x_bytes * panels)
    far_w = weight if requested.cold else np.where(weight + x_bytes <= caches, 0.0, weight)
    # Within a panel only the first row tile waits for memory; the others find it in L2, with nothing under way meanwhile
    # but the next panel, where they fetch that.
    ahead = requested.param("pf", 0.0)
    # Lines that start the hardware's streams a page ahead bring the panel as those that fetch all of it.
    ahead = np.where(ahead == SPARSE, np.maximum(_PAGE_BYTES / (pw * size), _NEXT_PANEL), ahead)
    next_panel = (ahead > 0) & (ahead < _NEXT_PANEL)
    fetched = _fetched(ahead, requested.param("ku", 1.0) * nr * size)
    in_time = np.where(next_panel, np.minimum(row_tiles * fetched, 1.0), 0.0)
    cold = float(requested.cold)
    result = m * n * size * np.ceil(k / block) * np.where(block < k, 2.0, 1.0)  # partial sums are read back
    # a tile's weights come from L2 unless the panel still lies in L1 from the tile before
    l1 = float(requested.device.l1_bytes or 32 * 2**10)
    in_l1 = panel + mr * block * size <= l1
    sharing = np.ceil(mr * np.gcd((k * size).astype(np.int64), int(_PAGE_BYTES)) / _PAGE_BYTES)
    evicted = _evicted(sharing, l1)
    x_step = mr * size * (evicted * _LINE_BYTES / size + (1.0 - evicted) * size / _LINE_BYTES)  # a line a value, or shared
    weight_ways = np.where(np.mod(k * pw * size, _PAGE_BYTES) == 0, nr / pw / MAX_STREAMS, 1.0)
    unroll = requested.param("ku", 1.0)
    tiles = row_tiles * (columns / nr)
    near, mid = (nr + mr) * size, np.where(in_l1 & (row_tiles > 1), 0.0, nr * size) + x_step
    zero, item = np.zeros_like(m), np.ones_like(m)
    return Demand(
        work=Work(
            flops={"simd": 2.0 * m * n * k},
            least_bytes=(m * k + n * k + m * n) * size,
            far_bytes=far_x + far_w + result,
            mid_bytes=mid * k * tiles,
            near_bytes=near * k * tiles,
        ),
        tiles=Tiles(
            count=tiles,
            threads=item,
            waves=item,
            vector=vl,
            # x86 FMAs take one operand from memory, but compilers keep in a register what several rows use
            registers=accumulators + np.where(mr > 1, vectors, 1.0) + _BROADCAST_REGISTERS + before_fma * (vectors > 1),
            shared_bytes=zero,
            l1_set_bytes=panel + mr * block * size,
            l2_set_bytes=panel + np.minimum(x_bytes, l2),
        ),
        matmul=MatmulTile(
            rows=m,
            cols=n,
            depth=k,
            tile_rows=mr,
            tile_cols=nr,
            computed_cols=columns,
            wave_rows=mr,
            wave_cols=nr,
            unroll=unroll,
            depth_block=block,
            streams=nr / pw + mr,
            fmas=accumulators,
            tensor_fmas=zero,
            loads=vectors + mr + np.maximum(mr - _ROW_POINTERS, 0.0),
            # a shuffle spreads a value of X; a factor is copied, the sum apart
            checks=before_fma * (mr + 2.0 * accumulators),
            near_bytes=near,
            mid_bytes=mid,
            code=unroll * (accumulators + vectors + mr),
            line_ratio=item,  # a panel is read in the order it is stored in
            bank_ways=np.maximum(np.maximum(weight_ways, (sharing + 1.0) / _LEAST_WAYS), 1.0),
            flags=np.log2(1.0 + ahead),
        ),
        # the weight is packed
        staging=Staging(rows=zero, cols=item, row_threads=item, col_threads=item, vector_cols=item, waits=zero),
        stream=CpuStream(
            passes=row_tiles,
            brought=np.where(next_panel, fetched, 0.0),
            new_pages=cold * (1.0 - in_time) * weight / _PAGE_BYTES,
            # One stream goes on where its panel ends; where part of the next was fetched already, it begins behind that.
            new_streams=cold
            * panels
            * ((1.0 - in_time) * np.where(nr > pw, nr / pw, 0.0) + ((in_time > 0) & (in_time < 1))),
            fetched=fetched,
            ahead_lines=np.where(next_panel, block, ahead) * nr * size / _LINE_BYTES,
            ahead_steps=np.where(next_panel, 0.0, ahead),
        ),
    )


def _fetched(ahead: Column, group_bytes: Column) -> Column:
    """Share of a panel that one row tile fetches by instruction, of the next panel or of its own; 0..1.

    A group of unrolled steps, which reads ``group_bytes`` of weights, fetches whole lines of the next panel; where it reads
    less than a few lines itself, one tile has fetched all of it long before the tiles named in ``pf`` have passed.
    """
    lines = np.ceil(group_bytes / (_LINE_BYTES * np.maximum(ahead, 1.0)))
    of_next = np.minimum(lines * _LINE_BYTES / group_bytes, 1.0)
    return np.where(ahead >= _NEXT_PANEL, 1.0, np.where(ahead > 0, of_next, 0.0))


def _evicted(sharing: Column, l1_bytes: float) -> Column:
    """Share of the values of X that come from L2, for ``sharing`` rows of a tile that start whole pages apart; 0..1.

    They lie in the same L1 sets. One way is taken by the weights; what does not fit into the others pushes the rest out. On
    Zen 4 (8 ways) n=k=1024 takes 1.1, 1.8 and 2.5 times as long with 8, 12 and 14 rows as k=1000, on Zen 5 (12) 1.2 with 14.
    """
    ways = max(l1_bytes // _PAGE_BYTES, 1.0)
    return np.clip((sharing + 1.0 - ways) / ways, 0.0, 1.0)
