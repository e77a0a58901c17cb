"""What a server does with CUDA packs, in a process of its own whose driver is the stand-in (or a real one).

``python -m tests.serving.cuda_scenarios NAME PACK...`` ends with 0 if everything was right.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import haotuner
from haotuner.errors import EnvironmentMissing, PackClosed, PackMismatch, UsageError
from tests.serving.cuda_memory import Device
from tests.serving.cuda_packs import FIRST, LAST, PICKS, WGMMA, Pick
from tests.standin.client import Driver

SEED = 5
GRAPH_ROWS = 40


class Served:
    """A pack on device 0 with its first op bound, and the numbers to judge it by."""

    def __init__(self, path: str, *, biased: bool = True, ordinal: int = 0) -> None:
        self.device = Device(ordinal)
        self.pack = haotuner.load(path, device=f"cuda:{ordinal}")
        (name,) = self.pack.ops
        self.pick: Pick = next(pick for pick in PICKS if pick.op == name)
        self.op = self.pack.op(name)
        draw = np.random.default_rng(SEED)
        self.weight = draw.standard_normal((self.op.n, self.op.k)).astype(self.pick.dtype)
        self.bias = draw.standard_normal(self.op.n).astype(self.pick.dtype)
        bias = self.device.upload(self.bias) if biased else None
        if not biased:
            self.bias = np.zeros_like(self.bias)
        self.linear = self.op.bind(self.device.upload(self.weight), bias)
        self.stream = self.device.stream()

    def rows(self, *shape: int) -> Any:
        """Inputs of a shape."""
        return np.random.default_rng(sum(shape)).standard_normal((*shape, self.op.k)).astype(self.pick.dtype)

    def out(self, *shape: int, **how: Any) -> Any:
        """An output for inputs of a shape."""
        return self.device.empty((*shape, self.op.n), self.pick.dtype, **how)

    def judge(self, y: Any, x: Any, what: object = "") -> None:
        """Within the rounding of the sum and of the result."""
        x64, w64 = x.astype(np.float64), self.weight.astype(np.float64)
        exact = x64 @ w64.T + self.bias.astype(np.float64)
        size = np.abs(x64) @ np.abs(w64).T + np.abs(self.bias.astype(np.float64))
        allowed = (self.op.k + 8) * 2.0**-24 * size + np.finfo(self.pick.dtype).eps * np.abs(exact)
        error = np.abs(self.device.download(y, self.pick.dtype).astype(np.float64) - exact)
        assert (error <= allowed).all(), f"{what}: {np.max(error / allowed):.3g} of the tolerance"

    def call(self, x: Any, y: Any) -> None:
        """On the stream, and until it is done."""
        self.linear(x, out=y, stream=self.stream)
        self.device.wait(self.stream)

    def stats(self) -> dict[str, int]:
        """Counters of the op."""
        return dict(self.pack.stats()[self.op.name])


def numbers(path: str) -> None:
    """Every kind of cell, both ends and beyond; strided rows, leading axes, no rows, no bias."""
    served = Served(path)
    served.linear.prepare(served.stream)
    for m in (1, 2, 3, 4, 5, 33, 100, 101, 150, LAST, LAST + 1, LAST + 130):
        x, y = served.rows(m), served.out(m)
        served.call(served.device.upload(x), y)
        served.judge(y, x, f"m={m}")
    assert served.stats() == {"calls": 12, "fallbacks": 0, "out_of_range": 3}, served.stats()
    x = served.rows(3, 7)
    y = served.out(3, 7)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "two leading axes")
    n, k = served.op.n, served.op.k
    x, y = served.rows(37), served.out(37, strides=(n + 3, 1))
    served.call(served.device.upload(x, strides=(k + 8, 1)), y)
    served.judge(y, x, "strided rows")
    x, y = served.rows(6), served.out(6, skip=1)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "an output at an odd address")
    served.call(served.device.empty((0, k), served.pick.dtype), served.out(0))
    plain = Served(path, biased=False)
    x, y = plain.rows(9), plain.out(9)
    plain.call(plain.device.upload(x), y)
    plain.judge(y, x, "no bias")


def alignment(path: str) -> None:
    """x at an odd address, or with an odd stride, is served by the kernel for any alignment, and counted."""
    served = Served(path)
    for what, how in {"address": {"skip": 1}, "stride": {"strides": (served.op.k + 1, 1)}}.items():
        x, y = served.rows(33), served.out(33)
        served.call(served.device.upload(x, **how), y)
        served.judge(y, x, what)
    assert served.stats()["fallbacks"] == 2


def unprepared(path: str) -> None:
    """Without memory for partial sums k is not split: right, counted, and by the book once there is memory."""
    served = Served(path)
    x, y = served.rows(3), served.out(3)
    served.call(served.device.upload(x), y)
    served.judge(y, x)
    assert served.stats()["fallbacks"] == 1
    served.linear.prepare(served.stream)
    served.call(served.device.upload(x), y)
    served.judge(y, x)
    assert served.stats()["fallbacks"] == 1
    other = served.device.stream()
    served.linear(served.device.upload(x), out=y, stream=other)
    served.device.wait(other)
    served.judge(y, x)
    assert served.stats()["fallbacks"] == 2, "the memory of one stream is not another's"


def captured(path: str) -> None:
    """A captured call is replayed on new inputs, with and without a split, after hand-over and close as well."""
    served = Served(path)
    served.linear.prepare(served.stream)
    graphs = []
    for m in (3, GRAPH_ROWS, 150):
        x, y = served.device.upload(served.rows(m)), served.out(m)
        served.device.begin(served.stream)
        served.linear(x, out=y, stream=served.stream)
        graphs.append((m, x, y, served.device.end(served.stream)))

    def replay(seed: int) -> None:
        for m, x, y, graph in graphs:
            values = np.random.default_rng(seed + m).standard_normal((m, served.op.k)).astype(served.pick.dtype)
            served.device.put(x, values)
            served.device.replay(graph, served.stream)
            served.judge(y, values, f"replay {m}")

    replay(1)
    new = haotuner.load(path, device="cuda:0")
    served.pack.hand_over(new)
    replay(2)
    x, y = served.rows(5), served.out(5)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "handed over")
    new.close()
    replay(3)
    with pytest.raises(PackClosed, match="load the pack again"):
        served.linear(served.device.upload(x), out=y, stream=served.stream)


def threads(path: str) -> None:
    """Eight threads on two streams each, all plans, while another thread hands the pack over."""
    served = Served(path)
    wrong: list[str] = []
    streams = [(served.device.stream(), served.device.stream()) for _ in range(8)]
    for pair in streams:
        for stream in pair:
            served.linear.prepare(stream)
    packs = [served.pack]

    def serve(place: int) -> None:
        try:
            for turn in range(6):
                stream = streams[place][turn % 2]
                x = served.rows((3, 17, 120)[turn % 3] + place)
                y = served.out(x.shape[0])
                served.linear(served.device.upload(x), out=y, stream=stream)
                served.device.wait(stream)
                served.judge(y, x, f"thread {place}, turn {turn}")
        except BaseException as error:  # told by the main thread
            wrong.append(repr(error))

    workers = [threading.Thread(target=serve, args=(place,)) for place in range(8)]
    for worker in workers:
        worker.start()
    for _ in range(3):
        packs.append(haotuner.load(path, device="cuda:0"))
        packs[-2].hand_over(packs[-1])
    for worker in workers:
        worker.join()
    assert not wrong, wrong


def devices(path: str) -> None:
    """Two devices in one process, a tensor of the one to the other, and the caller's own context left as it was."""
    one, two = Served(path), Served(path, ordinal=1)
    for served in (one, two, one):
        x, y = served.rows(20), served.out(20)
        served.call(served.device.upload(x), y)
        served.judge(y, x, f"device {served.device.ordinal}")
    x, y = one.device.upload(one.rows(4)), one.out(4)
    with pytest.raises(ValueError, match=r"x lives on cuda:0, the weight on cuda:1: copy it there"):
        two.linear(x, out=y, stream=two.stream)
    with pytest.raises(ValueError, match="out lives on cuda:1, the weight on cuda:0"):
        one.linear(x, out=two.out(4), stream=one.stream)
    with pytest.raises(RuntimeError, match="is the stream alive, and one of this device's primary context"):
        one.linear(x, out=y, stream=two.stream)
    one.call(x, y)
    one.judge(y, one.rows(4), "after the refusals")
    with pytest.raises(ValueError, match="bias lives on cuda:1, the weight on cuda:0"):
        one.op.bind(one.device.upload(one.weight), two.device.upload(two.bias))


