"""What no server should do to a CUDA device, done: extents past 2^31, a lost device, captures in the wrong mode."""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable
from typing import Any

import pytest
import tvm_ffi

import haotuner
from tests.runtime.cuda_memory import Capsule
from tests.runtime.cuda_served import Served
from tests.standin.client import Driver

PAST = 2**31
GLOBAL, CAPTURE_INVALIDATED = 0, 901
NOT_TOO_LONG_S = 20.0  # of processors: a refusal takes milliseconds; what sleeps too long is ended


def extents(path: str) -> None:
    """Extents, products of extents and strides past 2^31 are refused by name, without a launch; no rows are no work."""
    served, driver = Served(path), Driver()
    n, k = served.op.n, served.op.k

    def tensor(shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
        address = served.device.empty((4, max(n, k)), served.pick.dtype).data_ptr()
        return tvm_ffi.from_dlpack(Capsule(address, shape, served.pick.dtype, 0, strides))

    before = driver.count("cuLaunchKernel")
    for rows in ((PAST,), (2**40,), (2**16, 2**16), (2**33, 2**33), (2**62, 4)):
        with pytest.raises(ValueError, match=f"^{served.op.name}: .*"):
            served.linear(tensor((*rows, k)), out=tensor((*rows, n)), stream=served.stream)
    for strides in ((2**40, 1), (2**62, 1)):
        with pytest.raises(ValueError, match="^" + served.op.name):
            served.linear(tensor((2, k), strides), out=served.out(2), stream=served.stream)
        with pytest.raises(ValueError, match="^" + served.op.name):
            served.linear(served.device.upload(served.rows(2)), out=tensor((2, n), strides), stream=served.stream)
    assert driver.count("cuLaunchKernel") == before
    served.linear(tensor((0, 2**20, k)), out=tensor((0, 2**20, n)), stream=served.stream)
    assert driver.count("cuLaunchKernel") == before, "no rows, no launch"
    x, y = served.rows(9), served.out(9)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "after the refusals")


def lost(path: str) -> None:
    """After a fault every door says that the device is lost, at once, and closing is quiet."""
    served, driver = Served(path), Driver()
    x, y = served.device.upload(served.rows(20)), served.out(20)
    driver.fail("cuLaunchKernel", "async:700")
    served.linear(x, out=y, stream=served.stream)
    begin = time.process_time()
    with pytest.raises(AssertionError, match="CUDA error 700"):
        served.device.wait(served.stream)
    words = "the device is lost to this process, this call may not be the cause: end the process and start another"
    for _ in range(2):
        with pytest.raises(RuntimeError, match=words):
            served.linear(x, out=y, stream=served.stream)
        with pytest.raises(RuntimeError, match=words):
            served.linear.prepare(served.stream)
        again = haotuner.load(path, device="cuda:0").op(served.op.name)  # the code is loaded; its next call is told
        with pytest.raises(RuntimeError, match=words):
            again.bind(served.linear.bound.weight).prepare(served.stream)
    served.pack.close()
    assert time.process_time() - begin < NOT_TOO_LONG_S


def captures(path: str) -> None:
    """Memory asked for inside a capture of the strictest mode, and the legacy stream beside one: said; then all is right."""
    served = Served(path)
    device, x = served.device, served.rows(3)
    on_device, y, legacy = device.upload(x), served.out(3), ctypes.c_void_p(0)
    served.call(on_device, y)

    def during(act: Callable[[], Any], words: str, *, blocking: bool) -> None:
        stream, graph = ctypes.c_void_p(0), ctypes.c_void_p(0)
        device.inside("cuStreamCreate", ctypes.byref(stream), 0 if blocking else 1)
        device.inside("cuStreamBeginCapture_v2", stream, GLOBAL)
        with pytest.raises(RuntimeError, match=words):
            act()
        with pytest.raises(AssertionError, match=str(CAPTURE_INVALIDATED)):
            device.inside("cuStreamEndCapture", stream, ctypes.byref(graph))
        served.call(on_device, y)
        served.judge(y, x, words)

    message = "a stream is being captured: load, bind and warm up before the capture, and call on the captured stream"
    other = device.stream()
    during(lambda: served.linear.prepare(other), rf"memory for partial sums: .*\(900\): {message}", blocking=False)
    during(lambda: served.linear(on_device, out=y, stream=legacy.value or 0), rf"\(906\): {message}", blocking=True)
    served.linear.prepare(other)
    served.linear(on_device, out=y, stream=other)
    device.wait(other)
    served.judge(y, x, "prepared after the capture")
