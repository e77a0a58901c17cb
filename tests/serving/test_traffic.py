"""Captured traffic is what was served and reads back as a trace; packs swap under load; batch invariance is checked."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed, UsageError
from haotuner.pack.verify import verify
from haotuner.trace import traffic_of
from haotuner.words.op import Op
from tests.serving.conftest import DENSE, SMALLEST, TURNED, rows
from tests.serving.packs import LANES, LIMIT, best_level, make_pack, packed_op
from tests.serving.test_life import in_threads


def test_a_captured_trace_is_what_tune_reads(made, weight, tmp_path):
    with haotuner.load(made.path, threads=2) as pack:
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


def test_long_batches_fall_into_close_slots(made):
    with haotuner.load(made.path, threads=1) as pack:
        linear = pack.op(SMALLEST).bind(np.ones((1, 1), np.float32))
        for m in (4097, 5000, 100_001, 3_000_000):
            with haotuner.capture(pack) as seen:
                linear(np.ones((m, 1), np.float32))
            ((found, count),) = seen.counts()[SMALLEST].items()
            assert count == 1 and found <= m <= found * (1 + 1 / 64)


def test_capture_counts_every_call_of_many_threads(made, weight):
    with haotuner.load(made.path, threads=1) as pack:
        linear = pack.op(DENSE).bind(weight)
        with haotuner.capture(pack) as seen:
            in_threads(6, lambda index: [linear(rows(index + 1)) for _ in range(200)])
        assert seen.counts()[DENSE] == {m: 200 for m in range(1, 7)}


def test_a_capture_that_saw_nothing(made, tmp_path):
    with haotuner.load(made.path) as pack:
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


def test_packs_are_swapped_under_load(made, other, weight):
    bias = np.arange(100, dtype=np.float32)
    pack = haotuner.load(made.path, threads=2)
    linear = pack.op(DENSE).bind(weight, bias)
    wanted = {m: linear(rows(m)) for m in range(1, 50)}
    stop = threading.Event()

    def work(index: int) -> None:
        if index == 0:
            opened = pack
            try:
                for turn in range(30):
                    new = haotuner.load((other, made.path)[turn % 2], threads=1 + turn % 3)
                    opened.hand_over(new)
                    opened = new
            finally:
                stop.set()
        while not stop.is_set():
            m = np.random.randint(1, 50)
            assert np.array_equal(linear(rows(m)), wanted[m])

    in_threads(6, work)
    with pytest.raises(PackClosed):
        pack.stats()
    linear(rows(3))


def test_warmup_runs_every_linear(made, weight):
    with haotuner.load(made.path, threads=2) as pack:
        linears = [pack.op(DENSE).bind(weight) for _ in range(3)]
        with haotuner.capture(pack) as seen:
            pack.warmup()
        assert seen.counts() == {DENSE: {1: 3, LIMIT: 3}} and len(linears) == 3


def test_a_swap_to_a_pack_without_the_op_changes_nothing(made, other, weight):
    with haotuner.load(made.path) as pack, haotuner.load(other) as new:
        linear = pack.op(DENSE).bind(weight)
        turned = pack.op(TURNED).bind(np.ones((16, 64), np.float32))
        before = linear(rows(4))
        with pytest.raises(UsageError, match=TURNED):
            pack.hand_over(new)
        assert np.array_equal(linear(rows(4)), before) and turned(np.ones((1, 16), np.float32))[0, 0] == 16
        assert pack.stats()[DENSE]["calls"] >= 2


def test_the_promise_of_batch_invariance(copied, made):
    """Every micro-kernel sums one accumulator an element in the order of k, so the promise holds."""
    document = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps({**document, "batch_invariant": True}))
    assert verify(copied) == []
    with haotuner.load(copied) as pack:
        assert pack.manifest.batch_invariant
    with haotuner.load(made.path) as pack:
        assert not pack.manifest.batch_invariant


def test_a_false_promise_of_batch_invariance_is_found(copied, monkeypatch):
    from haotuner.runtime.linear import Linear

    document = json.loads((copied / "manifest.json").read_text())
    (copied / "manifest.json").write_text(json.dumps({**document, "batch_invariant": True}))
    real = Linear.__call__

    def uneven(self, x, out=None):
        y = real(self, x, out)
        if len(x) == LIMIT:
            y *= np.float32(1 + 1e-7)  # one unit in the last place: within every tolerance
        return y

    monkeypatch.setattr(Linear, "__call__", uneven)
    assert any("promises" in problem for problem in verify(copied))
