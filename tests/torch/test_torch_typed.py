"""Torch around ops of other types and with activations: bfloat16 models, fused layers, copies, casts, compiled calls."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

import haotuner  # noqa: E402
import haotuner.torch as adapter  # noqa: E402
from haotuner.backends.cpu.pack_source import pack_library  # noqa: E402
from haotuner.pack.write import write_pack  # noqa: E402
from tests.run_folder import toolchain  # noqa: E402
from tests.runtime.conv_packs import packed_conv  # noqa: E402
from tests.runtime.packs import LANES, best_level, document, packed_op  # noqa: E402
from tests.runtime.typed_packs import typed_op  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: Any) -> Path:
    level, out = best_level(), Path(tmp_path_factory.mktemp("typed"))
    lanes = LANES[level]
    ops: list[Any] = [
        packed_op(name, lanes, lanes, (1, 2)) for name in ("dense_n24_k8_bias_gelu", "dense_n8_k24", "dense_n24_k8_silu")
    ]
    ops += [typed_op(name, lanes) for name in ("dense_n24_k8_bf16_bias_gelu", "dense_n8_k24_bf16", "dense_n24_k8_int8")]
    ops += [typed_op(name, lanes) for name in ("dense_n24_k8_bf16", "dense_n8_k8_bf16")]
    ops.append(typed_op("dense_n24_k8_outbf16_bias_relu_residual", lanes))
    ops.append(packed_conv("conv2d:c=3,f=5,r=3,s=3,pad=1,epilogue=bias+hardswish", lanes))
    ops.append(packed_conv("conv2d:c=5,f=4,r=1,s=1,layout=nhwc,epilogue=relu", lanes))
    pack_library(ops, level, toolchain(), out / "pack.so")
    write_pack(out / "pack", out / "pack.so", document(ops, level), lambda _: None)
    return out / "pack"


@pytest.fixture
def pack(folder: Path) -> Iterator[Any]:
    with haotuner.load(folder, threads=1) as opened:
        yield opened


def model(kind: Any = None) -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(8, 24), torch.nn.GELU(), torch.nn.Linear(24, 8)).to(kind).eval()


@pytest.mark.long
@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_a_linear_and_its_activation_are_one_op(pack: Any, kind: Any) -> None:
    plain, served, x = model(kind), model(kind), torch.randn(5, 8).to(kind)
    assert set(adapter.ops_of(plain, fuse=True)) == {
        f"dense:n=24,k=8{'' if kind is torch.float32 else ',dtype=bf16'},epilogue=bias+gelu",
        f"dense:n=8,k=24{'' if kind is torch.float32 else ',dtype=bf16'}",
    }
    assert "epilogue" not in str(adapter.ops_of(plain, x))
    done = adapter.swap(served, pack)
    assert done.replaced == ("0", "2") and not done.left
    near = {"atol": 1e-5, "rtol": 1e-5} if kind is torch.float32 else {"atol": 0.02, "rtol": 0.02}
    with torch.inference_mode():
        expected = plain(x)
        for net in (served, copy.deepcopy(served), pickle.loads(pickle.dumps(served))):
            output = net(x)
            assert output.dtype is kind and torch.allclose(output, expected, **near)
    assert type(pickle.loads(pickle.dumps(served))[1]) is torch.nn.GELU
    assert all(torch.equal(served.state_dict()[key], value) for key, value in plain.state_dict().items())
    other = model(kind)
    for parameter in other.parameters():
        torch.nn.init.normal_(parameter)
    served.load_state_dict(other.state_dict())
    with torch.inference_mode():
        assert torch.allclose(served(x), other(x), atol=0.2 if kind is torch.bfloat16 else 1e-4, rtol=0.05)


def test_what_is_used_twice_or_hooked_is_not_fused(pack: Any) -> None:
    shared = torch.nn.Linear(8, 24)
    twice = torch.nn.ModuleList([torch.nn.Sequential(shared, torch.nn.GELU()), torch.nn.Sequential(shared, torch.nn.GELU())])
    assert adapter.swap(twice, pack).replaced == () and type(twice[0][1]) is torch.nn.GELU
    hooked = model()
    hooked[1].register_forward_hook(lambda *_: None)
    assert adapter.swap(hooked, pack).replaced == ("2",)
    bare = torch.nn.Sequential(torch.nn.Linear(8, 24, bias=False), torch.nn.SiLU()).eval()
    x = torch.randn(3, 8)
    with torch.inference_mode():
        expected = bare(x)
        assert adapter.swap(bare, pack).replaced == ("0",) and torch.allclose(bare(x), expected, atol=1e-5)


def test_types_are_those_of_torch(pack: Any) -> None:
    served, x = model(torch.bfloat16), torch.randn(5, 8)
    adapter.swap(served, pack)
    with torch.inference_mode():
        with pytest.raises(TypeError, match="x has dtype torch.float32"):
            served(x)
        with torch.autocast("cpu", torch.bfloat16):
            assert served(x).dtype is torch.bfloat16
        with pytest.raises(TypeError, match="served in torch.bfloat16"):
            served.float()
    half = torch.nn.Sequential(torch.nn.Linear(8, 24, dtype=torch.float16))
    assert "dtype=fp16" in adapter.swap(half, pack).left["0"]


def test_registered_ops_have_the_types_of_the_op(pack: Any) -> None:
    with adapter.register(pack) as registered, torch.inference_mode():
        weight = torch.randint(-128, 128, (24, 8), dtype=torch.int8)
        x = torch.randint(0, 256, (3, 8), dtype=torch.uint8)
        packed = registered.pack_weight("dense_n24_k8_int8", weight)
        output = torch.ops.haotuner.dense_n24_k8_int8(x, packed)
        assert output.dtype is torch.int32 and torch.equal(output, x.int() @ weight.int().T)
        served, inputs = model(torch.bfloat16), torch.randn(5, 8, dtype=torch.bfloat16)
        expected = model(torch.bfloat16)(inputs)
        adapter.swap(served, pack, registered)
        operator, layer = torch.ops.haotuner.dense_n24_k8_bf16_bias_gelu, served[0]
        assert operator(inputs, layer.packed, layer.row).dtype is torch.bfloat16
        assert torch.allclose(served(inputs), expected, atol=0.02)


def test_float32_layers_may_write_bfloat16(pack: Any) -> None:
    torch.manual_seed(2)
    layer, x, residual = torch.nn.Linear(8, 24), torch.randn(5, 8), torch.randn(5, 24).bfloat16()
    with adapter.register(pack) as registered, torch.inference_mode():
        expected = (torch.relu(layer(x)) + residual.float()).bfloat16()
        served = pack.op("dense_n24_k8_outbf16_bias_relu_residual").bind(layer.weight, layer.bias)
        output = served(x, residual=residual)
        packed = registered.pack_weight("dense_n24_k8_outbf16_bias_relu_residual", layer.weight)
        operator = torch.ops.haotuner.dense_n24_k8_outbf16_bias_relu_residual
        assert torch.equal(output, operator(x, packed, layer.bias, residual))
    assert output.dtype is torch.bfloat16 and torch.allclose(output.float(), expected.float(), rtol=0.01, atol=1e-3)


def test_a_convolution_and_its_activation_are_one_op(pack: Any) -> None:
    torch.manual_seed(0)
    plain = torch.nn.Sequential(
        torch.nn.Conv2d(3, 5, 3, padding=1), torch.nn.Hardswish(), torch.nn.Conv2d(5, 4, 1, bias=False), torch.nn.ReLU()
    ).eval()
    assert set(adapter.ops_of(plain, fuse=True)) == {
        "conv2d:c=3,f=5,r=3,s=3,pad=1,epilogue=bias+hardswish", "conv2d:c=5,f=4,r=1,s=1,epilogue=relu",
    }  # fmt: skip
    served, x = copy.deepcopy(plain), torch.randn(2, 3, 7, 9)
    with torch.inference_mode(), adapter.register(pack) as registered:
        expected = plain(x)
        assert adapter.swap(served, pack, registered).replaced == ("0", "2")
        for net in (served, copy.deepcopy(served), pickle.loads(pickle.dumps(served))):
            assert torch.allclose(net(x), expected, atol=1e-5)
        assert all(torch.equal(served.state_dict()[key], value) for key, value in plain.state_dict().items())
        served.load_state_dict({key: value * 2 for key, value in plain.state_dict().items()})
        assert not torch.allclose(served(x), expected, atol=1e-3)


def test_attention_in_bfloat16_is_served_in_bfloat16(pack: Any) -> None:
    torch.manual_seed(1)
    plain = torch.nn.ModuleList([torch.nn.MultiheadAttention(8, 2, batch_first=True)]).bfloat16().eval()
    served, x = copy.deepcopy(plain), torch.randn(2, 5, 8).bfloat16()
    assert set(adapter.ops_of(plain)) == {"dense:n=24,k=8,dtype=bf16", "dense:n=8,k=8,dtype=bf16"}
    assert set(adapter.swap(served, pack).replaced) == {"0.in_proj_weight", "0.out_proj"}
    with torch.inference_mode():
        expected, output = plain[0](x, x, x)[0], served[0](x, x, x)[0]
        assert output.dtype is torch.bfloat16 and torch.allclose(output.float(), expected.float(), atol=0.03, rtol=0.03)
        assert all(torch.equal(a, b) for a, b in zip(served.state_dict().values(), plain.state_dict().values(), strict=True))
