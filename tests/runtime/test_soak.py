"""Sixty-four threads call while packs are handed over, closed and opened again: no error, no wrong result, flat memory."""

from __future__ import annotations

import gc
import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed
from tests.runtime.conftest import DENSE, rows
from tests.runtime.native_builds import c_pack
from tests.runtime.packs import packed_op
from tests.runtime.test_life import in_threads

CALLERS = 64
GROWTH_LIMIT = 64 << 20  # a library has 0.1 MB and a bound weight 0.05: hundreds of turns that leaked would show


def resident() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def soak(wider: Path, other: Path, weight: object, seconds: float) -> None:
    bias = np.arange(100, dtype=np.float32)
    pack = haotuner.load(wider, threads=2)
    linear = pack.op(DENSE).bind(weight, bias)  # handed over and never closed
    brief = [pack.op(DENSE).bind(weight, bias)]  # of a pack that is closed under its callers
    sizes = (1, 7, 40, 41, 90)
    inputs = {m: np.round(4 * rows(m)) / 4 for m in sizes}
    expected = {m: linear(inputs[m]) for m in sizes}
    end = time.monotonic() + seconds
    served, closed, turns = [0] * CALLERS, [0] * CALLERS, 0
    early = 0

    def work(index: int) -> None:
        nonlocal pack, turns, early
        out = {m: np.empty((m, 100), np.float32) for m in sizes}
        turn = index
        while not served[index] or time.monotonic() < end:  # however crowded the host, everybody is served once
            turn += 1
            m = sizes[turn % len(sizes)]
            assert np.array_equal(linear(inputs[m], out=out[m]), expected[m])
            served[index] += 1
            try:
                assert np.array_equal(brief[0](inputs[m], out=out[m]), expected[m])
            except PackClosed:
                closed[index] += 1
            if index == 0:  # this one swaps and closes as well
                turns += 1
                new = haotuner.load((other, wider)[turns % 2], threads=1 + turns % 3)
                pack.hand_over(new)
                pack = new
                second = haotuner.load(wider, threads=2)
                brief[0] = second.op(DENSE).bind(weight, bias)
                if turns % 2:
                    second.close()
                if early == 0 and time.monotonic() > end - seconds / 2:
                    early = resident()

    before = threading.active_count()
    in_threads(CALLERS, work)
    assert threading.active_count() == before
    print(f"calls {sum(served)}, hand-overs {turns}, met a closed pack {sum(closed)}")
    assert all(served) and turns > 0
    brief[0].close()
    with pytest.raises(PackClosed):
        brief[0](inputs[1])
    assert early == 0 or resident() - early < GROWTH_LIMIT
    pack.close()
    with pytest.raises(PackClosed):
        linear(inputs[1])


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DENSE with narrower panels, so that every hand-over packs the weight anew."""
    return c_pack(tmp_path_factory.mktemp("other") / "pack", [packed_op(DENSE, 4, 4)])


@pytest.fixture(scope="module")
def wide_panels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As ``other`` with wider panels; kernels in C sum as those do, so results agree bit for bit."""
    return c_pack(tmp_path_factory.mktemp("one") / "pack", [packed_op(DENSE, 4, 8)])


def test_five_seconds(wide_panels, other, weight):
    soak(wide_panels, other, np.round(4 * weight) / 4, 5)


@pytest.mark.slow
def test_a_minute(wide_panels, other, weight):
    soak(wide_panels, other, np.round(4 * weight) / 4, 60)
