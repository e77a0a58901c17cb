"""Beside torch a pack computes on torch's own OpenMP threads: the same bits, no second pool, no hang in forked children."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from tests.runtime.conftest import DENSE, SMALLEST, rows  # noqa: E402
from tests.runtime.test_life import CHILD_LIMIT_S, fresh, in_threads  # noqa: E402
from tests.standin.patience import ended  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def shared(built_pack) -> Iterator[Any]:
    """A pack on two of torch's threads; the packs' own pool again afterwards."""
    with haotuner.load(built_pack.path, threads=2) as pack:
        if not adapter.share_threads(pack):
            pytest.skip("torch: not built with GNU OpenMP")
        yield pack
        assert not adapter.share_threads(pack, share=False)


def test_the_same_bits_on_either_pool(shared, built_pack, weight):
    for threads in (1, 2, 3, 7):
        linear = shared.op(DENSE).bind(weight, threads=threads)
        mine = {m: linear(rows(m)) for m in (1, 2, 17, 40, 500)}
        adapter.share_threads(shared, share=False)
        assert all(np.array_equal(linear(rows(m)), mine[m]) for m in mine)
        adapter.share_threads(shared)


@pytest.mark.long
def test_no_second_pool_is_started(built_pack):
    script = """
        import os, sys, torch, haotuner, haotuner.torch as adapter
        torch.set_num_threads(2)
        torch.ones(4_000_000).mul_(2)  # torch's threads are there now
        def tasks(): return len(os.listdir("/proc/self/task"))
        pack = haotuner.load(sys.argv[1], threads=2)
        linear, x = pack.op("dense_n100_k37").bind(torch.ones(100, 37)), torch.ones(500, 37)
        if not adapter.share_threads(pack): print("none"); raise SystemExit
        before = tasks()
        for _ in range(50): assert (linear(x) == 37).all()
        with_team = tasks() - before
        adapter.share_threads(pack, share=False)
        for _ in range(50): assert (linear(x) == 37).all()
        print(with_team, tasks() - before)
    """
    answer = fresh(script, str(built_pack.path)).stdout.split()
    assert answer in (["0", "1"], ["none"])


def test_many_threads_on_one_team(shared, weight):
    linear = shared.op(DENSE).bind(weight)
    expected = {m: linear(rows(m)) for m in range(1, 60)}

    def work(index: int) -> None:
        for turn in range(60):
            m = 1 + (index * 7 + turn) % 59
            assert np.array_equal(linear(rows(m)), expected[m])

    in_threads(16, work)


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_no_team_to_wait_for(shared, weight):
    """OpenMP's threads do not exist in the child; a call that asked them would hang."""
    linear = shared.op(DENSE).bind(weight)
    x = rows(300)
    before = linear(x)
    child = os.fork()
    if child == 0:
        os._exit(0 if all(np.array_equal(linear(x), before) for _ in range(20)) else 1)
    assert ended(child, CHILD_LIMIT_S) == 0
    assert np.array_equal(linear(x), before)


def test_new_outputs_come_from_torch(built_pack, weight):
    """Without out the library asks torch for the memory: any rank, empty or not, and the caller owns it alone."""
    with haotuner.load(built_pack.path, threads=1) as pack, torch.inference_mode():
        linear = pack.op(DENSE).bind(weight)
        for shape in ((37,), (5, 37), (2, 3, 37), (0, 37), (2, 0, 37)):
            x = torch.randn(shape)
            y = linear(x)
            assert type(y) is torch.Tensor and y.shape == (*shape[:-1], 100) and y.is_contiguous()
            assert np.array_equal(y.numpy(), linear(x.numpy()))
        x = torch.randn(3, 37)
        y, z = linear(x), linear(x)
        assert y.data_ptr() != z.data_ptr()
        y.zero_()
        assert not torch.equal(y, z)


@pytest.mark.long
def test_new_outputs_are_given_back(built_pack, weight):
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")

    with haotuner.load(built_pack.path, threads=1) as pack, torch.inference_mode():
        linear = pack.op(DENSE).bind(weight)
        x = torch.randn(2000, 37)
        refused = torch.randn(2000, 37).double(), torch.randn(2000, 74)[:, ::2], torch.randn(2000, 36)
        for turn in range(320):
            if turn == 20:
                before = resident()
            linear(x)  # 800 kB
            for wrong in refused:  # after the output was built_pack, or before
                with pytest.raises((TypeError, ValueError), match="x"):
                    linear(wrong)
            if turn % 20 == 19:
                gc.collect()  # errors hold their frames in cycles
        assert resident() - before < 50 << 20


class Two(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.only = torch.nn.Linear(37, 100)

    def forward(self, x: Any) -> Any:
        return torch.relu(self.only(x * 2))


def swapped(path: Path, register: bool) -> tuple[Any, Any]:
    """A model whose pack and operators nobody else holds."""
    pack = haotuner.load(path, threads=2)
    net = Two().eval()
    expected = net(torch.full((4, 37), 0.5)).detach()
    adapter.swap_linears(net, pack, adapter.register(pack) if register else None)
    return net, expected


@pytest.mark.long
@pytest.mark.parametrize("register", [True, False], ids=["whole", "with_breaks"])
def test_a_compiled_model_keeps_what_it_calls(built_pack, register):
    net, expected = swapped(built_pack.path, register)
    gc.collect()
    with torch.inference_mode():
        compiled = torch.compile(net, fullgraph=register, dynamic=True, backend="aot_eager")
        for m in (4, 1, 9):
            y = compiled(torch.full((m, 37), 0.5))
            assert torch.allclose(y, expected[:1].expand(m, -1), atol=2e-5)
    torch._dynamo.reset()
    del net, compiled
    gc.collect()
    with haotuner.load(built_pack.path) as pack, adapter.register(pack) as handle:  # the names are free again
        assert handle.pack_weight(SMALLEST, torch.ones(1, 1)).numel() >= 1
        adapter.share_threads(pack, share=False)
