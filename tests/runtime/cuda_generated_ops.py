"""Generated programs served on a CUDA device. Scenarios of cuda_scenarios.py."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest
import tvm_ffi
from tvm_ffi.core import DLTensorTestWrapper

import haotuner
from haotuner.errors import PackClosed, UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.cuda_framework import Allocator
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_served import counts
from tests.standin.apart import failure_of
from tests.standin.client import Driver

UNTOUCHED = -7.0
FAR = 1 << 50  # an address that nobody has
PARTIAL = 1 << 20  # HT_GENERATED_PARTIAL of cuda/generated.h
MULTIPROCESSORS = 16  # a CUdevice_attribute
SHORT, LONG = 8, 64  # lanes of the two programs of softmax in cuda_packs
RESIDENT, PARTS_LANES = (
    2048,
    32,
)  # threads of a multiprocessor, of a group that shares a row with others: cuda/generated.c, cuda_packs


class Generated:
    """An op on device 0."""

    def __init__(self, path: str) -> None:
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        (name,) = self.pack.ops
        self.dtype = DTYPES[Op.parse(name).dtype].numpy
        self.meaning, self.op, self.stream = Op.parse(name), self.pack.op(name), self.device.stream()

    def drawn(self, m: int, n: int) -> dict[str, Any]:
        return numerics.draw(self.meaning, Shape.of(m=m, n=n), np.random.default_rng(m * n))

    def out(self, m: int, n: int, gap: int = 0) -> Any:
        return self.device.upload(np.full((m, n), UNTOUCHED, self.dtype), strides=(n + gap, 1))

    def judged(self, inputs: dict[str, Any], y: Any, what: object) -> None:
        self.device.wait(self.stream)
        verdict = numerics.check(self.meaning, inputs, self.device.download(y, self.dtype))
        assert not verdict.wrong, f"{what}: {verdict}"


def generated(path: str) -> None:
    """Short rows and long ones, rows apart, a graph, operands by name, and no row; one launch a call."""
    served, driver = Generated(path), Driver()
    for m, n in ((1, 1), (3, 5), (40, 16), (2, 17), (5, 200), (3, 300), (130, 9)):
        inputs = served.drawn(m, n)
        for gap in (0, 3):
            placed = [served.device.upload(v, strides=(n + gap, 1) if v.ndim == 2 else None) for v in inputs.values()]
            y = served.out(m, n, gap)
            driver.library.standin_counts_reset()
            served.op.run(*placed, out=y, stream=served.stream)
            assert counts(driver)["cuLaunchKernel"] == 1
            served.judged(inputs, y, (m, n, gap))
    for m, n in ((3, 5), (7, 300)):  # the output is x itself
        inputs = served.drawn(m, n)
        x, *rest = (served.device.upload(value) for value in inputs.values())
        served.op.run(x, *rest, out=x, stream=served.stream)
        served.judged(inputs, x, (m, n, "in place"))
    inputs = served.drawn(6, 40)
    named, y = {name: served.device.upload(value) for name, value in inputs.items()}, served.out(6, 40)
    served.device.begin(served.stream)
    served.op.run(**named, out=y, stream=served.stream)
    graph = served.device.end(served.stream)
    served.device.replay(graph, served.stream)
    served.judged(inputs, y, "a graph")
    empty = served.device.empty((0, 40), served.dtype)
    served.op.run(empty, *list(named.values())[1:], out=served.device.empty((0, 40), served.dtype), stream=served.stream)
    assert served.pack.stats()[served.op.name]["calls"] >= 14


def generated_parts(path: str) -> None:
    """Few long rows: one launch on a stream without memory for parts, two where it was prepared; graphs; strided rows."""
    served, driver = Generated(path), Driver()

    def called(m: int, n: int, gap: int, launches: int) -> Any:
        inputs = served.drawn(m, n)
        (x,) = (served.device.upload(value, strides=(n + gap, 1)) for value in inputs.values())
        y = served.device.upload(np.full(m, UNTOUCHED, served.dtype))
        driver.library.standin_counts_reset()
        served.op.run(x, out=y, stream=served.stream)
        assert counts(driver)["cuLaunchKernel"] == launches, (m, n)
        served.judged(inputs, y, (m, n, gap, launches))
        return served.device.download(y, served.dtype)

    whole, current = called(2, 300, 0, 1), ctypes.c_void_p(0)
    served.op.prepare(served.stream)
    served.device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, "the thread keeps the context that it had"
    for m, n, gap, launches in ((2, 300, 0, 2), (3, 65, 3, 2), (1, 64, 0, 1), (5, 1000, 1, 2), (40, 9, 0, 1)):
        again = called(m, n, gap, launches)
        if (m, n) == (2, 300):
            np.testing.assert_allclose(again.astype(np.float32), whole.astype(np.float32), rtol=2e-2, atol=2e-2)
    inputs = served.drawn(2, 500)
    x, y = (served.device.upload(value) for value in (inputs["x"], np.full(2, UNTOUCHED, served.dtype)))
    served.device.begin(served.stream)
    served.op.run(x, out=y, stream=served.stream)
    graph = served.device.end(served.stream)
    for _ in range(2):
        served.device.replay(graph, served.stream)
    served.judged(inputs, y, "a graph of two launches")
    _refused(served, driver, x, y, launches=2)
    _many_rows(served, driver)
    _of_the_framework(served, driver, inputs, y)


def _many_rows(served: Generated, driver: Driver) -> None:
    """Rows are cut where threads of the device are idle without, and as the stream's memory has room for the parts' numbers.

    Nothing is computed while captured.
    """
    resident = driver.attribute(MULTIPROCESSORS) * RESIDENT // PARTS_LANES
    for m, launches in ((resident // 2, 2), (resident // 2 + 1, 1), (PARTIAL, 1)):
        x, y = (tvm_ffi.from_dlpack(Capsule(FAR + (i << 40), s, served.dtype, 0)) for i, s in enumerate(((m, 1000), (m,))))
        driver.library.standin_counts_reset()
        served.device.begin(served.stream)
        served.op.run(x, out=y, stream=served.stream)
        assert counts(driver)["cuLaunchKernel"] == launches, m
        served.device.end(served.stream)


def _of_the_framework(served: Generated, driver: Driver, inputs: dict[str, Any], y: Any) -> None:
    """A stream that was not prepared: the framework's memory holds the parts, and goes back to it."""
    framework, stream = Allocator(served.device), served.device.stream()
    driver.library.standin_counts_reset()
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), stream):
        served.op.run(DLTensorTestWrapper(served.device.upload(inputs["x"])), out=y)
    assert counts(driver)["cuLaunchKernel"] == 2 and framework.returned == len(framework.given) == 1
    served.device.wait(stream)
    served.judged(inputs, y, "the framework's memory")


