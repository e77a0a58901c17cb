"""The driver API through plain ctypes, as a host calls it: on the stand-in or on a real ``libcuda.so.1``."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

SUCCESS, INVALID_VALUE, OUT_OF_MEMORY, NOT_INITIALIZED = 0, 1, 2, 3
VERSIONED = {  # what a host of CUDA 11 and later calls these
    "cuDeviceTotalMem", "cuDevicePrimaryCtxRelease", "cuDeviceGetUuid", "cuCtxCreate", "cuCtxDestroy", "cuCtxPushCurrent",
    "cuCtxPopCurrent", "cuMemAlloc", "cuMemFree", "cuMemGetInfo", "cuMemcpyHtoD", "cuMemcpyDtoH", "cuMemcpyDtoD",
    "cuMemcpyHtoDAsync", "cuMemcpyDtoHAsync", "cuMemcpyDtoDAsync", "cuMemsetD8", "cuMemsetD32", "cuMemAllocHost",
    "cuStreamDestroy", "cuStreamBeginCapture", "cuEventDestroy", "cuMemGetAddressRange", "cuGetProcAddress",
}  # fmt: skip


class Arguments(ctypes.Structure):
    """``ht_cuda_args``: the one argument of every kernel of ours."""

    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("x", "w", "bias", "residual", "y", "partial")),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "ldx", "ldy", "splits", "y_type", "ldw")),
        *((name, ctypes.c_uint64) for name in ("scale", "low", "high", "slope", "after")),
    ]


class DriverError(Exception):
    """A call that had to succeed did not."""


class Driver:
    """Calls by name: ``call`` returns the CUresult, ``need`` raises unless it is 0, ``new`` returns a handle made."""

    def __init__(self, library: str = "libcuda.so.1") -> None:
        self.library = ctypes.CDLL(library)

    def call(self, name: str, *arguments: Any) -> int:
        """The CUresult of a call; integers go as 64 bits, which every x86-64 parameter of the API takes."""
        function = getattr(self.library, f"{name}_v2" if name in VERSIONED else name)
        passed = [ctypes.c_int64(argument) if isinstance(argument, int) else argument for argument in arguments]
        return int(function(*passed))

    def need(self, name: str, *arguments: Any) -> None:
        """A call that must succeed."""
        if code := self.call(name, *arguments):
            raise DriverError(f"{name} answered {code}")

    def new(self, name: str, *arguments: Any) -> int:
        """The handle or address that a call writes to its first parameter."""
        handle = ctypes.c_uint64(0)
        self.need(name, ctypes.byref(handle), *arguments)
        return handle.value

    def open(self, device: int = 0) -> int:
        """Initialise, and make the primary context of a device current."""
        self.need("cuInit", 0)
        context = self.new("cuDevicePrimaryCtxRetain", device)
        self.need("cuCtxSetCurrent", context)
        return context

    def attribute(self, which: int, device: int = 0) -> int:
        """A CUdevice_attribute."""
        value = ctypes.c_int(0)
        self.need("cuDeviceGetAttribute", ctypes.byref(value), which, device)
        return value.value

    def function(self, cubin: bytes, name: str) -> int:
        """A kernel of a module loaded for it."""
        return self.new("cuModuleGetFunction", self.new("cuModuleLoadData", cubin), name.encode())

    def upload(self, values: np.ndarray[Any, Any]) -> int:
        """Device memory that holds these values."""
        address = self.new("cuMemAlloc", max(values.nbytes, 1))
        self.need("cuMemcpyHtoD", address, values.ctypes.data_as(ctypes.c_void_p), values.nbytes)
        self.need("cuStreamSynchronize", 0)  # the last bytes of such a copy may arrive after it returned
        return address

    def download(self, address: int, like: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        """The values at an address, of the shape and type of an array."""
        values = np.empty_like(like)
        self.need("cuMemcpyDtoH", values.ctypes.data_as(ctypes.c_void_p), address, values.nbytes)
        return values

    def launch(
        self, function: int, parameters: Sequence[Any], *, grid: Any = 1, block: Any = 32, shared: int = 0, stream: int = 0
    ) -> int:
        """cuLaunchKernel with ctypes values for parameters; grid and block are numbers or triples."""
        dims = [
            *(grid if isinstance(grid, tuple) else (grid, 1, 1)),
            *(block if isinstance(block, tuple) else (block, 1, 1)),
        ]
        pointers = (ctypes.c_void_p * max(len(parameters), 1))(*(ctypes.addressof(parameter) for parameter in parameters))
        return self.call("cuLaunchKernel", function, *dims, shared, stream, pointers, 0)

    def count(self, name: str) -> int:
        """How often a function was called (stand-in only)."""
        counted = self.library.standin_count
        counted.restype = ctypes.c_long
        return int(counted(name.encode()))

    def fail(self, name: str, what: str, nth: int = 1) -> None:
        """Plan what the nth call from now answers (stand-in only)."""
        self.library.standin_fail(name.encode(), ctypes.c_long(nth), what.encode())

    def executed(self) -> int:
        """How many launches were carried out (stand-in only)."""
        self.library.standin_executed.restype = ctypes.c_long
        return int(self.library.standin_executed())
