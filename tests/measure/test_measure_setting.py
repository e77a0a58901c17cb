"""Setting: blocks for a call, the same numbers whether it is timed or served."""

from __future__ import annotations

from dataclasses import replace

import pytest

from haotuner.backends.cpu.pack_dense import ROWS_LEAST, ROWS_MOST, ROWS_MOST_ON_TILES, Blocking
from haotuner.microkernels.cpu.dense import CpuDense
from haotuner.microkernels.cpu.dense_demand import K_BLOCK_LEAST_ROWS
from haotuner.microkernels.cpu.typed import CpuTyped
from haotuner.spec.op import Op
from tests.cost.cost_examples import BIG_CORE

FAMILY = CpuDense()
TILES = (FAMILY.kernel(6, 64, 32, 4, 16), FAMILY.kernel(1, 96, 32, 4, 16))


def test_panels_cover_the_columns_for_every_kernel() -> None:
    blocking = Blocking.of(Op.parse("dense_n1000_k600"), TILES, BIG_CORE)
    assert blocking.panels * blocking.pw >= 1000 and blocking.panels == 33  # eleven tiles of 96 columns


def test_kernels_of_two_panel_widths_share_nothing() -> None:
    with pytest.raises(ValueError, match="panel widths are"):
        Blocking.of(Op.parse("dense_n8_k8"), (*TILES, FAMILY.kernel(1, 64, 64, 1, 16)), BIG_CORE)


def test_rows_are_blocked_more_coarsely_where_a_long_sum_comes_in_parts() -> None:
    blocking = Blocking.of(Op.parse("dense_n1024_k4096"), TILES, replace(BIG_CORE, l2_bytes=1 << 20))
    few, many = blocking.words(K_BLOCK_LEAST_ROWS - 1), blocking.words(K_BLOCK_LEAST_ROWS)
    assert few["k_block"] == 0 and many["k_block"] == 1024
    assert few["row_block"] == 32 and many["row_block"] == ROWS_MOST
    short = Blocking.of(Op.parse("dense_n1024_k2048"), TILES, BIG_CORE)
    assert short.words(4096)["k_block"] == 0 and ROWS_LEAST <= short.words(4096)["row_block"] <= ROWS_MOST


def test_rows_are_blocked_more_coarsely_on_amx_tiles() -> None:
    """The weight streams past once a block, and tiles multiply much faster than it comes."""
    core = replace(BIG_CORE, l2_bytes=2 << 20)
    for depth, rows in ((512, ROWS_MOST_ON_TILES), (1024, 512), (4096, 128)):  # half of L2, and 576 at most
        op = Op.parse(f"dense:n=1024,k={depth},dtype=bf16")
        vectors, tiles = (
            CpuTyped("bf16").typed(op, (16, 32, 32, 1, 16, 0), on_tiles=on_tiles) for on_tiles in (False, True)
        )
        assert Blocking.of(op, (tiles,), core).row_block == rows
        assert Blocking.of(op, (vectors,), core).row_block == ROWS_MOST
