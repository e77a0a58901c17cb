"""The Triton kernel of the comparison; imported only where Triton is installed."""

from __future__ import annotations

import importlib
from typing import Any

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")


@triton.jit  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    x, w, y, m, n, k, ROWS: tl.constexpr, COLUMNS: tl.constexpr, STEP: tl.constexpr, GROUPED: tl.constexpr
):
    """Y (m, n) = x (m, k) · w (n, k)^T, compact; one tile a program, ``GROUPED`` row tiles down before the next column."""
    block = tl.program_id(0)
    row_tiles = tl.cdiv(m, ROWS)
    column_tiles = tl.cdiv(n, COLUMNS)
    group = block // (GROUPED * column_tiles)
    height = min(row_tiles - group * GROUPED, GROUPED)
    within = block % (GROUPED * column_tiles)
    row = (group * GROUPED + within % height) * ROWS + tl.arange(0, ROWS)
    column = (within // height) * COLUMNS + tl.arange(0, COLUMNS)
    sums = tl.zeros((ROWS, COLUMNS), dtype=tl.float32)
    for start in range(0, k, STEP):
        at = start + tl.arange(0, STEP)
        x_tile = tl.load(x + row[:, None] * k + at[None, :], mask=(row[:, None] < m) & (at[None, :] < k), other=0.0)
        w_tile = tl.load(w + column[None, :] * k + at[:, None], mask=(column[None, :] < n) & (at[:, None] < k), other=0.0)
        sums = tl.dot(x_tile, w_tile, sums, input_precision="ieee")
    inside = (row[:, None] < m) & (column[None, :] < n)
    tl.store(y + row[:, None] * n + column[None, :], sums.to(y.dtype.element_ty), mask=inside)