def context(path: str) -> None:
    """A call leaves the thread with the context that it came with: none, its own, or another device's."""
    served = Served(path)
    x, y = served.device.upload(served.rows(20)), served.out(20)
    other = Device(1)
    current = ctypes.c_void_p(0)
    for wanted in (None, served.device.context.value, other.context.value):
        if wanted is not None:
            served.device.call("cuCtxPushCurrent_v2", ctypes.c_void_p(wanted))
        served.linear(x, out=y, stream=served.stream)
        with pytest.raises(ValueError, match="rank"):
            served.linear(x, out=served.out(4, 5), stream=served.stream)
        served.device.call("cuCtxGetCurrent", ctypes.byref(current))
        assert current.value == wanted
        if wanted is not None:
            served.device.call("cuCtxPopCurrent_v2", ctypes.byref(current))


def refusals(path: str) -> None:
    """What is wrong with a tensor is said by name, and nothing sticks."""
    served = Served(path)
    n, k, dtype = served.op.n, served.op.k, served.pick.dtype
    other = "float16" if dtype == "float32" else "float32"
    x, y = served.device.upload(served.rows(4)), served.out(4)
    empty = served.device.empty

    def refused(kind: type[Exception], words: str, x_: Any = x, y_: Any = y) -> None:
        with pytest.raises(kind, match=words) as raised:
            served.linear(x_, out=y_, stream=served.stream)
        assert str(raised.value).startswith(f"{served.op.name}: "), raised.value

    refused(ValueError, "x lives on the CPU; this pack computes on CUDA devices", served.rows(4))
    refused(ValueError, "out lives on the CPU", y_=np.zeros((4, n), dtype))
    refused(TypeError, f"x has dtype code 2 .* expected {dtype}", empty((4, k), other))
    refused(TypeError, "out has dtype", y_=empty((4, n), other))
    refused(TypeError, "x is a list; pass a tensor", [1.0])
    refused(ValueError, f"x has last extent {k - 1}; expected {k}", empty((4, k - 1), dtype))
    refused(ValueError, "out has last extent", y_=empty((4, n + 1), dtype))
    refused(ValueError, "out has extent 5 in axis 0, x has 4", y_=empty((5, n), dtype))
    refused(ValueError, "out has rank 3, x has rank 2", y_=empty((1, 4, n), dtype))
    refused(ValueError, "x has inner stride 2", empty((4, k), dtype, strides=(2 * k, 2)))
    refused(ValueError, "rows of out overlap: row stride 1", y_=empty((4, n), dtype, strides=(1, 1)))
    both = served.device.upload(np.zeros((4, max(n, k)), dtype))
    refused(ValueError, "out shares memory with x", _part(served, both, k), _part(served, both, n))
    for what, kept in {"the weight": served.linear.bound.weight, "the bias": served.linear.bound.bias}.items():
        inside = _at(served, kept, (1, n))
        assert what
        refused(ValueError, "out shares memory with the weight or the bias", empty((1, k), dtype), inside)
    with pytest.raises(ValueError, match="does not say its current stream: pass stream="):
        served.linear(x, out=y)
    served.call(x, y)
    served.judge(y, served.rows(4), "after all refusals")

    def unbound(kind: type[Exception], words: str, weight: Any, bias: Any = None) -> None:
        with pytest.raises(kind, match=words) as raised:
            served.op.bind(weight, bias)
        assert str(raised.value).startswith(f"{served.op.name}: "), raised.value

    weight = served.linear.bound.weight
    unbound(ValueError, "weight lives on the CPU", served.weight)
    unbound(TypeError, "weight is a list", [1.0])
    unbound(TypeError, "weight has dtype", empty((n, k), other))
    unbound(ValueError, rf"weight has rank 2 and shape \({k}, {n}\); expected \({n}, {k}\)", empty((k, n), dtype))
    unbound(ValueError, "weight must be contiguous", empty((n, k), dtype, strides=(k + 8, 1)))
    unbound(ValueError, "weight begins at an address", empty((n, k), dtype, skip=1))
    unbound(ValueError, "bias has rank 1 and extent", weight, empty((n + 1,), dtype))
    unbound(TypeError, "bias has dtype", weight, empty((n,), other))
    with pytest.raises(UsageError, match="a device has no thread counts"):
        served.op.bind(weight, threads=2)


