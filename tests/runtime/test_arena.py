"""Packed weights lie side by side on huge pages, never over one another, and go with the last that uses them."""

from __future__ import annotations

import gc
import re
import threading
import weakref
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import haotuner
from haotuner.errors import PackClosed
from haotuner.runtime.host_memory import ALIGNMENT, CHUNK, HUGE_PAGE, Arena
from tests.runtime.conftest import DENSE


def owner(array: Any) -> Any:
    while array.base is not None:
        array = array.base
    return array


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, CHUNK // 4 + CHUNK // 8), min_size=1, max_size=12))
def test_arrays_are_aligned_and_apart(floats):
    arena = Arena()
    arrays = [arena.take((1, count)) for count in floats]
    spans = sorted((array.ctypes.data, array.ctypes.data + array.nbytes) for array in arrays)
    assert all(start % ALIGNMENT == 0 for start, _ in spans)
    assert all(end <= start for (_, end), (start, _) in zip(spans, spans[1:], strict=False))
    assert [array.shape for array in arrays] == [(1, count) for count in floats]
    assert all(array.flags.writeable and array.flags.c_contiguous for array in arrays)


def test_small_arrays_share_a_chunk_that_starts_on_a_huge_page():
    arena = Arena()
    first, second = arena.take((1000,)), arena.take((1000,))
    assert owner(first) is owner(second)
    assert first.ctypes.data % HUGE_PAGE == 0
    assert 4000 <= second.ctypes.data - first.ctypes.data < 4000 + ALIGNMENT
    large = arena.take((CHUNK // 4 + 1,))
    assert owner(large) is not owner(first)
    assert owner(arena.take((1000,))) is owner(first), "what is left of a chunk is used although a large array had its own"


def test_a_chunk_goes_with_its_last_array():
    arena = Arena()
    alive, dropped = arena.take((1000,)), arena.take((1000,))
    chunk = weakref.ref(owner(alive))
    del dropped
    arena.clear()
    gc.collect()
    assert chunk() is not None
    alive[...] = 1
    del alive
    gc.collect()
    assert chunk() is None


def test_closing_a_pack_gives_its_weights_back(built_pack):
    pack = haotuner.load(built_pack.path, threads=1)
    linear = pack.op(DENSE).bind(np.ones((100, 37), np.float32))
    chunk = weakref.ref(owner(pack.arena.take((1,))))
    pack.close()
    gc.collect()
    assert chunk() is None
    with pytest.raises(PackClosed):
        linear(np.ones((1, 37), np.float32))


def test_huge_pages_are_asked_for():
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("transparent huge pages: this kernel has none")
    array = Arena().take((1000,))
    address = array.ctypes.data
    areas = re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*?^VmFlags: (.*?)$", Path("/proc/self/smaps").read_text(), re.M | re.S)
    flags = next(flags.split() for start, end, flags in areas if int(start, 16) <= address < int(end, 16))
    assert "hg" in flags


def test_threads_take_from_one_arena():
    arena = Arena()
    marked: list[tuple[int, Any]] = []

    def work(mark: int) -> None:
        for _ in range(200):
            array = arena.take((500,))
            array[...] = mark
            marked.append((mark, array))

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(marked) == 1600
    assert all((array == mark).all() for mark, array in marked)
