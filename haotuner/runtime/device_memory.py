"""Arrays on a CUDA device for who has no framework: the driver through ctypes, handed over by DLPack."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import EnvironmentMissing
from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.gpus import LIBRARY

_KDL_CUDA, _NON_BLOCKING = 2, 1


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )  # fmt: skip


class _Managed(ctypes.Structure):
    """DLManagedTensor; without a deleter, for ``DeviceMemory`` owns the bytes."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class DeviceMemory:
    """Memory and a stream of one device. ``with`` frees all of it; tensors handed out are of no use afterwards."""

    def __init__(self, ordinal: int) -> None:
        self.ordinal = ordinal
        self._cuda = ctypes.CDLL(LIBRARY)
        self._held: list[int] = []
        self._kept: list[Any] = []
        device = ctypes.c_int(0)
        self._call("cuInit", 0)
        self._call("cuDeviceGet", ctypes.byref(device), ordinal)
        self._device, self._context = device, ctypes.c_void_p(0)
        self._call("cuDevicePrimaryCtxRetain", ctypes.byref(self._context), device)
        made = ctypes.c_void_p(0)
        self._inside("cuStreamCreate", ctypes.byref(made), _NON_BLOCKING)
        self.stream = int(made.value or 0)

    def __enter__(self) -> DeviceMemory:
        return self

    def __exit__(self, *_: object) -> None:
        for address in self._held:
            self._inside("cuMemFree_v2", ctypes.c_uint64(address))
        self._inside("cuStreamDestroy_v2", ctypes.c_void_p(self.stream))
        self._call("cuDevicePrimaryCtxRelease_v2", self._device)

    def put(self, values: NDArray[Any]) -> int:
        """Address of a copy of a contiguous array."""
        address = ctypes.c_uint64(0)
        self._inside("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(max(values.nbytes, 16)))
        self._held.append(int(address.value))
        self._copy("cuMemcpyHtoD_v2", ctypes.c_uint64(address.value), ctypes.c_void_p(values.ctypes.data), values.nbytes)
        self._inside("cuStreamSynchronize", ctypes.c_void_p(0))  # the copy may return before its last bytes arrive
        return int(address.value)

    def get(self, address: int, values: NDArray[Any]) -> None:
        """Fill a contiguous array from the device, after the stream's work."""
        self._inside("cuStreamSynchronize", ctypes.c_void_p(self.stream))
        self._copy("cuMemcpyDtoH_v2", ctypes.c_void_p(values.ctypes.data), ctypes.c_uint64(address), values.nbytes)

    def tensor(self, address: int, shape: tuple[int, ...], stride: int, dtype: str) -> Any:
        """A tvm-ffi tensor of rows ``stride`` elements apart over all outer axes, or of one axis; ``dtype`` by ops' name."""
        rows = [stride * math.prod(shape[axis + 1 : -1]) for axis in range(len(shape) - 1)]
        return self.strided(address, shape, (*rows, 1), dtype)

    def strided(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...], dtype: str) -> Any:
        """Array at any strides, in elements."""
        return self._handed(address, shape, strides, DTYPES[dtype].code, DTYPES[dtype].size * 8)

    def like(self, address: int, values: NDArray[Any]) -> Any:
        """A contiguous tensor of the shape and type of an array."""
        code = 4 if values.dtype.name == "bfloat16" else {"f": 2, "i": 0, "u": 1, "b": 6}[values.dtype.kind]
        return self._handed(address, values.shape, None, code, values.itemsize * 8)

    def _handed(self, address: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, code: int, bits: int) -> Any:
        import tvm_ffi

        sizes = (ctypes.c_int64 * len(shape))(*shape)
        steps = None if strides is None else (ctypes.c_int64 * len(shape))(*strides)
        words = _Tensor(address, _KDL_CUDA, self.ordinal, len(shape), code, bits, 1, sizes, steps, 0)
        managed = _Managed(words, None, None)
        self._kept += [managed, sizes, steps]
        return tvm_ffi.from_dlpack(_Capsule(managed, self.ordinal))

    def _copy(self, name: str, to: Any, source: Any, size: int) -> None:
        self._inside(name, to, source, ctypes.c_size_t(size))

    def _inside(self, name: str, *words: Any) -> None:
        self._call("cuCtxPushCurrent_v2", self._context)
        try:
            self._call(name, *words)
        finally:
            self._call("cuCtxPopCurrent_v2", ctypes.byref(ctypes.c_void_p(0)))

    def _call(self, name: str, *words: Any) -> None:
        code = getattr(self._cuda, name)(*words)
        if code != 0:
            raise EnvironmentMissing(f"cuda:{self.ordinal}: {name} answers CUDA error {code}; `nvidia-smi` must work first")


class _Capsule:
    """A DLPack producer."""

    def __init__(self, managed: _Managed, ordinal: int) -> None:
        self._managed, self._ordinal = managed, ordinal

    def __dlpack_device__(self) -> tuple[int, int]:
        return _KDL_CUDA, self._ordinal

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._managed), b"dltensor", None)


def with_gaps(values: NDArray[Any], gap: int) -> NDArray[Any]:
    """Copy of the rows in a wider array, NaN between them (bytes: the largest)."""
    unread = np.iinfo(values.dtype).max if values.dtype.kind in "iu" else np.nan
    room = np.full((values.shape[0], values.shape[1] + gap), unread, values.dtype)
    room[:, : values.shape[1]] = values
    return room
