"""Answers of models: large ones lie on huge pages, which are used again once nobody holds the array, and never before."""

from __future__ import annotations

import gc
import resource
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st

import haotuner
from haotuner.runtime.host_memory import AGAIN, HUGE_PAGE, LARGE, OutputPool
from tests.runtime.model_packs import model_pack
from tests.runtime.test_models import GRAPHS, given

BYTE, PAGE = np.dtype(np.uint8), 4096


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


def in_huge_pages() -> bool:
    path = Path("/sys/kernel/mm/transparent_hugepage/enabled")
    return path.exists() and "[never]" not in path.read_text(encoding="ascii")


@settings(max_examples=40, deadline=None)
@drawn(st.lists(st.tuples(st.booleans(), st.integers(0, 3 * HUGE_PAGE)), min_size=1, max_size=30))
def test_arrays_that_are_held_are_never_written_over(acts):
    answers, alive = OutputPool(2), list[tuple[Any, int]]()
    for number, (drop, size) in enumerate(acts):
        if drop and alive:
            alive.pop(size % len(alive))
        array = answers.take((size,), BYTE)
        assert array.shape == (size,) and array.flags.writeable and array.flags.c_contiguous
        assert size < LARGE or array.ctypes.data % HUGE_PAGE == 0
        array[:1], array[-1:] = number, number
        alive.append((array[:], number))  # a view alone
        assert all((view[:1] == what).all() and (view[-1:] == what).all() for view, what in alive)


SHAPES = [[(3,), (5, 2)], [(PAGE * 16,), (2, PAGE * 9)], [(LARGE,), (1,)]]  # small, of pages, of huge ones


@settings(max_examples=60, deadline=None)
@drawn(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=30))
def test_answers_that_somebody_refers_to_are_never_written_over(acts):
    """Whatever is left of an answer: an array, a view of it, a view of another type, or nothing."""
    answers, alive = OutputPool(2), list[tuple[Any, int]]()
    for number, (which, rest, drop) in enumerate(acts):
        arrays = answers.answer(SHAPES[which], [BYTE, BYTE])
        assert [array.shape for array in arrays] == SHAPES[which]
        for array in arrays:
            array[...] = number
        assert all((array == value).all() for array, value in alive)
        alive += [((array, array[..., :1], array.view(np.int8))[rest], number) for array in arrays]
        del array, arrays
        if drop:
            alive[:] = alive[drop:]


@pytest.mark.parametrize("shapes", SHAPES, ids=["small", "pages", "huge pages"])
def test_an_answer_that_nobody_refers_to_is_the_next_one(shapes):
    answers, dtypes = OutputPool(2), [BYTE, BYTE]
    first = answers.answer(shapes, dtypes)
    begins = [array.ctypes.data for array in first]
    second = answers.answer(shapes, dtypes)
    assert not {array.ctypes.data for array in second} & set(begins)
    del first
    again = answers.answer(shapes, dtypes)
    assert [array.ctypes.data for array in again] == begins
    again[0].shape = (1, *again[0].shape)
    del again
    assert [array.shape for array in answers.answer(shapes, dtypes)] == shapes, "an array that its caller changed"


def test_memory_is_used_again_without_page_faults():
    answers, size = OutputPool(1), 3 * HUGE_PAGE
    first = answers.take((size,), BYTE)
    first[:] = 1
    del first
    before = faults()
    answers.take((size - 5,), BYTE)[:] = 2
    assert faults() - before < size / PAGE / 8
    before = faults()
    answers.take((2 * size,), BYTE)[:size] = 3
    assert faults() - before < size / PAGE / 8, "a larger array keeps the pages of the one before"


def test_no_more_is_kept_than_a_caller_holds_in_turn():
    answers = OutputPool(1)
    outputs = [answers.take((LARGE,), BYTE) for _ in range(9)]
    places = {output.ctypes.data for output in outputs}
    outputs.clear()
    gc.collect()
    again = [answers.take((LARGE,), BYTE) for _ in range(AGAIN)]
    assert {output.ctypes.data for output in again} <= places
    again.clear()
    assert len(answers._free) == AGAIN
    answers.clear()
    assert not answers._free


def test_small_and_large_outputs_keep_to_their_own_memory():
    answers, sizes = OutputPool(2), (HUGE_PAGE * 4, LARGE)
    for order in ((0, 1), (1, 0), (0, 1)):
        outputs = {index: answers.take((sizes[index],), BYTE) for index in order}
        for index in order:
            outputs[index][:] = 1
        outputs.clear()
    before = faults()
    for order in ((0, 1), (1, 0)):
        outputs = {index: answers.take((sizes[index],), BYTE) for index in order}
        for index in order:
            outputs[index][:] = 2
        outputs.clear()
    assert faults() - before < 64
    assert sorted(block.room for block in answers._free) == [HUGE_PAGE, 4 * HUGE_PAGE]


def test_no_memory_is_said():
    with pytest.raises(MemoryError, match="array of"):
        OutputPool(1).take((1 << 60,), BYTE)


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return model_pack(tmp_path_factory.mktemp("answers") / "pack", {"encoder": GRAPHS["encoder"]}, tuned=False, exact=False)


def test_an_answer_that_is_held_stays_as_it_was(path):
    with haotuner.load(path, threads=1) as pack:
        model, requests = pack.model("encoder"), [given(GRAPHS["encoder"], batch=4, seq=1100) for _ in range(3)]
        name = list(model.run(requests[0]))[1]
        output = model.run(requests[0])[name]
        expected, address = output.copy(), output.ctypes.data
        assert output.nbytes >= LARGE
        other = model.run(requests[1])[name]
        np.testing.assert_array_equal(output, expected)
        assert other.ctypes.data != address
        del output
        assert model.run(requests[2])[name].ctypes.data == address


def test_a_first_request_pays_few_page_faults(path):
    """A large arena is whole huge pages, as it is told; it is moved as such when it grows."""
    if not in_huge_pages():
        pytest.skip("this kernel gives no huge pages")
    with haotuner.load(path, threads=1) as pack, haotuner.load(path, threads=1) as beside:
        model, fresh = pack.model("encoder"), beside.model("encoder")
        model.run(given(GRAPHS["encoder"], batch=1, seq=3))
        for seq in (1200, 3000, 6000):
            inputs, expected_bytes = given(GRAPHS["encoder"], batch=4, seq=seq), model.memory_bytes(batch=4, seq=seq)
            before = faults()
            outputs = model.run(inputs)
            paid = faults() - before
            assert expected_bytes % HUGE_PAGE == 0 and model.stats()["arena_bytes"] == expected_bytes
            assert paid < expected_bytes / PAGE / 4, f"{paid} page faults for {expected_bytes} bytes at {seq} tokens"
            for name, array in fresh.run(inputs).items():
                np.testing.assert_array_equal(array, outputs[name])
            fresh.trim()
