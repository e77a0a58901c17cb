"""What no server should do to a CUDA device, done with a whole model: refused in words, or computed right, and then all is
right. A scenario in a process whose driver is a stand-in of two devices.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import pytest
import tvm_ffi

from haotuner.errors import HaotunerError
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_misfortunes import BLOCKING, CAPTURE_INVALIDATED, FAR, GLOBAL, NON_BLOCKING, PAST, lost
from tests.runtime.cuda_models import Server
from tests.standin.client import Driver

SIZES = 2, 7


class Asked:
    """One request, whose ends can be others."""

    def __init__(self, path: str) -> None:
        self.server = Server(path)
        self.device, self.stream = self.server.device, self.server.stream
        self.arrays, self.inputs = self.server.inputs(*SIZES)
        self.out = self.server.outputs(*SIZES)

    def run(self, inputs: Any = None, out: Any = None, stream: int | None = None) -> None:
        """Queue it with some of its ends in others' place."""
        where = self.stream if stream is None else stream
        self.server.model.run(self.inputs | (inputs or {}), out=self.out | (out or {}), stream=where)

    def refused(self, words: str, **instead: Any) -> None:
        """Said before anything is launched."""
        driver = Driver()
        before = driver.count("cuLaunchKernel")
        with pytest.raises(HaotunerError, match=words):
            self.run(**instead)
        assert driver.count("cuLaunchKernel") == before

    def again(self) -> None:
        """An ordinary request, behind something that was not."""
        self.run()
        self.device.wait(self.stream)
        self.server.judge(self.arrays, self.out)


def misfortunes(path: str) -> None:
    """Ends elsewhere, off, on each other and past 2^31; streams of other contexts, wrong captures, a lost device."""
    request = Asked(path)
    request.again()
    for scenario in (_elsewhere, _off, _overlapping, _past, _captures, _lost):
        scenario(request)


def _told(tensor: Any, dtype: str, shape: Any = None, device: int = 0, data: int | None = None) -> Any:
    at = tensor.data_ptr() if data is None else data
    return tvm_ffi.from_dlpack(Capsule(at, tuple(tensor.shape if shape is None else shape), dtype, device))


def _elsewhere(request: Asked) -> None:
    for name, tensor in request.inputs.items():
        request.refused("on cuda:0, got int64 on cuda:1", inputs={name: _told(tensor, "int64", device=1)})
    for name, tensor in request.out.items():
        dtype = request.server.graph.types[name].dtype.replace("fp", "float")
        request.refused("cuda:1|another device|is of another type or shape", out={name: _told(tensor, dtype, device=1)})
    with pytest.raises(HaotunerError, match="is the stream alive, and one of this device's primary context"):
        request.run(stream=Device(1).stream())
    request.again()


def _off(request: Asked) -> None:
    """An element off any wider access; what is not aligned to its own elements is no tensor of a framework."""
    for name, array in request.arrays.items():
        request.run(inputs={name: request.device.upload(array, skip=1)})
        request.device.wait(request.stream)
        request.server.judge(request.arrays, request.out, name)
    for name in request.out:
        dtype = request.server.graph.types[name].dtype.replace("fp", "float")
        off = request.device.empty(tuple(request.out[name].shape), dtype, skip=1)
        request.run(out={name: off})
        request.device.wait(request.stream)
        request.server.judge(request.arrays, request.out | {name: off}, name)
    request.again()


def _overlapping(request: Asked) -> None:
    """An output on an input, or on another output."""
    first, *others = request.out
    dtype = request.server.graph.types[first].dtype.replace("fp", "float")
    for other in (*request.inputs.values(), *(request.out[name] for name in others)):
        request.refused("shares? memory", out={first: _told(request.out[first], dtype, data=other.data_ptr())})
    request.again()


def _past(request: Asked) -> None:
    for sizes in ((PAST, 7), (2, PAST), (2**40, 2**40), (2**16, 2**16), (2**30, 2**30)):
        large = {name: _told(None, "int64", sizes, data=FAR) for name in request.inputs}
        request.refused("extent|dimension|sizes|larger than any memory", inputs=large)
    request.again()


def _captures(request: Asked) -> None:
    device = request.device

    def during(act: Callable[[], Any], *, blocking: bool) -> None:
        stream, graph = ctypes.c_void_p(0), ctypes.c_void_p(0)
        device.inside("cuStreamCreate", ctypes.byref(stream), BLOCKING if blocking else NON_BLOCKING)
        device.inside("cuStreamBeginCapture_v2", stream, GLOBAL)
        with pytest.raises(HaotunerError, match="a stream is being captured: load, bind and warm up before the capture"):
            act()
        with pytest.raises(AssertionError, match=str(CAPTURE_INVALIDATED)):
            device.inside("cuStreamEndCapture", stream, ctypes.byref(graph))
        request.again()

    during(lambda: request.run(stream=device.stream()), blocking=False)
    request.run(stream=0)
    device.wait(0)
    during(lambda: request.run(stream=0), blocking=True)


def _lost(request: Asked) -> None:
    lost(request.run, request.device, request.stream, request.server.pack, HaotunerError)


def run(name: str, *words: str) -> None:
    """The scenario by its name."""
    assert name == "misfortunes"
    misfortunes(*words)


if __name__ == "__main__":
    import sys

    run(*sys.argv[1:])
