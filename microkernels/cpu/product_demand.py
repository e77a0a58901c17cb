"""Demand of the batch_matmul family for CPUs on a core."""

from __future__ import annotations

import numpy as np

from haotuner.spec.demand import CpuStream, Demand, DemandQuery, MatmulTile, Staging, Tiles, Work

_LINE_BYTES = 64.0  # every x86-64 and most Arm servers
_BROADCAST_REGISTERS = 1.0  # holds the value of X that the current FMA uses
_MOST_TERMS = 1024.0  # of a block, as native/kinds/product_run.c has it
MOST_ROWS = 14  # of a tile: with two vectors they fill 32 registers; the runtime's table of programs is as large
_ROWS = 128.0  # that pass over a block of W before the next, as there
_ROW_POINTERS = 7.0  # of 16 address registers; further rows of X load theirs from the stack (dense_demand.py)


def demand(requested: DemandQuery, *, taller: bool = True) -> Demand:
    """``Y[b,m,n] = X[b,m,k] W[b,k,n]`` by register tiles of at most ``mr`` x ``nv * vl`` over blocks of W, packed or not.

    ``taller``: narrower groups of columns are computed by taller tiles, of as many sums; else by tiles of ``mr`` rows.

    Loop order of a matrix: columns, blocks of k, blocks of rows, groups of columns, tiles of rows; outputs larger than L2
    have the last two the other way round, which is not priced.
    """
    mr, vl = requested.param("mr"), requested.param("vl")
    packs, across = np.maximum(requested.param("pk"), requested.param("wk")), requested.param("xk")
    b, m, n, k = (requested.extents[axis] for axis in ("b", "m", "n", "k"))
    size = float(requested.element_bytes)
    required = requested.param("kb")
    block = np.minimum(np.where(required > 0, required, _MOST_TERMS), np.maximum(k, 1.0))
    units = np.ceil(n / vl)
    groups = np.ceil(units / requested.param("nv"))
    vectors = units / groups  # even tiles
    tall = np.minimum(MOST_ROWS, np.floor(mr * requested.param("nv") / np.ceil(vectors))) if taller else mr
    row_tiles = np.ceil(m / tall)
    rows = m / row_tiles
    width = vectors * vl
    tiles = b * row_tiles * groups
    blocks = np.ceil(k / block)
    columns = units * vl
    w_bytes, x_bytes, y_bytes = n * k * size, m * k * size, m * n * size
    copied = packs * columns * k * size * 2.0  # read and written once for every matrix
    panel = width * block * size
    l1 = float(requested.device.l1_bytes or 32 * 2**10)
    in_l1 = panel + rows * block * size <= l1
    far = float(requested.cold) * b * (w_bytes + x_bytes) + b * y_bytes
    near, mid = (
        (rows + width) * size,
        np.where(in_l1 & (row_tiles > 1), 0.0, width * size) + rows * size * size / _LINE_BYTES,
    )
    zero, item = np.zeros_like(m), np.ones_like(m)
    sums = rows * vectors
    return Demand(
        work=Work(
            flops={"simd": 2.0 * b * m * n * k},
            least_bytes=b * (w_bytes + x_bytes + y_bytes),
            far_bytes=far,
            mid_bytes=mid * k * tiles + b * copied,
            near_bytes=near * k * tiles + b * (copied + 2.0 * y_bytes * (blocks - 1.0)),
        ),
        tiles=Tiles(
            count=tiles * blocks,
            threads=item,
            waves=item,
            vector=vl,
            registers=sums + np.minimum(vectors, rows) + _BROADCAST_REGISTERS,
            shared_bytes=zero,
            l1_set_bytes=panel + rows * block * size,
            l2_set_bytes=panel * groups + np.minimum(m, _ROWS) * block * size,
        ),
        matmul=MatmulTile(
            rows=m * b,
            cols=n,
            depth=k,
            tile_rows=rows,
            tile_cols=width,
            computed_cols=columns,
            wave_rows=rows,
            wave_cols=width,
            unroll=item,
            depth_block=block,
            streams=item + np.where(across > 0, 1.0, rows),
            fmas=sums,
            tensor_fmas=zero,
            loads=vectors + rows + np.where(across > 0, 0.0, np.maximum(rows - _ROW_POINTERS, 0.0)),
            checks=zero,
            near_bytes=near,
            mid_bytes=mid,
            code=sums + vectors + rows,
            line_ratio=np.where(
                packs > 0, 1.0, np.minimum(width * size, n * size) / (np.ceil(width * size / _LINE_BYTES) * _LINE_BYTES)
            ),
            bank_ways=item,
            flags=packs,
        ),
        staging=Staging(rows=zero, cols=packs, row_threads=item, col_threads=item, vector_cols=item, waits=zero),
        stream=CpuStream.none(m),
    )
