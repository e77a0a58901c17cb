"""A pack inside PyTorch: registered ops, their fakes, compiled graphs, and models with their linears swapped."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from haotuner.errors import UsageError  # noqa: E402
from tests.runtime.conftest import DENSE, SMALLEST  # noqa: E402

ROWS = (0, 1, 2, 7, 64, 2049)
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture
def registered(built_pack) -> Iterator[Any]:
    with haotuner.load(built_pack.path, threads=2) as pack, adapter.register(pack) as handle:
        yield handle


@pytest.fixture
def layer() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(37, 100).eval()


def close(output: Any, expected: Any) -> bool:
    return bool(torch.allclose(output, expected, atol=2e-5, rtol=1e-4))


@pytest.mark.parametrize("m", ROWS)
def test_ops_and_out_variants(registered, layer, m):
    op, packed = getattr(torch.ops.haotuner, DENSE), registered.pack_weight(DENSE, layer.weight)
    x, bias = torch.randn(m, 37), layer.bias.detach()
    with torch.inference_mode():
        expected = layer(x)
        assert close(op(x, packed, bias), expected)
        assert close(op(x, packed) + bias, expected)
        out = torch.empty(m, 100)
        op.out(x, packed, bias, out=out)
        assert close(out, expected)
        assert close(op(torch.randn(37, m).t(), packed), op(torch.zeros(m, 37), packed)) == (m == 0)  # strides are copied


def test_opcheck(registered, layer):
    packed = registered.pack_weight(DENSE, layer.weight)
    op = getattr(torch.ops.haotuner, DENSE)
    for x in (torch.randn(5, 37), torch.randn(2, 3, 37), torch.randn(0, 37)):
        torch.library.opcheck(op.default, (x, packed, layer.bias.detach()))
        torch.library.opcheck(op.out, (x, packed), {"out": torch.empty(*x.shape[:-1], 100)})


def test_compiled_whole_for_every_m(registered, layer):
    packed, bias = registered.pack_weight(DENSE, layer.weight), layer.bias.detach()
    op = getattr(torch.ops.haotuner, DENSE).default

    def model(x: Any) -> Any:
        return torch.relu(op(x * 2, packed, bias)) + 1

    compiled = torch.compile(model, fullgraph=True, dynamic=True, backend="aot_eager")
    with torch.inference_mode():
        for m in ROWS:
            x = torch.randn(m, 37)
            assert close(compiled(x), torch.relu(layer(x * 2)) + 1)


def test_refusals(registered, layer, built_pack):
    op, packed = getattr(torch.ops.haotuner, DENSE), registered.pack_weight(DENSE, layer.weight)
    with pytest.raises(ValueError, match="requires grad"):
        op(torch.randn(2, 37, requires_grad=True), packed)
    with pytest.raises(ValueError, match="last extent 36"):
        op(torch.randn(2, 36), packed)
    with pytest.raises((TypeError, ValueError), match="float32"):
        op(torch.randn(2, 37).double(), packed)
    with pytest.raises(ValueError, match="not packed"):
        op(torch.randn(2, 37), layer.weight.detach())
    with haotuner.load(built_pack.path) as second, pytest.raises(UsageError, match="already"):
        adapter.register(second)


def test_a_packed_weight_with_strides_of_its_own_is_refused(registered, layer):
    """The kernels go by its extents: other strides gave wrong numbers, one element expanded killed the process."""
    op, packed = getattr(torch.ops.haotuner, DENSE), registered.pack_weight(DENSE, layer.weight)
    panels, k, pw = packed.shape
    x, bias, out = torch.randn(3, 37), layer.bias.detach(), torch.full((3, 100), -1.0)
    turned = packed.permute(2, 1, 0).contiguous().permute(2, 1, 0)
    spread = torch.zeros(panels, k, 2 * pw)[:, :, ::2].copy_(packed)
    expanded = torch.ones(1, 1, 1).expand(panels, k, pw)
    assert torch.equal(turned, packed) and torch.equal(spread, packed)
    for wrong in (turned, spread, expanded, packed[:1].expand(panels, k, pw)):
        with pytest.raises(ValueError, match="weight has strides"):
            op(x, wrong)
        with pytest.raises(ValueError, match="weight has strides"):
            op.out(x, wrong, bias, out=out)
    assert (out == -1).all()
    assert torch.equal(op(x, packed.clone()), op(x, packed))
    with pytest.raises(ValueError, match="bias must be contiguous"):
        op(x, packed, torch.ones(1).expand(100))


def test_registering_again_after_close(built_pack):
    for _ in range(2):
        with haotuner.load(built_pack.path) as pack, adapter.register(pack) as handle:
            packed = handle.pack_weight(SMALLEST, torch.full((1, 1), 3.0))
            assert (getattr(torch.ops.haotuner, SMALLEST)(torch.ones(2, 1), packed) == 3).all()
        assert not hasattr(torch.ops.haotuner, SMALLEST)


class Net(torch.nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(37, 100)
        self.back = torch.nn.Linear(100, 37)  # the pack has no such op
        self.blocks = torch.nn.Sequential(torch.nn.Linear(37, 100), torch.nn.GELU(), torch.nn.Linear(100, 37))
        self.tied = self.first
        self.plain = torch.nn.Linear(37, 100, bias=False)

    def forward(self, x: Any) -> Any:
        x = self.back(self.first(x))
        x = self.blocks(x) + self.back(self.tied(x))
        return self.plain(x.transpose(0, -2).transpose(0, -2))


def test_swapped_models_give_the_same_results(built_pack):
    torch.manual_seed(1)
    net = Net().eval()
    inputs = [torch.randn(m, 37) for m in ROWS] + [torch.randn(2, 5, 37), torch.randn(37, 4).t()]
    with torch.inference_mode(), haotuner.load(built_pack.path, threads=1) as pack:
        expected_outputs = [net(x) for x in inputs]
        assert set(adapter.swap_linears(net, pack)) == {"first", "blocks.0", "tied", "plain"}
        assert net.tied is net.first and isinstance(net.first, adapter.PackedLinear) and "op=dense" in repr(net)
        assert all(close(net(x), expected) for x, expected in zip(inputs, expected_outputs, strict=True))
        assert adapter.swap_linears(net, pack) == ()


def test_a_layer_that_is_the_model_is_left_with_its_reason(built_pack):
    with haotuner.load(built_pack.path) as pack:
        for layer in (torch.nn.Linear(37, 100), torch.nn.MultiheadAttention(37, 1), torch.nn.Conv2d(3, 4, 3)):
            done = adapter.swap(layer, pack)
            assert not done.replaced and "Sequential" in done.left[type(layer).__name__]
        for wrong in ((None, pack), (torch.nn.ReLU(), str(built_pack.path))):
            with pytest.raises(TypeError, match=r"swap takes a torch\.nn\.Module and a pack"):
                adapter.swap(*wrong)


def test_swapped_models_compile_whole(registered, built_pack):
    net = Net().eval()
    with torch.inference_mode():
        expected = {m: net(torch.full((m, 37), 0.5)) for m in ROWS}
        adapter.swap_linears(net, registered._pack, registered)
        compiled = torch.compile(net, fullgraph=True, dynamic=True, backend="aot_eager")
        for m in ROWS:
            assert close(compiled(torch.full((m, 37), 0.5)), expected[m])


def test_transformer_layers_keep_working(built_pack):
    layer = torch.nn.TransformerEncoderLayer(37, 1, 100, batch_first=True, activation="gelu").eval()
    x = torch.randn(2, 6, 37)
    with torch.inference_mode(), haotuner.load(built_pack.path) as pack:
        expected = layer(x)
        assert adapter.swap_linears(layer, pack) == ("linear1",)
        assert close(layer(x), expected)


@pytest.mark.slow
def test_inductor_compiles_a_swapped_model(registered):
    net = Net().eval()
    with torch.inference_mode():
        expected = {m: net(torch.full((m, 37), 0.5)) for m in ROWS}
        adapter.swap_linears(net, registered._pack, registered)
        compiled = torch.compile(net, fullgraph=True, dynamic=True)
        for m in ROWS:
            assert close(compiled(torch.full((m, 37), 0.5)), expected[m])
