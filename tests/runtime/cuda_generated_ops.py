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
    one, driver = Generated(path), Driver()
    for m, n in ((1, 1), (3, 5), (40, 16), (2, 17), (5, 200), (3, 300), (130, 9)):
        inputs = one.drawn(m, n)
        for gap in (0, 3):
            placed = [one.device.upload(v, strides=(n + gap, 1) if v.ndim == 2 else None) for v in inputs.values()]
            y = one.out(m, n, gap)
            driver.library.standin_counts_reset()
            one.op.run(*placed, out=y, stream=one.stream)
            assert counts(driver)["cuLaunchKernel"] == 1
            one.judged(inputs, y, (m, n, gap))
    for m, n in ((3, 5), (7, 300)):  # the output is x itself
        inputs = one.drawn(m, n)
        x, *rest = (one.device.upload(value) for value in inputs.values())
        one.op.run(x, *rest, out=x, stream=one.stream)
        one.judged(inputs, x, (m, n, "in place"))
    inputs = one.drawn(6, 40)
    named, y = {name: one.device.upload(value) for name, value in inputs.items()}, one.out(6, 40)
    one.device.begin(one.stream)
    one.op.run(**named, out=y, stream=one.stream)
    graph = one.device.end(one.stream)
    one.device.replay(graph, one.stream)
    one.judged(inputs, y, "a graph")
    empty = one.device.empty((0, 40), one.dtype)
    one.op.run(empty, *list(named.values())[1:], out=one.device.empty((0, 40), one.dtype), stream=one.stream)
    assert one.pack.stats()[one.op.name]["calls"] >= 14


def generated_parts(path: str) -> None:
    """Few long rows: one launch on a stream without memory for parts, two where it was prepared; graphs; strided rows."""
    one, driver = Generated(path), Driver()

    def called(m: int, n: int, gap: int, launches: int) -> Any:
        inputs = one.drawn(m, n)
        (x,) = (one.device.upload(value, strides=(n + gap, 1)) for value in inputs.values())
        y = one.device.upload(np.full(m, UNTOUCHED, one.dtype))
        driver.library.standin_counts_reset()
        one.op.run(x, out=y, stream=one.stream)
        assert counts(driver)["cuLaunchKernel"] == launches, (m, n)
        one.judged(inputs, y, (m, n, gap, launches))
        return one.device.download(y, one.dtype)

    whole, current = called(2, 300, 0, 1), ctypes.c_void_p(0)
    one.op.prepare(one.stream)
    one.device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, "the thread keeps the context that it had"
    for m, n, gap, launches in ((2, 300, 0, 2), (3, 65, 3, 2), (1, 64, 0, 1), (5, 1000, 1, 2), (40, 9, 0, 1)):
        again = called(m, n, gap, launches)
        if (m, n) == (2, 300):
            np.testing.assert_allclose(again.astype(np.float32), whole.astype(np.float32), rtol=2e-2, atol=2e-2)
    inputs = one.drawn(2, 500)
    x, y = (one.device.upload(value) for value in (inputs["x"], np.full(2, UNTOUCHED, one.dtype)))
    one.device.begin(one.stream)
    one.op.run(x, out=y, stream=one.stream)
    graph = one.device.end(one.stream)
    for _ in range(2):
        one.device.replay(graph, one.stream)
    one.judged(inputs, y, "a graph of two launches")
    _refused(one, driver, x, y, launches=2)
    _many_rows(one, driver)
    _of_the_framework(one, driver, inputs, y)


def _many_rows(one: Generated, driver: Driver) -> None:
    """Rows are cut where threads of the device are idle without, and as the stream's memory has room for the parts' numbers.

    Nothing is computed while captured.
    """
    resident = driver.attribute(MULTIPROCESSORS) * RESIDENT // PARTS_LANES
    for m, launches in ((resident // 2, 2), (resident // 2 + 1, 1), (PARTIAL, 1)):
        x, y = (tvm_ffi.from_dlpack(Capsule(FAR + (i << 40), s, one.dtype, 0)) for i, s in enumerate(((m, 1000), (m,))))
        driver.library.standin_counts_reset()
        one.device.begin(one.stream)
        one.op.run(x, out=y, stream=one.stream)
        assert counts(driver)["cuLaunchKernel"] == launches, m
        one.device.end(one.stream)


def _of_the_framework(one: Generated, driver: Driver, inputs: dict[str, Any], y: Any) -> None:
    """A stream that was not prepared: the framework's memory holds the parts, and goes back to it."""
    framework, stream = Allocator(one.device), one.device.stream()
    driver.library.standin_counts_reset()
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), stream):
        one.op.run(DLTensorTestWrapper(one.device.upload(inputs["x"])), out=y)
    assert counts(driver)["cuLaunchKernel"] == 2 and framework.returned == len(framework.given) == 1
    one.device.wait(stream)
    one.judged(inputs, y, "the framework's memory")


