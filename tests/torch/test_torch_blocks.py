"""A ResNet block and a MobileNetV3 block from the ops they need to served: folded norms, fused activations, what is left."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from haotuner.backends.cpu.pack_source import pack_library  # noqa: E402
from haotuner.pack.write import write_pack  # noqa: E402
from tests.run_folder import toolchain  # noqa: E402
from tests.runtime.conv_packs import packed_conv  # noqa: E402
from tests.runtime.odd_tensors import ODD, odd  # noqa: E402
from tests.runtime.packs import LANES, best_level, document  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
nn = torch.nn


class Basic(nn.Module):  # type: ignore[misc, name-defined]
    """As torchvision's BasicBlock: norms and activations are children of their own, and one activation is used twice."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inside, outside, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outside)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(outside, outside, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outside)
        self.downsample = nn.Sequential(nn.Conv2d(inside, outside, 1, stride=2, bias=False), nn.BatchNorm2d(outside))

    def forward(self, x: Any) -> Any:
        out = self.relu(self.bn1(self.conv1(x)))
        return self.relu(self.bn2(self.conv2(out)) + self.downsample(x))


class Normed(nn.Sequential):  # type: ignore[misc, name-defined]
    """As torchvision's Conv2dNormActivation: a Sequential of another name."""


class Squeeze(nn.Module):  # type: ignore[misc, name-defined]
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1, self.fc2 = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, channels, 1)
        self.activation, self.scale_activation = nn.ReLU(), nn.Hardsigmoid()

    def forward(self, x: Any) -> Any:
        return x * self.scale_activation(self.fc2(self.activation(self.fc1(self.avgpool(x)))))


