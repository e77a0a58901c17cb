"""A framework as torch is one to tvm-ffi: an exchange table with a stream and an allocator. For cuda_scenarios.py."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import tvm_ffi
from tvm_ffi.core import DLTensorTestWrapper

from tests.runtime.cuda_memory import Device, DLTensor
from tests.runtime.cuda_served import Served

ALLOCATOR_OFFSET = 16  # of DLPackExchangeAPI (dlpack.h): after its version and the older table's address
_REFUSE = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p)


class Versioned(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h."""

    _fields_ = (
        ("major", ctypes.c_uint32), ("minor", ctypes.c_uint32), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64), ("tensor", DLTensor),
    )  # fmt: skip


class Allocator:
    """Gives memory of a device and frees nothing, as an allocator in stream order may be thought of; can be out of it."""

    def __init__(self, device: Device) -> None:
        self.device, self.empty = device, False
        self.given: list[int] = []  # elements
        self.returned = 0
        self._kept: list[Any] = []
        self._deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(self._delete)
        kind = ctypes.CFUNCTYPE(
            ctypes.c_int, ctypes.POINTER(DLTensor), ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p, _REFUSE
        )
        self._function = kind(self._allocate)
        table = ctypes.pythonapi.PyCapsule_GetPointer
        table.restype, table.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
        address = table(DLTensorTestWrapper.__dlpack_c_exchange_api__, b"dlpack_exchange_api")
        slot = ctypes.c_void_p.from_address(address + ALLOCATOR_OFFSET)
        slot.value = ctypes.cast(self._function, ctypes.c_void_p).value

    def _allocate(self, like: Any, out: Any, context: int, refuse: Any) -> int:
        if self.empty:
            refuse(context, b"MemoryError", b"the framework is out of memory")
            return -1
        prototype = like.contents
        shape = (ctypes.c_int64 * prototype.ndim)(*prototype.shape[: prototype.ndim])
        steps = (ctypes.c_int64 * prototype.ndim)(*np.cumprod([1, *list(shape)[:0:-1]])[::-1])
        size = int(np.prod(list(shape))) * prototype.bits // 8
        address = ctypes.c_uint64(0)
        self.device.inside("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(size, 1)))
        tensor = DLTensor(
            address.value,
            prototype.device_type,
            prototype.device_id,
            prototype.ndim,
            prototype.code,
            prototype.bits,
            1,
            shape,
            steps,
            0,
        )
        managed = Versioned(1, 0, None, ctypes.cast(self._deleter, ctypes.c_void_p).value, 0, tensor)
        self._kept += [managed, shape, steps]
        self.given.append(int(np.prod(list(shape))))
        out[0] = ctypes.addressof(managed)
        return 0

    def _delete(self, _: int) -> None:
        self.returned += 1


def allocating(path: str) -> None:
    """The framework gives the output and the memory for partial sums, where its stream is the call's; else k is whole."""
    served = Served(path)
    framework = Allocator(served.device)
    x = served.rows(3)
    wrapped = DLTensorTestWrapper(served.device.upload(x))
    device, n = tvm_ffi.Device(2, 0), served.op.n
    with tvm_ffi.use_raw_stream(device, served.stream):
        y = served.linear(wrapped)
    served.device.wait(served.stream)
    served.judge(y, x, "all from the framework")
    assert framework.given == [3 * n, 3 * 3 * n] and framework.returned == 1, "the partial sums went back"
    assert served.stats()["fallbacks"] == 0
    out, other = served.out(3), served.device.stream()
    with tvm_ffi.use_raw_stream(device, served.stream):
        served.linear(wrapped, out=out, stream=other)
    served.device.wait(other)
    served.judge(out, x, "another stream")
    assert len(framework.given) == 2 and served.stats()["fallbacks"] == 1, "the framework frees in its own stream's order"
    framework.empty = True
    out = served.out(3)
    with tvm_ffi.use_raw_stream(device, served.stream):
        served.linear(wrapped, out=out)
    served.device.wait(served.stream)
    served.judge(out, x, "no memory")
    assert served.stats()["fallbacks"] == 2
