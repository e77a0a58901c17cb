"""Torch's operators and layers for a pack on a CUDA device, without numbers. A scenario of cuda_scenarios.py."""

from __future__ import annotations

from typing import Any

import pytest

import haotuner
from haotuner.ops.dtypes import DTYPES


def torch_fakes(path: str) -> None:
    """Fakes of torch's operators say shape, dtype and device; layers of a model on the device are found and replaced."""
    torch: Any = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    import haotuner.torch as adapter

    pack = haotuner.load(path, device="cuda:0")
    (name,) = pack.ops
    op = pack.op(name)
    dtype = getattr(torch, DTYPES[op.entry.output.dtype].numpy)
    other = torch.bfloat16 if dtype is not torch.bfloat16 else torch.float32
    kn = name.endswith("_kn")
    with adapter.register(pack), FakeTensorMode():
        call = getattr(torch.ops.haotuner, name)
        stored = (op.k, op.n) if kn else (op.n, op.k)
        weight = torch.empty(*stored, device="cuda:0", dtype=dtype)
        bias = torch.empty(op.n, device="cuda:0", dtype=dtype)
        for shape in ((5,), (2, 3), (0,)):
            x = torch.empty(*shape, op.k, device="cuda:0", dtype=dtype)
            y = call(x, weight, bias)
            assert (tuple(y.shape), y.dtype, str(y.device)) == ((*shape, op.n), dtype, "cuda:0")
            assert call.out(x, weight, out=torch.empty(*shape, op.n, device="cuda:0", dtype=dtype)) is None
        for wrong, words in (
            (torch.empty(5, op.k + 1, device="cuda:0", dtype=dtype), "x must be"),
            (torch.empty(5, op.k, device="cuda:0", dtype=other), f"x has dtype {other}; expected"),
        ):
            with pytest.raises(RuntimeError, match=words):
                call(wrong, weight, bias)
        with pytest.raises(RuntimeError, match="the weight on cuda:1"):
            call(x, torch.empty(*stored, device="cuda:1", dtype=dtype))
        with pytest.raises(RuntimeError, match=r"weight must be \("):
            call(x, torch.empty(*reversed(stored), device="cuda:0", dtype=dtype))

        def layer(rows: int, device: str, kind: Any = dtype) -> Any:
            linear = torch.nn.Linear(op.k, rows, device="meta", dtype=kind)
            linear.weight = torch.nn.Parameter(torch.empty(rows, op.k, device=device, dtype=kind))
            linear.bias = torch.nn.Parameter(torch.empty(rows, device=device, dtype=kind))
            return linear

        model = torch.nn.Sequential(
            layer(op.n, "cuda:0"), layer(op.n, "cuda:1"), layer(op.n, "cpu"), layer(op.n, "cuda:0", torch.float64),
            layer(op.n + 1, "cuda:0"),
        ).eval()  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:  # a fake parameter is none by its class
            patch.setattr(torch.nn, "Parameter", FakeTensor)
            swap, ops = adapter.swap(model, pack), adapter.ops_of(model[1:])
        if kn:  # nn.Linear stores (n, k)
            assert swap.replaced == () and swap.left["0"].startswith("not in the pack: tune it with --op dense:n="), swap
            return
        assert swap.replaced == ("0",), swap
        assert isinstance(model[0], adapter.DeviceLayer) and isinstance(model[0], torch.nn.Linear)
        reasons = [
            "it lives on cuda:1",
            "it lives on cpu",
            "its weight is float64; a pack takes float32, float16 or bfloat16",
        ]
        assert list(swap.left.values())[:3] == reasons and swap.left["4"].startswith(
            "not in the pack: tune it with --op dense:n="
        )
        assert set(model.state_dict()) == {f"{index}.{part}" for index in range(5) for part in ("weight", "bias")}
        suffix = "" if dtype is torch.float32 else ",dtype=fp16"
        assert f"dense:n={op.n},k={op.k}{suffix}" in ops


def torch_groups(path: str) -> None:
    """The operator of a grouped op takes offsets; its fakes say shape, dtype and device, and refuse by name."""
    torch: Any = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    import haotuner.torch as adapter

    pack = haotuner.load(path, device="cuda:0")
    (name,) = pack.ops
    op = pack.op(name)
    dtype = getattr(torch, DTYPES[op.entry.output.dtype].numpy)
    with adapter.register(pack), FakeTensorMode():
        call = getattr(torch.ops.haotuner, name)
        weight = torch.empty(op.groups, op.n, op.k, device="cuda:0", dtype=dtype)
        bias = torch.empty(op.groups, op.n, device="cuda:0", dtype=dtype)
        x = torch.empty(5, op.k, device="cuda:0", dtype=dtype)
        offsets = torch.empty(op.groups, device="cuda:0", dtype=torch.int32)
        y = call(x, weight, offsets, bias)
        assert (tuple(y.shape), y.dtype, str(y.device)) == ((5, op.n), dtype, "cuda:0")
        assert call.out(x, weight, offsets, out=torch.empty(5, op.n, device="cuda:0", dtype=dtype)) is None
        for wrong, words in (
            (torch.empty(op.groups + 1, device="cuda:0", dtype=torch.int32), "offsets must be int32"),
            (torch.empty(op.groups, device="cuda:0", dtype=torch.int64), "offsets must be int32"),
            (torch.empty(op.groups, device="cpu", dtype=torch.int32), "offsets must be int32"),
        ):
            with pytest.raises(RuntimeError, match=words):
                call(x, weight, wrong)
        with pytest.raises(RuntimeError, match=r"weight must be \("):
            call(x, torch.empty(op.n, op.k, device="cuda:0", dtype=dtype), offsets)