class Inverted(nn.Module):  # type: ignore[misc, name-defined]
    """As torchvision's InvertedResidual of MobileNetV3."""

    def __init__(self, channels: int, wide: int) -> None:
        super().__init__()

        def part(inside: int, out: int, side: int, groups: int, act: Any) -> Any:
            layer = nn.Conv2d(inside, out, side, padding=side // 2, groups=groups, bias=False)
            return Normed(layer, nn.BatchNorm2d(out, eps=0.001), *(() if act is None else (act(),)))

        self.block = nn.Sequential(
            part(channels, wide, 1, 1, nn.Hardswish), part(wide, wide, 3, wide, nn.Hardswish), Squeeze(wide),
            part(wide, channels, 1, 1, None),
        )  # fmt: skip

    def forward(self, x: Any) -> Any:
        return x + self.block(x)


def net(kind: Any = None) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(Basic(3, 8), Inverted(8, 12))
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_()
            module.running_var.uniform_(0.5, 2)
            nn.init.normal_(module.weight)
            nn.init.normal_(module.bias)
    return model.to(kind).eval()


IMAGES = torch.randn(2, 3, 17, 13)


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Any:
    level, out = best_level(), Path(tmp_path_factory.mktemp("blocks"))
    specs = [*adapter.ops_of(net(), fuse=True), *adapter.ops_of(net(torch.bfloat16), fuse=True)]
    ops = [packed_conv(spec, LANES[level]) for spec in specs]
    pack_library(ops, level, toolchain(), out / "pack.so")
    write_pack(out / "pack", out / "pack.so", document(ops, level), lambda _: None)
    with haotuner.load(out / "pack", threads=1) as opened:
        yield opened


def close(output: Any, expected: Any) -> bool:
    loose = 0.05 if expected.dtype is torch.bfloat16 else 1e-4
    return output.dtype is expected.dtype and bool(torch.allclose(output.float(), expected.float(), atol=loose, rtol=loose))


@pytest.mark.long
def test_norms_are_folded_and_activations_fused_where_a_forward_shows_them(pack: Any) -> None:
    plain, served = net(), net()
    report = adapter.swap(served, pack)
    assert len(report.replaced) == 8 and not report.left and not report.unfolded
    assert report.folded["0.bn1"] == "0.conv1" and len(report.folded) == 6
    assert "batch norms folded into the convolution before (6): 0.bn1" in str(report)
    assert report.fused == {
        "0.conv1": "0.relu", "1.block.0.0": "1.block.0.2", "1.block.1.0": "1.block.1.2",
        "1.block.2.fc1": "1.block.2.activation", "1.block.2.fc2": "1.block.2.scale_activation",
    }  # fmt: skip
    assert type(served[0].relu) is nn.ReLU and type(served[0].bn1) is nn.BatchNorm2d
    with torch.inference_mode():
        assert close(served(IMAGES), plain(IMAGES))


def test_state_goes_both_ways_and_copies_are_apart(pack: Any) -> None:
    plain, served = net(), net()
    adapter.swap(served, pack)
    state = served.state_dict()
    assert state.keys() == plain.state_dict().keys()
    assert all(torch.equal(state[key], value) for key, value in plain.state_dict().items())
    other = net()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(0.7)
    twin = copy.deepcopy(served)
    served.load_state_dict(other.state_dict())
    with torch.inference_mode():
        assert close(served(IMAGES), other(IMAGES)) and close(twin(IMAGES), plain(IMAGES))
        assert close(pickle.loads(pickle.dumps(served))(IMAGES), other(IMAGES))
    assert not any(type(module).__name__.startswith("Packed") for module in pickle.loads(pickle.dumps(served)).modules())


def test_a_bfloat16_net_is_served_in_bfloat16(pack: Any) -> None:
    plain, served = net(torch.bfloat16), net(torch.bfloat16)
    report = adapter.swap(served, pack)
    assert len(report.replaced) == 8 and not report.left
    with torch.inference_mode():
        assert close(served(IMAGES.bfloat16()), plain(IMAGES.bfloat16()))


def test_a_norm_in_training_stays_and_is_named(pack: Any) -> None:
    served = net()
    served[0].bn1.train()
    report = adapter.swap(served, pack)
    assert report.unfolded == {"0.bn1": "it takes its statistics from the batch: call model.eval() first"}
    assert type(served[0].bn1) is nn.BatchNorm2d and "batch norm left: 0.bn1" in str(report)


def test_a_fused_convolution_is_an_operator_of_torch(pack: Any) -> None:
    name = "conv2d_c8_f12_r1_s1_bias_hardswish"
    layer = nn.Conv2d(8, 12, 1)
    x = torch.randn(2, 8, 5, 7).transpose(2, 3)
    with torch.inference_mode(), adapter.register(pack) as handle:
        packed = handle.pack_weight(name, layer.weight)
        output = getattr(torch.ops.haotuner, name)(x, packed, layer.bias)
        assert close(output, nn.functional.hardswish(layer(x)))
        with pytest.raises(RuntimeError, match="with 8 channels"):
            getattr(torch.ops.haotuner, name)(x[:, :3], packed, layer.bias)
        with pytest.raises(TypeError, match="expected float32"):
            getattr(torch.ops.haotuner, name)(x.double(), packed, layer.bias)
        with pytest.raises(ValueError, match="bias has last extent 3"):
            getattr(torch.ops.haotuner, name)(x, packed, layer.bias[:3])


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_odd_tensors_are_right_or_refused_by_the_operator(pack: Any, kind: Any) -> None:
    layer = nn.Conv2d(8, 12, 1).to(kind)
    name = f"conv2d_c8_f12_r1_s1_{'bf16_' if kind is torch.bfloat16 else ''}bias_hardswish"
    rng, right = np.random.default_rng(0), 0
    with torch.inference_mode(), adapter.register(pack) as handle:
        packed, call = handle.pack_weight(name, layer.weight), getattr(torch.ops.haotuner, name)
        operands = {"x": torch.randn(2, 8, 5, 6).numpy(), "packed": packed.numpy(), "bias": layer.bias.float().numpy()}
        for _ in range(150):
            at, way = rng.choice(list(operands)), rng.choice([way for way in ODD if way != "backwards"])
            altered: dict[str, Any] = dict(operands)
            altered[at] = odd(rng, altered[at], way)
            tensors = {key: torch.from_numpy(value) for key, value in altered.items()}
            if tensors["x"].dtype is torch.float32:
                tensors["x"] = tensors["x"].to(kind) if way != "overlapping" else tensors["x"]
            try:
                output = call(*tensors.values())
            except (RuntimeError, TypeError, ValueError) as error:
                assert name in str(error), (at, way, str(error))
                continue
            if at == "packed" and way not in ("none", "apart", "turned"):
                continue  # other numbers of the right size are another weight
            expected = nn.functional.hardswish(
                nn.functional.conv2d(tensors["x"].float(), layer.weight.float(), tensors["bias"])
            )
            assert output.shape == expected.shape and close(output, expected.to(kind)), (at, way)
            right += 1
    assert right > 30


@pytest.mark.slow
def test_three_lines_from_a_net_to_a_served_one(tmp_path: Path) -> None:
    model, plain = net(), net()
    haotuner.tune(list(adapter.ops_of(model, fuse=True)), "b=1..2;h=4..16;w=h", zero_measure=True, out=tmp_path / "pack")
    report = adapter.swap(model, haotuner.load(tmp_path / "pack", threads=1))
    assert len(report.replaced) == 8 and not report.left, str(report)
    with torch.inference_mode():
        assert close(model(IMAGES), plain(IMAGES))
