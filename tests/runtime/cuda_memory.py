"""Memory, streams and graphs of a CUDA device for tests: the driver through ctypes, tensors as DLPack hands them over.

Used in child processes whose libcuda.so.1 is the stand-in, or a real one.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

KDL_CPU, KDL_CUDA = 1, 2
CODES = {
    "float32": (2, 32),
    "float16": (2, 16),
    "bfloat16": (4, 16),
    "int32": (0, 32),
    "int64": (0, 64),
    "int8": (0, 8),
    "float64": (2, 64),
    "bool": (6, 8),
    "uint8": (1, 8),
}
STREAM_NON_BLOCKING, CAPTURE_THREAD_LOCAL = 1, 1


class DLTensor(ctypes.Structure):
    """dlpack.h."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]  # fmt: skip


class Managed(ctypes.Structure):
    """DLManagedTensor of dlpack.h."""


DELETER = ctypes.CFUNCTYPE(None, ctypes.POINTER(Managed))
Managed._fields_ = [("tensor", DLTensor), ("context", ctypes.c_void_p), ("deleter", DELETER)]
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype, _new_capsule.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
NOTHING = DELETER(0)


class Capsule:
    """A DLPack producer over memory that somebody else owns; what it hands out lives as long as the process."""

    kept: list[Any] = []

    def __init__(
        self, data: int, shape: Sequence[int], dtype: str, device: int, strides: Sequence[int] | None = None
    ) -> None:
        self.shape, self.device = tuple(shape), device
        rank = len(shape)
        code, bits = CODES[dtype]
        sizes = (ctypes.c_int64 * rank)(*shape)
        steps = None if strides is None else (ctypes.c_int64 * rank)(*strides)
        tensor = DLTensor(data, KDL_CUDA, device, rank, code, bits, 1, sizes, steps, 0)
        self.managed = Managed(tensor, None, NOTHING)
        self.kept += [self.managed, sizes, steps]

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_CUDA, self.device

    def __dlpack__(self, **_: Any) -> Any:
        return _new_capsule(ctypes.addressof(self.managed), b"dltensor", None)


class Device:
    """One device's primary context, current only inside the calls here."""

    def __init__(self, ordinal: int = 0) -> None:
        self.ordinal = ordinal
        self.cuda = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device = ctypes.c_int(0)
        self.call("cuDeviceGet", ctypes.byref(device), ordinal)
        self.context = ctypes.c_void_p(0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), device)

    def call(self, name: str, *arguments: Any) -> None:
        """A call of the driver; AssertionError with its code."""
        code = self.cuda[name](*arguments)
        assert code == 0, f"{name}: CUDA error {code}"

    def inside(self, name: str, *arguments: Any) -> None:
        """The same with the context current."""
        self.call("cuCtxPushCurrent_v2", self.context)
        try:
            self.call(name, *arguments)
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p(0)))

    def empty(
        self, shape: Sequence[int], dtype: str = "float32", *, strides: Sequence[int] | None = None, skip: int = 0
    ) -> Any:
        """A tvm-ffi tensor; ``skip`` elements lie before it, and it is strided if asked for. Content undefined."""
        import tvm_ffi

        size = CODES[dtype][1] // 8
        reach = int(np.prod(shape)) if strides is None else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))
        address = ctypes.c_uint64(0)
        self.inside("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(1, (reach + skip) * size)))
        return tvm_ffi.from_dlpack(Capsule(address.value + skip * size, shape, dtype, self.ordinal, strides))

    def upload(self, values: Any, **how: Any) -> Any:
        """A tensor with these values; fp32 or fp16 arrays. With strides: rows so far apart."""
        tensor = self.empty(values.shape, values.dtype.name, **how)
        self.put(tensor, values)
        return tensor

    def put(self, tensor: Any, values: Any) -> None:
        """Copy values into a tensor, rows that lie one behind the other at once."""
        flat = values.reshape(-1, max(1, values.shape[-1]))  # numpy makes no rows of nothing
        for first, count, at in self._runs(tensor, values.itemsize):
            data = np.ascontiguousarray(flat[first : first + count])
            self.inside(
                "cuMemcpyHtoD_v2", ctypes.c_uint64(at), ctypes.c_void_p(data.ctypes.data), ctypes.c_size_t(data.nbytes)
            )
        self.wait(0)  # the last bytes of such a copy may arrive after it returned

    def download(self, tensor: Any, dtype: str = "float32") -> Any:
        """The values of a tensor, after all work on the legacy stream."""
        values = np.zeros(tuple(tensor.shape), dtype)
        flat = values.reshape(-1, values.shape[-1])
        for first, count, at in self._runs(tensor, values.itemsize):
            data = flat[first : first + count]
            self.inside(
                "cuMemcpyDtoH_v2", ctypes.c_void_p(data.ctypes.data), ctypes.c_uint64(at), ctypes.c_size_t(data.nbytes)
            )
        return values

    def stream(self) -> int:
        """A new stream that does not wait for the legacy one."""
        handle = ctypes.c_void_p(0)
        self.inside("cuStreamCreate", ctypes.byref(handle), STREAM_NON_BLOCKING)
        return int(handle.value or 0)

    def wait(self, stream: int) -> None:
        """Until a stream is done."""
        self.inside("cuStreamSynchronize", ctypes.c_void_p(stream))

    def begin(self, stream: int) -> None:
        """Capture a stream, as a server does: calls of other threads are not its affair."""
        self.inside("cuStreamBeginCapture_v2", ctypes.c_void_p(stream), CAPTURE_THREAD_LOCAL)

    def end(self, stream: int) -> Any:
        """The captured graph, ready to be launched."""
        graph, ready = ctypes.c_void_p(0), ctypes.c_void_p(0)
        self.inside("cuStreamEndCapture", ctypes.c_void_p(stream), ctypes.byref(graph))
        self.inside("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        return ready

    def replay(self, graph: Any, stream: int) -> None:
        """Launch a graph and wait for it."""
        self.inside("cuGraphLaunch", graph, ctypes.c_void_p(stream))
        self.wait(stream)

    def _runs(self, tensor: Any, size: int) -> list[tuple[int, int, int]]:
        """First row, number of rows and address of rows that lie one behind the other."""
        shape, strides = tuple(tensor.shape), tuple(tensor.strides)
        if 0 in shape:
            return []
        offsets = np.zeros(1, np.int64)
        for extent, stride in zip(shape[:-1], strides[:-1], strict=True):
            offsets = (offsets[:, None] + np.arange(extent) * stride).reshape(-1)
        firsts = np.flatnonzero(np.diff(offsets, prepend=offsets[0] - shape[-1] - 1) != shape[-1])
        counts = np.diff(firsts, append=len(offsets))
        return [
            (int(first), int(count), tensor.data_ptr() + size * int(offsets[first]))
            for first, count in zip(firsts, counts, strict=True)
        ]