def _refused(one: Generated, driver: Driver, x: Any, y: Any, launches: int) -> None:
    """Each launch of a call fails once, and is the last that the call tries."""
    for nth in range(1, launches + 1):
        driver.library.standin_counts_reset()
        driver.fail("cuLaunchKernel", "2", nth)
        with pytest.raises(RuntimeError, match=r"launching a kernel: .*\(2\)"):
            one.op.run(x, out=y, stream=one.stream)
        assert counts(driver)["cuLaunchKernel"] == nth
        driver.fail("cuLaunchKernel", "")
    one.op.run(x, out=y, stream=one.stream)


def generated_stages(path: str) -> None:
    """Rows whose folds are read again: a launch for each level of folds and one that writes; apart, in place, in a graph."""
    one, driver = Generated(path), Driver()
    one.op.prepare(one.stream)
    for m, n, gap, launches in ((2, 300, 0, 3), (3, 131, 3, 3), (1, 128, 0, 1), (5, 1000, 1, 3), (40, 9, 0, 1)):
        inputs, y = one.drawn(m, n), one.out(m, n, gap)
        (x,) = (one.device.upload(value, strides=(n + gap, 1)) for value in inputs.values())
        driver.library.standin_counts_reset()
        one.op.run(x, out=y, stream=one.stream)
        assert counts(driver)["cuLaunchKernel"] == launches, (m, n)
        one.judged(inputs, y, (m, n, gap))
        one.op.run(x, out=x, stream=one.stream)
        one.judged(inputs, x, (m, n, gap, "in place"))
    inputs, y = one.drawn(2, 500), one.out(2, 500)
    x = one.device.upload(inputs["x"])
    one.device.begin(one.stream)
    one.op.run(x, out=y, stream=one.stream)
    graph = one.device.end(one.stream)
    one.device.replay(graph, one.stream)
    one.judged(inputs, y, "a graph of three launches")
    _refused(one, driver, x, y, launches=3)
    one.judged(inputs, y, "after refusals")


def generated_keys(path: str) -> None:
    """Few queries, many keys: parts of the keys where a stream has memory for them; causal, some see none of a part."""
    one, driver = Generated(path), Driver()
    for prepared in (False, True):
        if prepared:
            one.op.prepare(one.stream)
        for b, t, s in ((3, 1, 400), (2, 5, 130), (1, 70, 65), (2, 3, 9)):
            inputs = numerics.draw(one.meaning, Shape.of(b=b, t=t, s=s), np.random.default_rng(s))
            y = one.device.upload(np.full((b, t, 40), UNTOUCHED, one.dtype))
            placed = [one.device.upload(value) for value in inputs.values()]
            driver.library.standin_counts_reset()
            one.op.run(*placed, out=y, stream=one.stream)
            assert counts(driver)["cuLaunchKernel"] == (2 if prepared and s > 64 else 1), (b, t, s)
            one.judged(inputs, y, (b, t, s, prepared))


def generated_faults(path: str) -> None:
    """The size of the grid, arguments that the door does not take, what the driver refuses, and a second device."""
    one, driver, current = Generated(path), Driver(), ctypes.c_void_p(0)
    if one.op.name == "softmax":
        _grids(one, driver)
    if one.op.name == "gelu":
        _merged(one, driver)
    _arguments(one)
    inputs, out = one.drawn(4, 12), one.out(4, 12)
    x, *rest = (one.device.upload(value) for value in inputs.values())
    for name, words in (("cuLaunchKernel", "launching a kernel: .*"), ("cuCtxPushCurrent", "cuCtxPushCurrent: .*")):
        driver.fail(name, "2", 1)
        with pytest.raises(RuntimeError, match=words + r"\(2\)"):
            one.op.run(x, *rest, out=out, stream=one.stream)
        driver.fail(name, "")
    one.device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, "the thread had no context"
    far = [
        tvm_ffi.from_dlpack(Capsule(FAR + (i << 40), tuple(t.shape), one.dtype, 99)) for i, t in enumerate((x, *rest, out))
    ]
    with pytest.raises(ValueError, match="there is no device cuda:99"):
        one.op.run(*far[:-1], out=far[-1], stream=one.stream)
    there = tvm_ffi.from_dlpack(Capsule(FAR, (4, 12), one.dtype, 1))
    with pytest.raises(ValueError, match="out lives on cuda:1, x on cuda:0: copy it there"):
        one.op.run(x, *rest, out=there, stream=one.stream)

    def forked() -> None:
        with pytest.raises(RuntimeError, match="a fork cannot use it: start the process with spawn"):
            one.op.prepare(one.stream)

    assert not failure_of(forked)
    # Rows of one element, and one row: the stride of an axis of one element says nothing.
    for m, n in ((1, 40), (40, 1)):
        inputs = one.drawn(m, n)
        given, y = [one.device.upload(value) for value in inputs.values()], one.out(m, n)
        strides = (-7, 1) if m == 1 else (1, -7)
        given[0] = tvm_ffi.from_dlpack(Capsule(given[0].data_ptr(), (m, n), one.dtype, 0, strides))
        one.op.run(*given, out=y, stream=one.stream)
        one.judged(inputs, y, (m, n, "odd strides"))