def _refused(served: Generated, driver: Driver, x: Any, y: Any, launches: int) -> None:
    """Each launch of a call fails once, and is the last that the call tries."""
    for nth in range(1, launches + 1):
        driver.library.standin_counts_reset()
        driver.fail("cuLaunchKernel", "2", nth)
        with pytest.raises(RuntimeError, match=r"launching a kernel: .*\(2\)"):
            served.op.run(x, out=y, stream=served.stream)
        assert counts(driver)["cuLaunchKernel"] == nth
        driver.fail("cuLaunchKernel", "")
    served.op.run(x, out=y, stream=served.stream)


def generated_stages(path: str) -> None:
    """Rows whose folds are read again: a launch for each level of folds and one that writes; apart, in place, in a graph."""
    served, driver = Generated(path), Driver()
    served.op.prepare(served.stream)
    for m, n, gap, launches in ((2, 300, 0, 3), (3, 131, 3, 3), (1, 128, 0, 1), (5, 1000, 1, 3), (40, 9, 0, 1)):
        inputs, y = served.drawn(m, n), served.out(m, n, gap)
        (x,) = (served.device.upload(value, strides=(n + gap, 1)) for value in inputs.values())
        driver.library.standin_counts_reset()
        served.op.run(x, out=y, stream=served.stream)
        assert counts(driver)["cuLaunchKernel"] == launches, (m, n)
        served.judged(inputs, y, (m, n, gap))
        served.op.run(x, out=x, stream=served.stream)
        served.judged(inputs, x, (m, n, gap, "in place"))
    inputs, y = served.drawn(2, 500), served.out(2, 500)
    x = served.device.upload(inputs["x"])
    served.device.begin(served.stream)
    served.op.run(x, out=y, stream=served.stream)
    graph = served.device.end(served.stream)
    served.device.replay(graph, served.stream)
    served.judged(inputs, y, "a graph of three launches")
    _refused(served, driver, x, y, launches=3)
    served.judged(inputs, y, "after refusals")


