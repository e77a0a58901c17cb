"""Which ways of sharing a call are worth timing, and up to how many rows the runtime takes them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from haotuner.backends.cpu.backend import HANDOFF_US, rows_of, shared, ways, widest_share
from haotuner.microkernels.cpu.dense import CpuDense, computed_columns
from haotuner.plan.compose import Curve
from haotuner.spec.composition import WAYS
from haotuner.spec.limits import PART_TERMS, PARTIAL_FLOATS
from haotuner.spec.op import Op

NAME = CpuDense().kernel(4, 64, 16, 2, 16).name


def test_one_thread_shares_nothing() -> None:
    assert ways(Op.parse("dense_n8_k8192"), 1) == ("serial",)


@pytest.mark.parametrize(
    ("op", "threads", "terms"),
    [
        ("dense_n8_k4096", 2, True),
        ("dense_n127_k512", 2, True),
        ("dense_n128_k4096", 2, False),  # two panels a thread
        ("dense_n256_k4096", 16, True),  # 16 columns a thread
        ("dense_n8_k511", 2, False),  # no two parts of 256 terms
        ("dense_n4096_k4096", 64, False),
    ],
)
def test_terms_are_shared_where_columns_are_few_and_the_sum_is_long(op: str, threads: int, terms: bool) -> None:
    assert ("k" in ways(Op.parse(op), threads)) is terms
    assert "k" not in ways(Op.parse(op), threads, one_order=True)
    assert {"n", "m", "serial"} <= set(ways(Op.parse(op), threads)) <= set(WAYS)


def test_partial_sums_fit_the_callers_stack() -> None:
    op = Op.parse("dense_n96_k4096")
    for threads in (2, 3, 16, 64):
        rows = rows_of("k", op, threads, 8192)
        parts = min(threads, 4096 // PART_TERMS)
        assert (parts - 1) * rows * 96 <= PARTIAL_FLOATS < (parts - 1) * (rows + 1) * 96
    assert rows_of("k", Op.parse("dense_n8_k4096"), 2, 100) == 100
    assert rows_of("n", op, 2, 8192) == 8192


@pytest.mark.parametrize(
    ("way", "n", "k", "threads", "parts"),  # of one thread's time at 1, 2 and 3 row tiles of 64 columns
    [
        ("n", 512, 256, 2, (1 / 2, 1 / 2, 1 / 2)),
        ("n", 300, 256, 2, (3 / 5, 3 / 5, 3 / 5)),  # five tiles of columns, three of them one thread's
        ("m", 512, 256, 2, (1 / 2, 1 / 2, 1 / 2)),  # in eight pieces each
        ("m", 64, 256, 2, (1, 1 / 2, 2 / 3)),  # one tile of columns: whole row tiles
        ("m", 128, 256, 3, (1 / 2, 1 / 2, 1 / 3)),
        ("k", 64, 1024, 2, (1 / 2, 1 / 2, 1 / 2)),
        ("k", 64, 512, 4, (1 / 2, 1 / 2, 1 / 2)),  # two parts of 256 terms
    ],
)
def test_shared_a_curve_falls_by_as_much_as_whole_tiles_allow(
    way: str, n: int, k: int, threads: int, parts: tuple[float, ...]
) -> None:
    alone = Curve.of(NAME, 4, {1: 60.0, 2: 120.0, 3: 180.0}, 50.0)
    curve = shared(alone, way, Op.parse(f"dense_n{n}_k{k}"), threads)
    expected = [us * part + HANDOFF_US for (_, us), part in zip(alone.lead_us, parts, strict=True)]
    assert [us for _, us in curve.lead_us] == pytest.approx(np.minimum.accumulate(expected[::-1])[::-1].tolist())
    assert (curve.kernel, curve.rows) == (NAME, 4) and curve.follow_us == pytest.approx(50.0 / threads)


@given(st.integers(1, 3000), st.sampled_from((16, 48, 64, 80)), st.integers(1, 8), st.booleans())
def test_the_thread_with_most_columns_has_an_even_share_and_a_tile_at_most(
    n: int, nr: int, threads: int, tail: bool
) -> None:
    kernel = CpuDense().kernel(4, nr, nr, 2, 16, 0, n if tail else 0)
    share, tiles = widest_share(n, kernel, threads), -(-n // nr)
    if tail:
        assert 1 / threads <= share * (1 + 1e-9) and share <= 1 / threads + nr / computed_columns(kernel, n)
    else:
        assert share == pytest.approx(-(-tiles // threads) / tiles)


def test_a_narrow_last_tile_is_a_part_of_one() -> None:
    # 388 columns: eight tiles of 48 and one of 8. tests/runtime/test_shares.py has the same of the runtime.
    assert widest_share(388, CpuDense().kernel(8, 48, 48, 4, 16, 0, 388), 2) == pytest.approx(200 / 392)


def test_alone_a_curve_stays_as_it_is() -> None:
    alone = Curve.of(NAME, 4, {1: 60.0}, 50.0)
    assert shared(alone, "serial", Op.parse("dense_n512_k256"), 2) is alone
