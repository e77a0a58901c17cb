"""A sum over k shared by threads: right for every m, the same bits whoever computes the parts, and with every other duty."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

import haotuner
from haotuner.backends.cpu.backend import rows_of
from haotuner.runtime.pack import Pack
from haotuner.spec.op import Op
from tests.runtime.conftest import rows
from tests.runtime.packs import LANES, LIMIT, BuiltPack, assert_right, best_level, make_pack, packed_op

K = 1061  # no unroll, no cache line divides it; four parts of 256 terms
NARROW = f"dense_n24_k{K}"  # less than one tile
WIDER = f"dense_n100_k{K}"  # out of room from 82 rows on at two threads


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> BuiltPack:
    level = best_level()
    lanes = LANES[level]
    ops = [packed_op(name, lanes, 2 * lanes, splits=("serial", "k", "k")) for name in (NARROW, WIDER)]
    return make_pack(tmp_path_factory.mktemp("terms") / "pack", ops, level)


@pytest.fixture(params=[1, 2, 3, 7], ids=lambda t: f"threads{t}")
def pack(shared: BuiltPack, request: pytest.FixtureRequest) -> Iterator[Pack]:
    with haotuner.load(shared.path, threads=request.param) as opened:
        yield opened


def weight_of(op: str, seed: int = 0):
    n = int(op.split("_")[1][1:])
    return np.random.default_rng(seed).standard_normal((n, K), dtype=np.float32)


@pytest.mark.parametrize("op", [NARROW, WIDER])
def test_every_m_is_right_with_room_for_the_parts_and_without(pack, op):
    weight = weight_of(op)
    n = weight.shape[0]
    linear = pack.op(op).bind(weight)
    for m in (*range(1, LIMIT + 3), 81, 82, 83, 340, 345, 1000):
        x = rows(m, K)
        out = np.full((m + 2, n + 5), -7.0, np.float32)
        linear(x, out=out[1:-1, 2 : n + 2])
        assert_right(out[1:-1, 2 : n + 2], x, weight)
        out[1:-1, 2 : n + 2] = -7
        assert (out == -7).all()


def test_the_plan_says_so(shared):
    with haotuner.load(shared.path, threads=2) as pack:
        assert pack.op(NARROW).composition(8, 2).share == "k"


def test_the_bias_is_added_once(pack):
    weight, bias = weight_of(NARROW), np.random.default_rng(5).standard_normal(24, dtype=np.float32)
    plain, biased = pack.op(NARROW).bind(weight), pack.op(NARROW).bind(weight, bias)
    for m in (1, 2, 7, 30, LIMIT + 9):
        x = rows(m, K)
        assert np.array_equal(biased(x), plain(x) + bias)


def test_parts_are_added_in_order_whoever_computes_them(shared):
    """A caller that finds the pool busy computes every part itself: the bits stay."""
    weight = weight_of(NARROW)
    with haotuner.load(shared.path, threads=3) as pack:
        linear = pack.op(NARROW).bind(weight)
        x = rows(16, K)
        expected = linear(x)
        wrong: list[int] = []

        def call() -> None:
            wrong.extend(i for i in range(300) if not np.array_equal(linear(x), expected))

        callers = [threading.Thread(target=call) for _ in range(6)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
    assert wrong == []


def test_room_ends_where_tuning_thinks_it_does(shared):
    """One row more, and the columns are shared: the bits of one thread again, which a sum in parts does not have."""
    weight = weight_of(WIDER)
    with haotuner.load(shared.path, threads=1) as serial, haotuner.load(shared.path, threads=2) as two:
        whole, parts = serial.op(WIDER).bind(weight), two.op(WIDER).bind(weight)
        most = rows_of("k", Op.parse(WIDER), 2, 10_000)
        assert not np.array_equal(whole(rows(most, K)), parts(rows(most, K)))
        assert np.array_equal(whole(rows(most + 1, K)), parts(rows(most + 1, K)))