def generated_keys(path: str) -> None:
    """Few queries, many keys: parts of the keys where a stream has memory for them; causal, some see none of a part."""
    served, driver = Generated(path), Driver()
    for prepared in (False, True):
        if prepared:
            served.op.prepare(served.stream)
        for b, t, s in ((3, 1, 400), (2, 5, 130), (1, 70, 65), (2, 3, 9)):
            inputs = numerics.draw(served.meaning, Shape.of(b=b, t=t, s=s), np.random.default_rng(s))
            y = served.device.upload(np.full((b, t, 40), UNTOUCHED, served.dtype))
            placed = [served.device.upload(value) for value in inputs.values()]
            driver.library.standin_counts_reset()
            served.op.run(*placed, out=y, stream=served.stream)
            assert counts(driver)["cuLaunchKernel"] == (2 if prepared and s > 64 else 1), (b, t, s)
            served.judged(inputs, y, (b, t, s, prepared))


def generated_faults(path: str) -> None:
    """The size of the grid, arguments that the door does not take, what the driver refuses, and a second device."""
    served, driver, current = Generated(path), Driver(), ctypes.c_void_p(0)
    if served.op.name == "softmax":
        _grids(served, driver)
    if served.op.name == "gelu":
        _merged(served, driver)
    _arguments(served)
    inputs, out = served.drawn(4, 12), served.out(4, 12)
    x, *rest = (served.device.upload(value) for value in inputs.values())
    for name, words in (("cuLaunchKernel", "launching a kernel: .*"), ("cuCtxPushCurrent", "cuCtxPushCurrent: .*")):
        driver.fail(name, "2", 1)
        with pytest.raises(RuntimeError, match=words + r"\(2\)"):
            served.op.run(x, *rest, out=out, stream=served.stream)
        driver.fail(name, "")
    served.device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, "the thread had no context"
    far = [
        tvm_ffi.from_dlpack(Capsule(FAR + (i << 40), tuple(t.shape), served.dtype, 99))
        for i, t in enumerate((x, *rest, out))
    ]
    with pytest.raises(ValueError, match="there is no device cuda:99"):
        served.op.run(*far[:-1], out=far[-1], stream=served.stream)
    there = tvm_ffi.from_dlpack(Capsule(FAR, (4, 12), served.dtype, 1))
    with pytest.raises(ValueError, match="out lives on cuda:1, x on cuda:0: copy it there"):
        served.op.run(x, *rest, out=there, stream=served.stream)

    def forked() -> None:
        with pytest.raises(RuntimeError, match="a fork cannot use it: start the process with spawn"):
            served.op.prepare(served.stream)

    assert not failure_of(forked)
    # Rows of one element, and one row: the stride of an axis of one element says nothing.
    for m, n in ((1, 40), (40, 1)):
        inputs = served.drawn(m, n)
        operands, y = [served.device.upload(value) for value in inputs.values()], served.out(m, n)
        strides = (-7, 1) if m == 1 else (1, -7)
        operands[0] = tvm_ffi.from_dlpack(Capsule(operands[0].data_ptr(), (m, n), served.dtype, 0, strides))
        served.op.run(*operands, out=y, stream=served.stream)
        served.judged(inputs, y, (m, n, "odd strides"))