def _part(served: Served, tensor: Any, columns: int) -> Any:
    return _at(served, tensor, (tensor.shape[0], columns), (tensor.shape[1], 1))


def _at(served: Served, tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
    import tvm_ffi

    from tests.serving.cuda_memory import Capsule

    return tvm_ffi.from_dlpack(Capsule(tensor.data_ptr(), shape, served.pick.dtype, served.device.ordinal, strides))


def loading(path: str) -> None:
    """Devices that are not there, and packs that are not for the device."""
    with pytest.raises(EnvironmentMissing, match="there is no device cuda:9: the CUDA driver shows"):
        haotuner.load(path, device="cuda:9")
    with pytest.raises(UsageError, match="name cuda, cuda:0"):
        haotuner.load(path, device="gpu")
    with pytest.raises(PackMismatch, match="holds code for sm_.* and none for CPUs; name the device"):
        haotuner.load(path)


def mismatch(path: str) -> None:
    """A pack of another architecture."""
    with pytest.raises(
        PackMismatch, match=r"cuda:0 is .*compute capability.*the pack holds code for .*Tune for this device"
    ):
        haotuner.load(path, device="cuda:0")


def cannot(path: str, kind: str, words: str) -> None:
    """Loading fails in these words, twice, and neither time with anything but an error."""
    for _ in range(2):
        with pytest.raises((EnvironmentMissing, PackMismatch), match=words) as raised:
            haotuner.load(path, device="cuda:0")
        assert type(raised.value).__name__ == kind


def forked(path: str) -> None:
    """A child that was forked after CUDA began is refused in words, at every door; the parent goes on."""
    import os

    served = Served(path)
    x, y = served.device.upload(served.rows(4)), served.out(4)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            with pytest.raises(RuntimeError, match="a fork cannot use it: start the process with spawn"):
                served.linear(x, out=y, stream=served.stream)
            with pytest.raises(RuntimeError, match="a fork cannot use it"):
                served.linear.prepare(served.stream)
            with pytest.raises(RuntimeError, match="a fork cannot use it"):
                served.op.bind(served.linear.bound.weight)
            with pytest.raises((PackMismatch, EnvironmentMissing), match="forked"):
                haotuner.load(path, device="cuda:0")
            code = 0
        finally:
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0
    served.call(x, y)
    served.judge(y, served.rows(4))


def frameworks(path: str) -> None:
    """Tensors of a class that tells its stream and gives memory; of one that only has DLPack; tvm-ffi's own stream."""
    import tvm_ffi
    from tvm_ffi.core import DLTensorTestWrapper

    served = Served(path)
    x, y = served.rows(20), served.out(20)
    on_device = served.device.upload(x)
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), served.stream):
        served.linear(on_device, out=y)
    served.device.wait(served.stream)
    served.judge(y, x, "tvm-ffi's stream")
    asked: list[Any] = []

    class Foreign:
        """An array of a library that hands tensors over by DLPack alone."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.shape = inner, inner.shape

        def __dlpack_device__(self) -> Any:
            return self.inner.__dlpack_device__()

        def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
            asked.append(stream)
            return self.inner.__dlpack__()

    y = served.out(20)
    served.linear(Foreign(on_device), out=Foreign(y), stream=served.stream)
    served.device.wait(served.stream)
    served.judge(y, x, "another library")
    assert asked == [served.stream] * 2, "the producer makes the tensor ready on our stream, not on the legacy one"
    with pytest.raises(ValueError, match="does not say its current stream"):
        served.linear(Foreign(on_device), out=y)
    with pytest.raises(ValueError, match="no output can be made for a Foreign; pass out="):
        served.linear(Foreign(on_device), stream=served.stream)
    y = served.out(20)
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), served.stream):
        served.linear(DLTensorTestWrapper(on_device), out=y)
    served.device.wait(served.stream)
    served.judge(y, x, "an exchange table")


def counted(path: str) -> None:
    """One launch a region, two with a split, one map at most; beside them only looks at the context."""
    served = Served(path)
    driver = Driver()
    served.linear.prepare(served.stream)
    maps = int(served.pick is WGMMA)
    allowed = {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuLaunchKernel", "cuTensorMapEncodeTiled"}
    for m, launches, encodes in ((3, 2, maps), (50, 1, maps), (150, 2, maps), (0, 0, 0)):
        x, y = (
            served.device.upload(served.rows(m)) if m else served.device.empty((0, served.op.k), served.pick.dtype),
            served.out(m),
        )
        driver.library.standin_counts_reset()
        served.linear(x, out=y, stream=served.stream)
        found = counts(driver)
        served.device.wait(served.stream)
        assert found.get("cuLaunchKernel", 0) == launches and found.get("cuTensorMapEncodeTiled", 0) == encodes, (m, found)
        assert set(found) <= allowed, found


def counts(driver: Driver) -> dict[str, int]:
    """Calls of each function since the last reset."""
    text = ctypes.create_string_buffer(1 << 14)
    driver.library.standin_counts(text, ctypes.c_size_t(len(text)))
    lines = (line.split() for line in text.value.decode().splitlines())
    return {name: int(count) for name, count in lines}


def failing(path: str, function: str, code: str, words: str) -> None:
    """A call whose driver call fails is an error in these words; the next one is right again."""
    served = Served(path)
    driver = Driver()
    x, y = served.rows(50), served.out(50)
    on_device = served.device.upload(x)
    driver.fail(function, code)
    with pytest.raises(RuntimeError, match=words) as raised:
        served.linear(on_device, out=y, stream=served.stream)
    assert str(raised.value).startswith(f"{served.op.name}: ")
    served.call(on_device, y)
    served.judge(y, x, "after the error")


def preparing(path: str) -> None:
    """No memory for partial sums: said, and calls go on without."""
    served = Served(path)
    driver = Driver()
    driver.fail("cuMemAlloc", "2")
    with pytest.raises(
        RuntimeError, match=r"memory for partial sums: CUDA_ERROR_OUT_OF_MEMORY \(2\): free memory of the device"
    ):
        served.linear.prepare(served.stream)
    x, y = served.rows(3), served.out(3)
    served.call(served.device.upload(x), y)
    served.judge(y, x)
    served.linear.prepare(served.stream)
    served.call(served.device.upload(x), y)
    assert served.stats() == {"calls": 2, "fallbacks": 1, "out_of_range": 0}


def torch_fakes(path: str) -> None:
    """Fakes of torch's operators say shape, dtype and device; layers of a model on the device are found and replaced."""
    torch: Any = pytest.importorskip("torch")
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    import haotuner.torch as adapter

    pack = haotuner.load(path, device="cuda:0")
    (name,) = pack.ops
    op = pack.op(name)
    dtype = getattr(torch, op.entry.output.dtype.replace("fp32", "float32").replace("fp16", "float16"))
    other = torch.bfloat16
    with adapter.register(pack), FakeTensorMode():
        call = getattr(torch.ops.haotuner, name)
        weight = torch.empty(op.n, op.k, device="cuda:0", dtype=dtype)
        bias = torch.empty(op.n, device="cuda:0", dtype=dtype)
        for shape in ((5,), (2, 3), (0,)):
            x = torch.empty(*shape, op.k, device="cuda:0", dtype=dtype)
            y = call(x, weight, bias)
            assert (tuple(y.shape), y.dtype, str(y.device)) == ((*shape, op.n), dtype, "cuda:0")
            assert call.out(x, weight, out=torch.empty(*shape, op.n, device="cuda:0", dtype=dtype)) is None
        for wrong, words in (
            (torch.empty(5, op.k + 1, device="cuda:0", dtype=dtype), "x must be"),
            (torch.empty(5, op.k, device="cuda:0", dtype=other), "x has dtype torch.bfloat16; expected"),
        ):
            with pytest.raises(RuntimeError, match=words):
                call(wrong, weight, bias)
        with pytest.raises(RuntimeError, match="the weight on cuda:1"):
            call(x, torch.empty(op.n, op.k, device="cuda:1", dtype=dtype))

        def layer(rows: int, device: str, kind: Any = dtype) -> Any:
            made = torch.nn.Linear(op.k, rows, device="meta", dtype=kind)
            made.weight = torch.nn.Parameter(torch.empty(rows, op.k, device=device, dtype=kind))
            made.bias = torch.nn.Parameter(torch.empty(rows, device=device, dtype=kind))
            return made

        model = torch.nn.Sequential(
            layer(op.n, "cuda:0"), layer(op.n, "cuda:1"), layer(op.n, "cpu"), layer(op.n, "cuda:0", torch.float64),
            layer(op.n + 1, "cuda:0"),
        ).eval()  # fmt: skip
        with pytest.MonkeyPatch.context() as patch:  # a fake parameter is none by its class
            patch.setattr(torch.nn, "Parameter", FakeTensor)
            told, ops = adapter.swap(model, pack), adapter.ops_of(model[1:])
        assert told.replaced == ("0",), told
        assert isinstance(model[0], adapter.PlacedLayer) and isinstance(model[0], torch.nn.Linear)
        reasons = [
            "it lives on cuda:1",
            "it lives on cpu",
            "its weight is float64; a pack takes float32, float16 or bfloat16",
        ]
        assert list(told.left.values())[:3] == reasons and told.left["4"].startswith(
            "not in the pack: tune it with --op dense:n="
        )
        assert set(model.state_dict()) == {f"{place}.{part}" for place in range(5) for part in ("weight", "bias")}
        suffix = "" if dtype is torch.float32 else ",dtype=fp16"
        assert f"dense:n={op.n},k={op.k}{suffix}" in ops


SCENARIOS: dict[str, Callable[..., None]] = {
    one.__name__: one
    for one in (
        numbers, alignment, unprepared, captured, threads, devices, context, refusals, loading, mismatch, cannot, forked,
        frameworks, counted, failing, preparing, torch_fakes,
    )
}  # fmt: skip

if __name__ == "__main__":
    assert FIRST > 1 and Path(sys.argv[2]).exists()
    SCENARIOS[sys.argv[1]](*sys.argv[2:])
