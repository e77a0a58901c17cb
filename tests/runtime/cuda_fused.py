"""A dense op with an epilogue, served on a CUDA device. Scenarios of cuda_scenarios.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.ops.dtypes import DTYPES
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_served import counts
from tests.standin.client import Driver


class Fused:
    """An op on device 0, bound, and the numbers to judge it by."""

    def __init__(self, path: str) -> None:
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        (name,) = self.pack.ops
        self.op, self.meaning = self.pack.op(name), Op.parse(name)
        self.dtype = DTYPES[self.meaning.dtype].numpy
        drawn = self.drawn(1)
        self.constants = {operand: drawn[operand] for operand in ("weight", "bias") if operand in drawn}
        self.weight, *self.bias = map(self.device.upload, self.constants.values())
        self.linear = self.op.bind(self.weight, *self.bias)
        self.stream = self.device.stream()
        self.linear.prepare(self.stream)

    def drawn(self, m: int) -> Any:
        """Operands of m rows, all of the op's type, as the kernels read them."""
        operands = numerics.draw(self.meaning, Shape.of(m=m), np.random.default_rng(m))
        return {name: values.astype(self.dtype) for name, values in operands.items()}

    def out(self, m: int, **how: Any) -> Any:
        """Room for m rows."""
        return self.device.empty((m, self.op.n), self.dtype, **how)

    def judge(self, drawn: Any, y: Any) -> None:
        """Against float64, epilogue included."""
        verdict = numerics.check(self.meaning, drawn | self.constants, self.device.download(y, self.dtype))
        assert not verdict.wrong, verdict


def fused(path: str) -> None:
    """Every kind of cell, with what the epilogue adds beside out or in it; a graph replays with what that holds then."""
    served = Fused(path)
    device, driver = served.device, Driver()
    for m in (1, 3, 50, 150):
        drawn = served.drawn(m)
        x, added = device.upload(drawn["x"]), {}
        if "residual" in drawn:
            added["residual"] = device.upload(drawn["residual"])
        y = served.out(m)
        driver.library.standin_counts_reset()
        served.linear(x, **added, out=y, stream=served.stream)
        assert counts(driver)["cuLaunchKernel"] == (1 if m == 50 else 2), "the epilogue is no launch of its own"
        device.wait(served.stream)
        served.judge(drawn, y)
        if added:
            apart = (served.op.n + 8, 1)
            wide = served.out(m, strides=apart)
            strided = device.upload(drawn["residual"], strides=apart)
            served.linear(x, residual=strided, out=wide, stream=served.stream)
            served.linear(x, **added, out=added["residual"], stream=served.stream)  # in its place
            device.wait(served.stream)
            served.judge(drawn, wide)
            served.judge(drawn, added["residual"])
    none = device.empty((0, served.op.k), served.dtype)
    served.linear(none, **({"residual": served.out(0)} if added else {}), out=served.out(0), stream=served.stream)
    if added:
        residual, y = served.out(150), served.out(150)
        device.begin(served.stream)
        served.linear(x, residual=residual, out=y, stream=served.stream)
        graph = device.end(served.stream)
        device.put(residual, drawn["residual"])
        device.replay(graph, served.stream)
        served.judge(drawn, y)


def fused_refusals(path: str) -> None:
    """What is wrong with what an epilogue reads is said by name."""
    served = Fused(path)
    device, n, name = served.device, served.op.n, served.meaning.name
    drawn = served.drawn(4)
    x, y = device.upload(drawn["x"]), served.out(4)
    with pytest.raises(ValueError, match=f"^{name}: its epilogue adds {'a bias: bind one' if served.bias else 'no bias'}"):
        served.op.bind(served.weight, *(() if served.bias else (served.device.empty((n,), served.dtype),)))
    if "residual" not in drawn:
        with pytest.raises(TypeError, match="residual"):
            served.linear(x, residual=y, out=y, stream=served.stream)
    else:
        residual = device.upload(drawn["residual"])
        other = "float16" if served.dtype == "float32" else "float32"

        def refused(kind: type[Exception], words: str, residual: Any, out: Any = y) -> None:
            with pytest.raises(kind, match=f"^{name}: {words}"):
                served.linear(x, residual=residual, out=out, stream=served.stream)

        refused(TypeError, "pass residual=", None)
        refused(TypeError, "residual is a list", [1.0])
        refused(TypeError, "residual has dtype", device.empty((4, n), other))
        refused(ValueError, "residual lives on the CPU", drawn["residual"])
        refused(ValueError, "residual has rank 3, out has rank 2", device.empty((1, 4, n), served.dtype))
        refused(ValueError, "residual has extent 5 in axis 0, out has 4", served.out(5))
        refused(ValueError, "residual has last extent", device.empty((4, n + 1), served.dtype))
        refused(ValueError, "residual has the row stride", served.out(4, strides=(n + 8, 1)))
        refused(ValueError, "residual has no data", _at(served, 0, 4))
        empty = device.empty((0, served.op.k), served.dtype)
        served.linear(empty, residual=_at(served, 0, 0), out=served.out(0), stream=served.stream)  # reads nothing
        both = served.out(5)
        refused(
            ValueError, "out shares some of its memory with residual", _behind(served, both, n), _behind(served, both, 0)
        )
        served.linear(x, residual=residual, out=y, stream=served.stream)
        device.wait(served.stream)
        served.judge(drawn, y)


def _behind(served: Fused, tensor: Any, elements: int) -> Any:
    return _at(served, tensor.data_ptr() + elements * np.dtype(served.dtype).itemsize, 4)


def _at(served: Fused, address: int, rows: int) -> Any:
    return tvm_ffi.from_dlpack(Capsule(address, (rows, served.op.n), served.dtype, 0, None))


def torch_fused(path: str) -> None:
    """The operator of an op with an epilogue takes what that reads; its fakes say shape and dtype, and refuse by name."""
    torch: Any = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensorMode

    import haotuner.torch as adapter

    pack = haotuner.load(path, device="cuda:0")
    (name,) = pack.ops
    op = pack.op(name)
    dtype = getattr(torch, DTYPES[op.entry.output.dtype].numpy)
    with adapter.register(pack), FakeTensorMode():
        call = getattr(torch.ops.haotuner, name)
        weight = torch.empty(op.n, op.k, device="cuda:0", dtype=dtype)
        x, like = (torch.empty(5, size, device="cuda:0", dtype=dtype) for size in (op.k, op.n))
        tensors = {"bias": torch.empty(op.n, device="cuda:0", dtype=dtype), "residual": like}
        extra = [tensors[operand.name] for operand in op.entry.extra]
        y = call(x, weight, *extra)
        assert (tuple(y.shape), y.dtype, str(y.device)) == ((5, op.n), dtype, "cuda:0")
        assert call.out(x, weight, *extra, out=like) is None
        with pytest.raises(RuntimeError, match="x must be"):
            call(like if op.n != op.k else torch.empty(5, op.k + 1, device="cuda:0", dtype=dtype), weight, *extra)
        if "residual" in [operand.name for operand in op.entry.extra]:
            with pytest.raises(RuntimeError, match="residual must be like the result"):
                call(x, weight, *extra[:-1], torch.empty(5, op.n + 1, device="cuda:0", dtype=dtype))
