"""Captured traffic is what was served and reads back as a trace; packs swap under load; batch invariance is checked."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed, UsageError
from haotuner.spec.op import Op
from haotuner.spec.traffic import traffic_of
from haotuner.verify.pack_check import verify
from tests.runtime.conftest import DENSE, SMALLEST, TURNED, rows
from tests.runtime.packs import LANES, LIMIT, best_level, make_pack, packed_op, rewrite
from tests.runtime.test_life import in_threads


def test_a_captured_trace_is_what_tune_reads(built_pack, weight, tmp_path):
    with haotuner.load(built_pack.path, threads=2) as pack:
        linear = pack.op(DENSE).bind(weight)
        small = pack.op(SMALLEST).bind(np.ones((1, 1), np.float32))
        linear(rows(5))  # before: not counted
        with haotuner.capture(pack) as seen:
            for m in (0, 1, 1, 7, 40, 4096):
                linear(rows(m))
            small(np.ones((3, 1), np.float32))
        linear(rows(6))  # after: not counted
        assert seen.counts() == {DENSE: {1: 2, 7: 1, 40: 1, 4096: 1}, SMALLEST: {3: 1}}
        path = seen.write(tmp_path / "trace.csv")
    assert path.read_text().splitlines()[:3] == ["op,m,weight", f"{DENSE},1,2", f"{DENSE},7,1"]
    traffic = traffic_of(str(path), Op.parse(DENSE))
    assert sorted(shape["m"] for shape in traffic.shapes()) == [1, 7, 40, 4096]
    assert [p.name for p in tmp_path.iterdir()] == ["trace.csv"]


def test_long_batches_fall_into_close_slots(built_pack):
    with haotuner.load(built_pack.path, threads=1) as pack:
        linear = pack.op(SMALLEST).bind(np.ones((1, 1), np.float32))
        for m in (4097, 5000, 100_001, 3_000_000):
            with haotuner.capture(pack) as seen:
                linear(np.ones((m, 1), np.float32))
            ((slot, count),) = seen.counts()[SMALLEST].items()
            assert count == 1 and slot <= m <= slot * (1 + 1 / 64)


def test_capture_counts_every_call_of_many_threads(built_pack, weight):
    with haotuner.load(built_pack.path, threads=1) as pack:
        linear = pack.op(DENSE).bind(weight)
        with haotuner.capture(pack) as seen:
            in_threads(6, lambda index: [linear(rows(index + 1)) for _ in range(200)])
        assert seen.counts()[DENSE] == {m: 200 for m in range(1, 7)}


def test_a_capture_that_saw_nothing(built_pack, tmp_path):
    with haotuner.load(built_pack.path) as pack:
        seen = haotuner.capture(pack).start()
        seen.stop()
        seen.stop()
        with pytest.raises(UsageError, match="no call"):
            seen.write(tmp_path / "trace.csv")
    assert not list(tmp_path.iterdir())
    with pytest.raises(PackClosed):
        haotuner.capture(pack)


@pytest.fixture(scope="module")
def other(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DENSE alone, with panels of another width and other plans."""
    level = best_level()
    op = packed_op(DENSE, LANES[level], LANES[level], (1, 4))
    return make_pack(tmp_path_factory.mktemp("other") / "pack", [op], level).path


def test_packs_are_swapped_under_load(built_pack, other, weight):
    bias = np.arange(100, dtype=np.float32)
    pack = haotuner.load(built_pack.path, threads=2)
    linear = pack.op(DENSE).bind(weight, bias)
    expected = {m: linear(rows(m)) for m in range(1, 50)}
    stop = threading.Event()

    def work(index: int) -> None:
        if index == 0:
            opened = pack
            try:
                for turn in range(30):
                    new = haotuner.load((other, built_pack.path)[turn % 2], threads=1 + turn % 3)
                    opened.hand_over(new)
                    opened = new
            finally:
                stop.set()
        while not stop.is_set():
            m = np.random.randint(1, 50)
            assert np.array_equal(linear(rows(m)), expected[m])

    in_threads(6, work)
    with pytest.raises(PackClosed):
        pack.stats()
    linear(rows(3))


def test_warmup_runs_every_linear(built_pack, weight):
    with haotuner.load(built_pack.path, threads=2) as pack:
        linears = [pack.op(DENSE).bind(weight) for _ in range(3)]
        with haotuner.capture(pack) as seen:
            pack.warmup()
        assert seen.counts() == {DENSE: {1: 3, LIMIT: 3}} and len(linears) == 3


def test_a_swap_to_a_pack_without_the_op_changes_nothing(built_pack, other, weight):
    with haotuner.load(built_pack.path) as pack, haotuner.load(other) as new:
        linear = pack.op(DENSE).bind(weight)
        turned = pack.op(TURNED).bind(np.ones((16, 64), np.float32))
        before = linear(rows(4))
        with pytest.raises(UsageError, match=TURNED):
            pack.hand_over(new)
        assert np.array_equal(linear(rows(4)), before) and turned(np.ones((1, 16), np.float32))[0, 0] == 16
        assert pack.stats()[DENSE]["calls"] >= 2


