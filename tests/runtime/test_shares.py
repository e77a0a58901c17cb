"""Threads that share a call get even parts, whatever the widths and heights of a composition's regions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.runtime.native_builds import HERE, NATIVE, cc, run

ROWS = 5  # of every row tile


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    typed = [NATIVE / "kinds" / name for name in ("typed_run.c", "typed_pack.c")]
    return cc([HERE / "shares.c", *typed], tmp_path_factory.mktemp("shares") / "shares", "-O1")


def work(shares: Path, split: str, n: int, threads: int, regions: Sequence[tuple[int, int]]) -> tuple[list[int], list[int]]:
    """Of each thread its own, and what it has done at the end; ``regions`` are widths and row tiles."""
    words = [str(word) for word in (split, n, threads, *itertools.chain(*regions))]
    counts = [int(word) for word in run([shares, *words]).stdout.split()]
    own, done = counts[:threads], counts[threads:]
    assert len(done) == threads and sum(own) == sum(done) >= n * ROWS * sum(tiles for _, tiles in regions)
    return own, done


@pytest.mark.parametrize("widths", [*itertools.permutations((16, 48, 64), 2), (64, 48, 80), (80, 64, 48)])
def test_no_thread_has_more_of_the_columns_than_its_share_and_a_tile_of_each_kernel(shares, widths):
    for n, threads in itertools.product((100, 780, 1312), (1, 2)):
        _, done = work(shares, "n", n, threads, [(nr, 1) for nr in widths])
        assert max(done) <= n / threads * ROWS * len(widths) + ROWS * sum(widths)


def test_odd_tiles_of_two_widths_are_not_all_one_threads(shares):
    # 780 columns are 13 tiles of 64 and 17 of 48: seven and nine of them were one thread's, six and eight the other's.
    own, _ = work(shares, "n", 780, 2, [(64, 1), (48, 1)])
    assert own == [ROWS * (7 * 64 + 8 * 48), ROWS * (6 * 64 + 9 * 48)]


def test_a_narrow_last_tile_counts_as_what_it_computes(shares):
    # 388 columns are nine tiles of 48, the last of them 8 columns wide: five and four would be 240 and 152 columns.
    assert work(shares, "n8", 388, 2, [(48, 1)])[0] == [ROWS * 192, ROWS * 200]
    assert work(shares, "n", 388, 2, [(48, 1)])[0] == [ROWS * 240, ROWS * 192]
    for n, nr in itertools.product((97, 388, 399, 780), (32, 48, 64)):  # every element is written once, whatever is left
        for split, threads in itertools.product(("n8", "m8"), (1, 2, 3)):
            own, _ = work(shares, split, n, threads, [(nr, 3), (16, 1)])
            assert sum(own) <= 4 * ROWS * (n + 8)


@pytest.mark.parametrize("tiles", range(1, 10))
@pytest.mark.parametrize("rest", [0, 1])
def test_rows_are_shared_evenly_although_row_tiles_are_whole(shares, tiles, rest):
    for threads in (1, 2, 3):
        _, done = work(shares, "m", 512, threads, [(16, tiles), (32, 1)][: 1 + rest])
        assert max(done) <= 1.3 * sum(done) / threads, (threads, done)