def _grids(one: Generated, driver: Driver) -> None:
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
        inputs, found = one.drawn(m, n), (ctypes.c_uint * 2)()
        y = one.out(m, n)
        one.op.run(*(one.device.upload(value) for value in inputs.values()), out=y, stream=one.stream)
        one.device.wait(one.stream)
        driver.library.standin_geometry(found)
        assert tuple(found) == (blocks, threads), (m, n, tuple(found))
        one.judged(inputs, y, (m, n))


def _merged(one: Generated, driver: Driver) -> None:
    """Short rows without gaps are launched as one long row, whose groups are full; rows apart are not."""
    for m, n, gap, groups in ((40, 9, 0, 2), (40, 9, 3, 40), (1, 300, 0, 2), (300, 1, 0, 2)):
        inputs, found = one.drawn(m, n), (ctypes.c_uint * 2)()
        y = one.out(m, n, gap)
        one.op.run(*(one.device.upload(v, strides=(n + gap, 1)) for v in inputs.values()), out=y, stream=one.stream)
        one.device.wait(one.stream)
        driver.library.standin_geometry(found)
        assert found[0] * found[1] == groups * 32, (m, n, gap, tuple(found))
        one.judged(inputs, y, (m, n, gap))


def _arguments(one: Generated) -> None:
    """The native call takes (setting, stream, operands in their order, out) and nothing else."""
    call, setting = one.op._call, one.op._setting
    inputs = one.drawn(4, 12)
    given = [*(one.device.upload(value) for value in inputs.values()), one.out(4, 12)]
    for wrong in (
        (setting, one.stream, *given, given[0]),
        (setting, one.stream, *given[:-1]),
        (setting, "0", *given),
        (setting, 1.5, *given),
        ("0", one.stream, *given),
        (given[0], one.stream, *given),
        (),
    ):
        with pytest.raises(TypeError, match=r"expected the arguments \(setting, stream, operands in their order, out\)"):
            call(*wrong)
    with pytest.raises(TypeError, match="x is not a tensor: pass a tensor of a CUDA device"):
        call(setting, one.stream, None, *given[1:])
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), one.stream):  # no stream is the one of tvm-ffi
        one.device.begin(one.stream)
        call(setting, None, *given)
        graph = one.device.end(one.stream)
    one.device.put(given[-1], np.full((4, 12), UNTOUCHED, one.dtype))  # what was launched elsewhere is gone
    one.device.replay(graph, one.stream)
    one.judged(inputs, given[-1], "tvm-ffi's stream")


def generated_refusals(path: str) -> None:
    """What cannot be is refused in words, before a launch."""
    one = Generated(path)
    inputs = one.drawn(4, 12)
    x, *rest = (one.device.upload(value) for value in inputs.values())
    out = one.out(4, 12)
    for wrong, kind, why in (
        (inputs["x"].astype(np.float32), ValueError, "does not live on a CUDA device"),
        (one.device.upload(inputs["x"].astype(np.float16)), TypeError, "dtype"),
        (one.device.upload(inputs["x"][:3].copy()), ValueError, "they must be equal"),
        (7, TypeError, "x is a int"),
    ):
        with pytest.raises(kind, match=why):
            one.op.run(wrong, *rest, out=out, stream=one.stream)
    behind = tvm_ffi.from_dlpack(Capsule(x.data_ptr() + 12 * np.dtype(one.dtype).itemsize, (4, 12), one.dtype, 0))
    with pytest.raises(ValueError, match="shares memory with x without being that very tensor"):
        one.op.run(x, *rest, out=behind, stream=one.stream)
    with pytest.raises(TypeError, match="takes x"):
        one.op.run(x, *rest, x, out=out, stream=one.stream)
    with pytest.raises(UsageError, match="no thread counts"):
        one.op.with_threads(2)
    one.pack.close()
    with pytest.raises(PackClosed):
        one.op.run(x, *rest, out=out, stream=one.stream)
