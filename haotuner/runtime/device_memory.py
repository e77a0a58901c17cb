"""CUDA devices of this host through the driver alone: what they are, and arrays in their memory.

A CUDA device of this host, as its driver describes it. Standard library only; no context is made.
"""

from __future__ import annotations

import ctypes
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import EnvironmentMissing, PackMismatch, UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.manifest import Manifest
from haotuner.spec.cuda_arch import CudaArch, driver_words

LIBRARY = "libcuda.so.1"
_DEVICE = re.compile(r"cuda(?::([0-9]{1,3}))?(?:/([1-9][0-9]{0,3}))?")
# cuda.h, CUdevice_attribute
_MAJOR, _MINOR, _UNITS, _MEMORY_KHZ, _BUS_BITS = 75, 76, 16, 36, 37
_NOT_INITIALIZED, _NO_DEVICE = 3, 100  # CUresult
_NEAR = 0.1  # bandwidths within a tenth are one device's: clocks differ a little between boards


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """Facts that decide whose code and whose plans a device is served with."""

    ordinal: int
    name: str
    major: int
    minor: int
    units: int  # streaming multiprocessors; of a MIG instance those that it has
    gbps: float | None  # memory bandwidth, from clock and bus width; None where the driver does not say
    driver: int  # the CUDA that the driver serves, as it says it: 13000

    def choose(self, manifests: Mapping[str, Manifest]) -> str:
        """The level of a pack for this device; PackMismatch if the pack has none that it and its driver can run."""
        fitting = [level for level, manifest in manifests.items() if manifest.on_device and self.runs(manifest)]
        if not fitting:
            raise PackMismatch(self._no_code(", ".join(manifests)))
        taken = [level for level in fitting if not self.too_old(manifests[level])] or fitting  # of none, the check says why
        return min(taken, key=lambda level: (self._distance(manifests[level]), level))

    def runs(self, manifest: Manifest) -> bool:
        """True if a pack's code runs on a device of this kind."""
        arch = CudaArch.of(manifest.arch)
        return arch is not None and arch.runs_on(self.major, self.minor)

    def too_old(self, manifest: Manifest) -> str:
        """Reason that this device's driver does not take a pack's code: found, needed, what to do; empty if it does."""
        if manifest.driver <= self.driver:
            return ""
        return (
            f"its {manifest.arch} code needs a driver for CUDA {driver_words(manifest.driver)}; the one of this host serves "
            f"CUDA {self.driver // 1000}.{self.driver % 1000 // 10}: update the NVIDIA driver, or tune again with a CUDA "
            f"{self.driver // 1000} compiler"
        )

    def check(self, manifest: Manifest) -> None:
        """PackMismatch unless a pack's code runs here."""
        if not self.runs(manifest):
            raise PackMismatch(self._no_code(f"{manifest.arch} ({manifest.device_id})"))
        if problem := self.too_old(manifest):
            raise PackMismatch(f"cuda:{self.ordinal} cannot serve the pack: {problem}")

    def is_planned_for(self, manifest: Manifest) -> bool:
        """True if the pack's plans were made for this kind of device, not for another of the same architecture."""
        return self._distance(manifest) <= _NEAR

    def _distance(self, manifest: Manifest) -> float:
        device = manifest.document["device"]
        pairs = [(self.units, device.get("compute_units")), (self.gbps, device.get("memory_gbps"))]
        return max(
            (max(here, there) / min(here, there) - 1 for here, there in pairs if here and _positive(there)), default=0.0
        )

    def _no_code(self, archs: str) -> str:
        return (
            f"cuda:{self.ordinal} is {self.name} (compute capability {self.major}.{self.minor}); the pack holds code "
            f"for {archs}. Tune for this device and merge the packs, or serve on the CPU"
        )


def ordinal_of(device: Any) -> int | None:
    """Number of a device named "cuda" or "cuda:1" (also as torch names it); None of the CPU. UsageError for another."""
    if device is None or str(device) == "cpu":
        return None
    match = _DEVICE.fullmatch(str(device))
    if match is None:
        raise UsageError(
            f"device={device!r}: name cuda, cuda:0, cuda:1 and so on, cuda:0/64 for a part, or None for the CPU"
        )
    return int(match[1] or 0)


def part_of(gpu: Gpu, device: Any) -> Gpu:
    """The device that "cuda:0/64" means: one of 64 multiprocessors as far as plans go. UsageError if it has fewer."""
    match = _DEVICE.fullmatch(str(device))
    units = int(match[2]) if match and match[2] else gpu.units
    if units > gpu.units:
        raise UsageError(f"device={device!r}: cuda:{gpu.ordinal} has {gpu.units} multiprocessors; name a part of them")
    return replace(gpu, units=units)


def find_gpu(ordinal: int, library: str = LIBRARY) -> Gpu:
    """The device of that number as CUDA counts them. EnvironmentMissing says what is not there, and what to do."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        raise EnvironmentMissing(
            f"cuda:{ordinal}: no CUDA driver ({error}); install the NVIDIA driver, or load the pack without a device"
        ) from error
    status = cuda.cuInit(0)
    if status == _NOT_INITIALIZED:
        raise EnvironmentMissing(
            f"cuda:{ordinal}: the driver cannot begin (CUDA_ERROR_NOT_INITIALIZED, 3): CUDA was used before this process "
            "was forked, and a fork cannot use it: start the process with spawn, or load the pack only after the fork"
        )
    count = ctypes.c_int(0)
    if status not in (0, _NO_DEVICE):
        raise EnvironmentMissing(f"cuda:{ordinal}: cuInit answers CUDA error {status}; `nvidia-smi` must work first")
    if status == _NO_DEVICE or cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or ordinal >= count.value:
        raise EnvironmentMissing(
            f"there is no device cuda:{ordinal}: the CUDA driver shows {count.value}; see nvidia-smi, CUDA_VISIBLE_DEVICES"
        )
    device = ctypes.c_int(0)
    if (status := cuda.cuDeviceGet(ctypes.byref(device), ordinal)) != 0:
        raise EnvironmentMissing(f"cuda:{ordinal}: cuDeviceGet answers CUDA error {status}; `nvidia-smi` must work first")
    version = ctypes.c_int(0)
    if (status := cuda.cuDriverGetVersion(ctypes.byref(version))) != 0:
        raise EnvironmentMissing(
            f"cuda:{ordinal}: cuDriverGetVersion answers CUDA error {status}; `nvidia-smi` must work first"
        )
    name = ctypes.create_string_buffer(256)
    named = cuda.cuDeviceGetName(name, len(name), device) == 0
    numbers = {code: _attribute(cuda, device, code) for code in (_MAJOR, _MINOR, _UNITS, _MEMORY_KHZ, _BUS_BITS)}
    twice = 2 * numbers[_MEMORY_KHZ] * 1e3 * numbers[_BUS_BITS] / 8 / 1e9  # both edges of the clock
    return Gpu(
        ordinal=ordinal,
        name=name.value.decode("utf-8", "replace") if named else "a CUDA device",
        major=numbers[_MAJOR],
        minor=numbers[_MINOR],
        units=numbers[_UNITS],
        gbps=twice or None,
        driver=version.value,
    )


def _attribute(cuda: ctypes.CDLL, device: ctypes.c_int, code: int) -> int:
    value = ctypes.c_int(0)
    return value.value if cuda.cuDeviceGetAttribute(ctypes.byref(value), code, device) == 0 else 0


def _positive(number: Any) -> bool:
    return isinstance(number, int | float) and number > 0


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
