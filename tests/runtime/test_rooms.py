"""Rooms of threads: what a loop puts between two steps takes the pages that it touches, and goes when the thread goes."""

from __future__ import annotations

import gc
import resource
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.spec.op import Op
from tests.runtime.conv_packs import conv_pack
from tests.runtime.packs import LANES, best_level

SPEC = "conv2d:c=8,f=9,r=3,s=3,pad=1"
ROOM = 458752  # bytes that image columns have at least: mapped, not touched
SLACK = 8 * ROOM  # that Python's own memory may come to
MANY = 40


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return conv_pack(tmp_path_factory.mktemp("rooms") / "pack", (SPEC,), LANES[best_level()])


def mapped_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()


def bound(pack: Any) -> Callable[[], Any]:
    op = Op.parse(SPEC)
    convolution = pack.op(op.name).bind(np.ones((op["f"], op["c"], 3, 3), np.float32))
    x = np.ones((1, op["c"], 5, 20), np.float32)
    return lambda: convolution(x)


def in_a_thread(call: Callable[[], Any]) -> Any:
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(call()))
    thread.start()
    thread.join()
    return results[0]


def faults_of(call: Callable[[], Any]) -> int:
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_minflt
    call()
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt - before


def test_a_threads_first_call_touches_little(path):
    with haotuner.load(path, threads=1) as pack:
        call = bound(pack)
        expected = call()
        assert in_a_thread(lambda: faults_of(call)) < ROOM // resource.getpagesize() + 100
        assert np.array_equal(in_a_thread(call), expected)


def test_rooms_go_with_their_thread(path):
    with haotuner.load(path, threads=1) as pack:
        call = bound(pack)
        for _ in range(MANY):
            in_a_thread(call)
        before = mapped_bytes()
        for _ in range(MANY):
            in_a_thread(call)
        assert mapped_bytes() - before < SLACK


@pytest.mark.long
def test_rooms_go_with_the_library(path):
    def served() -> None:
        with haotuner.load(path, threads=1) as pack:
            bound(pack)()
        gc.collect()

    for _ in range(MANY):
        served()
    before = mapped_bytes()
    for _ in range(MANY):
        served()
    assert mapped_bytes() - before < SLACK
