"""Convolutional nets of torch served from a pack: results, types, memory, copies, saved state, what is left and why."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from tests.runtime.conv_packs import conv_pack  # noqa: E402
from tests.runtime.packs import LANES, best_level  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


class Net(torch.nn.Module):  # type: ignore[misc]
    """A stem, a depthwise layer, a layer with odd pads, one that goes up again, and two that no pack serves."""

    def __init__(self) -> None:
        super().__init__()
        nn = torch.nn
        self.stem = nn.Conv2d(3, 8, 3, stride=2, padding=1, bias=False)
        self.deep = nn.Conv2d(8, 8, 3, padding="same", groups=8)
        self.even = nn.Conv2d(8, 6, (2, 4), padding="same")
        self.up = nn.ConvTranspose2d(6, 4, 3, stride=2, padding=1, output_padding=1)
        self.mirror = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.circle = nn.Conv1d(4, 4, 3, padding=1, padding_mode="circular")

    def forward(self, x: Any) -> Any:
        x = torch.relu(self.stem(x))
        x = self.up(torch.relu(self.even(self.deep(x))))
        return self.circle(self.mirror(x).flatten(2)).reshape(x.shape)


@pytest.fixture(scope="module")
def net() -> Any:
    torch.manual_seed(0)
    return Net().eval()


@pytest.fixture(scope="module")
def path(net: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    specs = [*adapter.ops_of(net), *(f"{spec},layout=nhwc" for spec in adapter.ops_of(net))]
    return conv_pack(tmp_path_factory.mktemp("net") / "pack", specs, LANES[best_level()])


def close(output: Any, expected: Any) -> bool:
    return output.shape == expected.shape and bool(torch.allclose(output, expected, atol=1e-4, rtol=1e-4))


def test_the_ops_of_a_net_are_told(net):
    assert adapter.ops_of(net) == {
        "conv2d:c=3,f=8,r=3,s=3,stride=2,pad=1": 1,
        "conv2d:c=8,f=8,r=3,s=3,pad=1,groups=8": 1,
        "conv2d:c=8,f=6,r=2,s=4,pad=0.1.1.2": 1,
        "conv_transpose2d:c=6,f=4,r=3,s=3,stride=2,pad=1,opad=1": 1,
    }
    assert sum(adapter.ops_of(net, torch.randn(1, 3, 8, 8)).values()) == 4


def test_layers_whose_weight_lies_both_ways_follow_the_others():
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.Conv2d(8, 8, 3, groups=8), torch.nn.Conv2d(8, 4, 1)).eval()
    assert not any("nhwc" in spec for spec in adapter.ops_of(net))
    specs = adapter.ops_of(net.to(memory_format=torch.channels_last))
    assert len(specs) == 3 and all("layout=nhwc" in spec for spec in specs)


def test_lazy_compiled_and_quantised_layers(path):
    nn = torch.nn
    lazy = nn.Sequential(nn.LazyConv2d(8, 3), nn.Flatten(), nn.LazyLinear(3)).eval()
    assert adapter.ops_of(lazy) == {}
    with haotuner.load(path, threads=1) as pack:
        assert all("its weight has no size yet" in why for why in adapter.swap(lazy, pack).left.values())
        quantised = nn.Sequential(torch.ao.nn.quantized.dynamic.Linear(3, 4))
        assert "is not served, only nn.Linear" in adapter.swap(quantised, pack).left["0"]
    assert adapter.ops_of(lazy, torch.randn(1, 3, 8, 8)) == {"conv2d:c=3,f=8,r=3,s=3": 1, "dense:n=3,k=288": 1}
    compiled = torch.compile(lazy, backend="eager")
    with torch.inference_mode():
        compiled(torch.randn(1, 3, 8, 8))
    assert adapter.ops_of(compiled, torch.randn(1, 3, 8, 8)) == adapter.ops_of(lazy)


@pytest.mark.parametrize("last", [False, True])
def test_a_net_gives_what_it_gave(net, path, last):
    served = copy.deepcopy(net)
    x = torch.randn(2, 3, 17, 14)
    if last:
        served, x = served.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    with torch.inference_mode(), haotuner.load(path, threads=1) as pack:
        expected = net(x)
        report = adapter.swap(served, pack)
        assert set(report.replaced) == {"stem", "deep", "even", "up"}
        assert "padding_mode='reflect'" in report.left["mirror"] and "circular" in report.left["circle"]
        assert ("nhwc" in served.even.extra_repr()) == last
        assert close(served(x), expected)
        assert close(served(x.transpose(2, 3).contiguous().transpose(2, 3)), expected)  # any strides
        assert close(served.stem(x[0]), net.stem(x[0]))
        twin, back = copy.deepcopy(served), pickle.loads(pickle.dumps(served))
        assert close(twin(x), expected) and close(back(x), expected) and type(back.stem) is torch.nn.Conv2d
        state = served.state_dict()
        assert {key: tuple(value.shape) for key, value in state.items()} == {
            k: tuple(v.shape) for k, v in net.state_dict().items()
        }
        doubled, other = {key: value * 2 for key, value in state.items()}, copy.deepcopy(net)
        served.load_state_dict(doubled)
        other.load_state_dict(doubled)
        assert close(served(x), other(x)) and close(twin(x), expected)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert served.stem(x).dtype == torch.bfloat16
        small = torch.randn(1, 6, 3, 3)
        assert torch.equal(served.up(small, output_size=(6, 6)), served.up(small))
        with pytest.raises(ValueError, match=r"output_size \(5, 5\), where an image of \(3, 3\) becomes \(6, 6\)"):
            served.up(small, output_size=(1, 4, 5, 5))
        served.stem.stride, served.stem.dilation = [2, 2], 1
        with pytest.raises(TypeError, match=r"stride = 1, which is \(2, 2\); a served convolution keeps its settings"):
            served.stem.stride = 1
        for odd in ([[1.0]], torch.eye(3).to_sparse()):
            with pytest.raises(TypeError, match="expected a strided torch.Tensor"):
                served.stem(odd)
    with pytest.raises(haotuner.errors.PackClosed), torch.inference_mode():
        served(x)


def test_what_a_pack_lacks_is_named(path):
    other = torch.nn.Sequential(torch.nn.Conv1d(3, 5, 3, dilation=2))
    with haotuner.load(path, threads=1) as pack:
        report = adapter.swap(other, pack)
    assert report.replaced == () and report.left["0"] == "not in the pack: tune it with --op conv1d:c=3,f=5,s=3,dilation=2"


def test_registered_ops_and_compiled_nets(net, path):
    x = torch.randn(2, 3, 9, 12)
    with torch.inference_mode(), haotuner.load(path, threads=1) as pack, adapter.register(pack) as handle:
        name = "conv2d_c3_f8_r3_s3_stride2_pad1"
        op, packed = getattr(torch.ops.haotuner, name), handle.pack_weight(name, net.stem.weight)
        assert close(op(x, packed), net.stem(x))
        out = torch.empty(2, 8, 5, 6)
        op.out(x.transpose(2, 3).contiguous().transpose(2, 3), packed, torch.ones(8), out=out)
        assert close(out, net.stem(x) + 1)
        for wrong in (x[:, :2], x[..., 0], torch.randn(1, 3, 0, 4)):
            with pytest.raises((RuntimeError, ValueError)):
                op(wrong, packed)
        served = copy.deepcopy(net)
        adapter.swap(served, pack, handle)
        with torch.no_grad():
            compiled = torch.compile(served.stem, backend="aot_eager", dynamic=True, fullgraph=True)
            for image in (x, torch.randn(1, 3, 20, 7)):
                assert close(compiled(image), net.stem(image))