def torch_products(path: str) -> None:
    """The operator of a product takes both factors; its fakes say shape, dtype and device."""
    torch: Any = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    import haotuner.torch as adapter

    pack = haotuner.load(path, device="cuda:0")
    (name,) = pack.ops
    dtype = getattr(torch, DTYPES[pack.op(name).entry.output.dtype].numpy)
    with adapter.register(pack), FakeTensorMode():
        call = getattr(torch.ops.haotuner, name)
        x = torch.empty(2, 3, 5, 16, device="cuda:0", dtype=dtype)
        w = torch.empty(3, 7, 16, device="cuda:0", dtype=dtype)
        y = call(x, w)
        assert (tuple(y.shape), y.dtype, str(y.device)) == ((2, 3, 5, 7), dtype, "cuda:0")
        assert call.out(x, w, out=y) is None
        with pytest.raises(RuntimeError, match="x and w must have two axes or more"):
            call(torch.empty(16, device="cuda:0", dtype=dtype), w)


def torch_generated(path: str) -> None:
    """The operator of a generated program is one of CUDA tensors; its fakes say shape, dtype and device."""
    torch: Any = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    import haotuner.torch as adapter

    pack = haotuner.load(path, device="cuda:0")
    (name,) = pack.ops
    entry = pack.op(name).entry
    dtype = getattr(torch, DTYPES[entry.output.dtype].numpy)
    with adapter.register(pack), FakeTensorMode():
        call, serves = getattr(torch.ops.haotuner, name), torch._C._dispatch_has_kernel_for_dispatch_key
        for overload in (name, f"{name}.out"):
            assert serves(f"haotuner::{overload}", "CUDA") and not serves(f"haotuner::{overload}", "CPU")
        x, *rest = (torch.empty(*(5, 12)[2 - len(operand.dims) :], device="cuda:0", dtype=dtype) for operand in entry.inputs)
        y = call(x, *rest)
        assert (tuple(y.shape), y.dtype, str(y.device)) == ((5, 12), dtype, "cuda:0")
        assert tuple(call(x.expand(3, 5, 12), *rest).shape) == (3, 5, 12)
        assert call.out(x, *rest, out=x) is None, "in place, too"
        with pytest.raises(RuntimeError, match="too few axes"):
            call(torch.empty((), device="cuda:0", dtype=dtype), *rest)
    host = [torch.ones(tensor.shape, dtype=dtype) for tensor in (x, *rest)]
    with adapter.register(pack), pytest.raises(NotImplementedError, match="'CPU' backend"):
        getattr(torch.ops.haotuner, name)(*host)  # the operator of the first registration is freed memory


def torch_convolutions(path: str) -> None:
    """The operator of a convolution takes torch's own weight; its fakes say shape, dtype and device, and refuse by name."""
    torch: Any = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    import haotuner.torch as adapter
    from haotuner.runtime.weights import weight_shape
    from haotuner.spec.op import Op
    from haotuner.spec.shape import Shape

    pack = haotuner.load(path, device="cuda:0")
    (name,) = pack.ops
    meaning, dtype = Op.parse(name), getattr(torch, DTYPES[pack.op_entry(name).output.dtype].numpy)
    last, stored = meaning.all_options()["layout"] == "nhwc", weight_shape(meaning)

    def image(b: int, channels: int, h: int, w: int) -> Any:
        shape = (b, h, w, channels) if last else (b, channels, h, w)
        return torch.empty(*shape, device="cuda:0", dtype=dtype)

    with adapter.register(pack), FakeTensorMode():
        call, serves = getattr(torch.ops.haotuner, name), torch._C._dispatch_has_kernel_for_dispatch_key
        for overload in (name, f"{name}.out"):
            assert serves(f"haotuner::{overload}", "CUDA") and not serves(f"haotuner::{overload}", "CPU")
        x, weight = image(2, meaning["c"], 5, 7), torch.empty(*stored, device="cuda:0", dtype=dtype)
        bias = torch.empty(meaning["f"], device="cuda:0", dtype=dtype)
        expected = meaning.operand_shape(meaning.meaning.output, Shape.of(b=2, h=5, w=7))
        y = call(x, weight, bias)
        assert (tuple(y.shape), y.dtype, str(y.device)) == (tuple(expected), dtype, "cuda:0")
        assert call.out(x, weight, bias, out=y) is None
        with pytest.raises(RuntimeError, match=f"with {meaning['c']} channels"):
            call(image(2, meaning["c"] + 1, 5, 7), weight, bias)
        with pytest.raises(RuntimeError, match=r"weight must be \("):
            call(x, torch.empty(*reversed(stored), device="cuda:0", dtype=dtype), bias)
        with pytest.raises(RuntimeError, match="x has dtype"):
            call(torch.empty(x.shape, device="cuda:0", dtype=torch.float64), weight, bias)