def _grids(served: Generated, driver: Driver) -> None:
    """Few rows are spread over the multiprocessors, many fill blocks, and blocks go on where there are too many rows."""
    units = driver.attribute(MULTIPROCESSORS)
    many = units * 256 // SHORT + 1
    for m, n, blocks, threads in (
        (1, 9, 1, 32),
        (40, 16, 40 * SHORT // 32, 32),
        (many, 9, -(-many * SHORT // 256), 256),
        (40, 17, 40, LONG),
        (units * 32 + 5, 17, units * 32, LONG),
    ):
        inputs, geometry = served.drawn(m, n), (ctypes.c_uint * 2)()
        y = served.out(m, n)
        served.op.run(*(served.device.upload(value) for value in inputs.values()), out=y, stream=served.stream)
        served.device.wait(served.stream)
        driver.library.standin_geometry(geometry)
        assert tuple(geometry) == (blocks, threads), (m, n, tuple(geometry))
        served.judged(inputs, y, (m, n))


def _merged(served: Generated, driver: Driver) -> None:
    """Short rows without gaps are launched as one long row, whose groups are full; rows apart are not."""
    for m, n, gap, groups in ((40, 9, 0, 2), (40, 9, 3, 40), (1, 300, 0, 2), (300, 1, 0, 2)):
        inputs, geometry = served.drawn(m, n), (ctypes.c_uint * 2)()
        y = served.out(m, n, gap)
        served.op.run(*(served.device.upload(v, strides=(n + gap, 1)) for v in inputs.values()), out=y, stream=served.stream)
        served.device.wait(served.stream)
        driver.library.standin_geometry(geometry)
        assert geometry[0] * geometry[1] == groups * 32, (m, n, gap, tuple(geometry))
        served.judged(inputs, y, (m, n, gap))


def _arguments(served: Generated) -> None:
    """The native call takes (setting, stream, operands in their order, out) and nothing else."""
    call, setting = served.op._call, served.op._setting
    inputs = served.drawn(4, 12)
    tensors = [*(served.device.upload(value) for value in inputs.values()), served.out(4, 12)]
    for wrong in (
        (setting, served.stream, *tensors, tensors[0]),
        (setting, served.stream, *tensors[:-1]),
        (setting, "0", *tensors),
        (setting, 1.5, *tensors),
        ("0", served.stream, *tensors),
        (tensors[0], served.stream, *tensors),
        (),
    ):
        with pytest.raises(TypeError, match=r"expected the arguments \(setting, stream, operands in their order, out\)"):
            call(*wrong)
    with pytest.raises(TypeError, match="x is not a tensor: pass a tensor of a CUDA device"):
        call(setting, served.stream, None, *tensors[1:])
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), served.stream):  # no stream is the one of tvm-ffi
        served.device.begin(served.stream)
        call(setting, None, *tensors)
        graph = served.device.end(served.stream)
    served.device.put(tensors[-1], np.full((4, 12), UNTOUCHED, served.dtype))  # what was launched elsewhere is gone
    served.device.replay(graph, served.stream)
    served.judged(inputs, tensors[-1], "tvm-ffi's stream")


def generated_refusals(path: str) -> None:
    """What cannot be is refused in words, before a launch."""
    served = Generated(path)
    inputs = served.drawn(4, 12)
    x, *rest = (served.device.upload(value) for value in inputs.values())
    out = served.out(4, 12)
    for wrong, kind, why in (
        (inputs["x"].astype(np.float32), ValueError, "does not live on a CUDA device"),
        (served.device.upload(inputs["x"].astype(np.float16)), TypeError, "dtype"),
        (served.device.upload(inputs["x"][:3].copy()), ValueError, "they must be equal"),
        (7, TypeError, "x is a int"),
    ):
        with pytest.raises(kind, match=why):
            served.op.run(wrong, *rest, out=out, stream=served.stream)
    behind = tvm_ffi.from_dlpack(Capsule(x.data_ptr() + 12 * np.dtype(served.dtype).itemsize, (4, 12), served.dtype, 0))
    with pytest.raises(ValueError, match="shares memory with x without being that very tensor"):
        served.op.run(x, *rest, out=behind, stream=served.stream)
    with pytest.raises(TypeError, match="takes x"):
        served.op.run(x, *rest, x, out=out, stream=served.stream)
    with pytest.raises(UsageError, match="no thread counts"):
        served.op.with_threads(2)
    served.pack.close()
    with pytest.raises(PackClosed):
        served.op.run(x, *rest, out=out, stream=served.stream)
