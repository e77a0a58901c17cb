"""Threads that share columns get even parts, whatever the widths of a composition's kernels."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tests.serving.native_builds import HERE, cc, run

ROWS = 5  # of every region


@pytest.fixture(scope="module")
def shares(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cc([HERE / "shares.c"], tmp_path_factory.mktemp("shares") / "shares", "-O1")


@pytest.mark.parametrize("widths", list(itertools.permutations((16, 48, 64), 2)) + [(64, 48, 80), (80, 64, 48)])
def test_no_thread_has_more_than_its_share_and_a_tile_of_each_kernel(shares, widths):
    for n, threads in itertools.product((100, 780, 1312), (1, 2, 3)):
        work = [int(word) for word in run([shares, str(n), str(threads), *map(str, widths)]).stdout.split()]
        assert len(work) == threads
        assert sum(work) >= n * ROWS * len(widths)
        assert max(work) <= n / threads * ROWS * len(widths) + ROWS * sum(widths)
