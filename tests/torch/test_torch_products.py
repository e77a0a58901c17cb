"""batch_matmul under torch.ops: attention without transposes, as torch computes it, compiled too."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import haotuner
from tests.runtime.packs import LANES, best_level
from tests.runtime.product_packs import product_pack

torch = pytest.importorskip("torch")


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    level = best_level()
    path = product_pack(
        tmp_path_factory.mktemp("torch") / "pack", ("batch_matmul:", "batch_matmul:layout=nt"), LANES[level], level
    )
    with haotuner.load(path, threads=1) as opened:
        yield opened


@pytest.fixture(scope="module")
def ops(pack: Any) -> Iterator[Any]:
    from haotuner.torch import register

    with register(pack):
        yield torch.ops.haotuner


@pytest.mark.parametrize(
    "shapes", [((5, 7), (7, 6)), ((2, 1, 5, 7), (3, 7, 6)), ((3, 5, 0), (1, 0, 6)), ((0, 5, 7), (7, 6))]
)
def test_the_library_asks_torch_for_the_output(pack: Any, shapes: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = pack.op("batch_matmul").run
    x, w = (torch.randn(shape) for shape in shapes)
    monkeypatch.setattr(type(run.__self__), "_run_named", None)  # the way of other tensors is not taken
    torch.testing.assert_close(run(x, w), x @ w)
    monkeypatch.undo()
    with pytest.raises(TypeError, match="w has dtype torch.float64"):
        run(x, w.double())


def attention(ops: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = ops.batch_matmul_nt(q, k, None, torch.tensor(0.25), mask)
    return ops.batch_matmul(scores.softmax(-1), v)


def test_attention_of_heads_that_are_slices(ops: Any) -> None:
    q, k, v = (torch.randn(2, 9, 3, 8).transpose(1, 2) for _ in range(3))
    mask = torch.zeros(2, 1, 1, 9).masked_fill(torch.arange(9) > 6, -torch.inf)
    with torch.inference_mode():
        expected = (q @ k.transpose(-1, -2) * 0.25 + mask).softmax(-1) @ v
        torch.testing.assert_close(attention(ops, q, k, v, mask), expected)
        out = torch.empty(2, 9, 3, 8)
        ops.batch_matmul.out(torch.eye(9).expand(2, 3, 9, 9), v, out=out.transpose(1, 2))
        torch.testing.assert_close(out.transpose(1, 2), v)


def test_bad_input_is_told(ops: Any) -> None:
    x, w = torch.ones(2, 5, 7), torch.ones(2, 7, 6)
    with pytest.raises(ValueError, match="w has extent 6 on axis k, x has 7"):
        ops.batch_matmul(x, w.transpose(1, 2))
    with pytest.raises(TypeError, match="w has dtype torch.float64"):
        ops.batch_matmul(x, w.double())
    with pytest.raises(ValueError, match="requires grad"):
        ops.batch_matmul(x.requires_grad_(), w)
    with torch.inference_mode(), pytest.raises(ValueError, match="shares memory with x"):
        room = torch.ones(2, 5, 5)
        ops.batch_matmul.out(room, room.clone(), out=room)
    empty = ops.batch_matmul(torch.ones(2, 5, 0), torch.ones(2, 0, 6))
    assert torch.equal(empty, torch.zeros(2, 5, 6))


def test_fakes_say_the_shape(ops: Any) -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        assert ops.batch_matmul_nt(torch.empty(4, 1, 5, 8), torch.empty(3, 9, 8)).shape == (4, 3, 5, 9)