def test_the_promise_of_batch_invariance(copied, built_pack):
    """Every micro-kernel sums one accumulator an element in the order of k, so the promise holds."""
    rewrite(copied, batch_invariant=True)
    assert verify(copied) == []
    with haotuner.load(copied) as pack:
        assert pack.manifest.batch_invariant
    with haotuner.load(built_pack.path) as pack:
        assert not pack.manifest.batch_invariant


def test_a_false_promise_of_batch_invariance_is_found(copied, monkeypatch):
    from haotuner.runtime.linear import Linear

    rewrite(copied, batch_invariant=True)
    real = Linear.__call__

    def uneven(self, x, out=None):
        y = real(self, x, out)
        if len(x) == LIMIT:
            y *= np.float32(1 + 1e-7)  # one unit in the last place: within every tolerance
        return y

    monkeypatch.setattr(Linear, "__call__", uneven)
    assert any("promises" in problem for problem in verify(copied))


def test_a_capture_that_was_never_started_has_nothing_of_others(built_pack, weight, tmp_path):
    with haotuner.load(built_pack.path, threads=1) as pack:
        linear = pack.op(DENSE).bind(weight)
        with haotuner.capture(pack):
            linear(rows(3))
        never = haotuner.capture(pack)
        assert never.counts() == {}
        with pytest.raises(UsageError, match="no call was seen"):
            never.write(tmp_path / "trace.csv")


def test_hand_over_to_what_is_no_other_open_pack(built_pack, weight):
    pack, other = haotuner.load(built_pack.path), haotuner.load(built_pack.path)
    linear = pack.op(DENSE).bind(weight)
    other.close()
    wrong: Any
    for wrong in (None, pack, built_pack.path, "pack"):
        with pytest.raises(UsageError, match="cannot be handed over"):
            pack.hand_over(wrong)
    with pytest.raises(PackClosed):
        pack.hand_over(other)
    assert linear(rows(1)).shape == (1, 100)  # nothing was closed
    pack.close()


def test_binding_while_another_thread_warms_up(built_pack, weight):
    with haotuner.load(built_pack.path, threads=1) as pack:
        done = threading.Event()

        def bind() -> None:
            linears: list[object] = []
            while not done.is_set():
                linears = [*linears[-20:], pack.op(DENSE).bind(weight)]

        def warm() -> None:
            try:
                for _ in range(150):
                    pack.warmup()
            finally:
                done.set()

        in_threads(3, lambda index: warm() if index == 0 else bind())
        assert not [linear for linear in pack.linears() if linear.owner is not pack]


def test_binding_while_the_pack_is_handed_over(built_pack, weight):
    """What one thread binds while another hands the pack over is served by the new pack, or the pack is closed for it."""
    lost = 0
    for _ in range(60):
        old, new = haotuner.load(built_pack.path, threads=1), haotuner.load(built_pack.path, threads=1)
        bound: list[Any] = []

        def bind(old: Any = old, bound: list[Any] = bound) -> None:
            while True:
                try:
                    bound.append(old.op(DENSE).bind(weight))
                except PackClosed:
                    return

        def move(old: Any = old, new: Any = new, bound: list[Any] = bound) -> None:
            while not bound:
                time.sleep(0)  # the others' turn
            old.hand_over(new)

        in_threads(3, lambda index, bind=bind, move=move: move() if index == 0 else bind())
        assert all(linear.owner is new for linear in bound)
        lost += sum(not np.isfinite(linear(rows(1))).all() for linear in bound)
        new.close()
        for linear in bound:
            with pytest.raises(PackClosed):
                linear(rows(1))
    assert lost == 0


def test_binding_while_the_pack_is_closed(built_pack, weight):
    for _ in range(100):
        pack = haotuner.load(built_pack.path, threads=1)
        bound: list[Any] = []

        def bind(pack: Any = pack, bound: list[Any] = bound) -> None:
            while True:
                try:
                    bound.append(pack.op(DENSE).bind(weight))
                except PackClosed:
                    return

        def close(pack: Any = pack, bound: list[Any] = bound) -> None:
            while not bound:
                time.sleep(0)  # the others' turn
            pack.close()

        in_threads(3, lambda index, bind=bind, close=close: close() if index == 0 else bind())
        for linear in bound:
            with pytest.raises(PackClosed):
                linear(rows(1))


def test_another_weight_for_the_same_linear_and_its_twin(built_pack, weight):
    with haotuner.load(built_pack.path, threads=1) as pack:
        linear = pack.op(DENSE).bind(weight, np.ones(100, np.float32))
        twin = linear.twin()
        before = linear(rows(4))
        assert np.array_equal(linear.weight(), weight)
        linear.rebind(2 * weight)
        assert np.array_equal(linear.weight(), 2 * weight) and np.array_equal(twin(rows(4)), before)
        assert np.allclose(linear(rows(4)), 2 * (before - 1), atol=1e-4)
    with pytest.raises(PackClosed):
        twin.weight()
    with haotuner.load(built_pack.path, threads=1) as pack:
        turned = np.random.default_rng(3).standard_normal((16, 64), dtype=np.float32)
        assert np.array_equal(pack.op(TURNED).bind(turned).weight(), turned)
