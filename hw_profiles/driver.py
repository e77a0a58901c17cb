"""Attributes of a GPU that NVML does not have: asked of the CUDA driver through ctypes.

No context is made, so nothing is allocated on the GPU. Numbers of attributes: cuda.h, ``CUdevice_attribute``.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from haotuner.hw_profiles.nvml import NoGpu, Reason

ATTRIBUTES = {
    "threads_per_block": 1,
    "shared_default_bytes": 8,
    "wave_width": 10,
    "clock_khz": 13,
    "compute_units": 16,
    "memory_clock_khz": 36,
    "bus_bits": 37,
    "l2_bytes": 38,
    "threads_per_unit": 39,
    "capability_major": 75,
    "capability_minor": 76,
    "l1_bytes": 81,
    "registers_per_unit": 82,
    "shared_per_block_bytes": 97,
    "blocks_per_unit": 106,
}
_NO_DEVICE = 100  # CUDA_ERROR_NO_DEVICE
_ERRORS = {  # cuda.h, CUresult: the ones that cuInit is known for
    3: "CUDA_ERROR_NOT_INITIALIZED",
    34: "CUDA_ERROR_STUB_LIBRARY",
    100: "CUDA_ERROR_NO_DEVICE",
    101: "CUDA_ERROR_INVALID_DEVICE",
    304: "CUDA_ERROR_OPERATING_SYSTEM",
    802: "CUDA_ERROR_SYSTEM_NOT_READY",
    803: "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH",
    999: "CUDA_ERROR_UNKNOWN",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DriverGpu:
    """One GPU, or one MIG instance, as CUDA will give it to a program."""

    index: int
    name: str
    bus_id: str | None
    memory_bytes: int | None
    attributes: dict[str, int]  # keys of ATTRIBUTES; absent where the driver is too old to know


def driver_version(library: str = "libcuda.so.1") -> int | None:
    """The CUDA that the driver serves, as it says it: 13000 for 13.0; None where there is none that answers."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return None
    version = ctypes.c_int(0)
    return version.value if cuda.cuDriverGetVersion(ctypes.byref(version)) == 0 else None


def query_driver(library: str = "libcuda.so.1") -> tuple[DriverGpu, ...] | NoGpu:
    """Every GPU that CUDA shows to this process, in CUDA's order; never raises for what the driver answers."""
    try:
        cuda = ctypes.CDLL(library)
    except OSError as error:
        return NoGpu(
            reason="no-library", detail=str(error), remedy="install the NVIDIA driver (libcuda.so.1), or use --device cpu"
        )
    status = cuda.cuInit(0)
    if status != 0:
        name = _ERRORS.get(status, "CUDA error")
        reason: Reason = "no-gpu" if status == _NO_DEVICE else "no-driver"
        return NoGpu(
            reason=reason,
            detail=f"cuInit: {name} ({status})",
            remedy="`nvidia-smi` must work; see also CUDA_VISIBLE_DEVICES",
        )
    count = ctypes.c_int(0)
    if cuda.cuDeviceGetCount(ctypes.byref(count)) != 0 or count.value < 1:
        return NoGpu(
            reason="no-gpu", detail="the CUDA driver shows no GPU", remedy="see CUDA_VISIBLE_DEVICES, or use --device cpu"
        )
    return tuple(result for index in range(count.value) if (result := _gpu(cuda, index)) is not None)


def _gpu(cuda: ctypes.CDLL, index: int) -> DriverGpu | None:
    device = ctypes.c_int(0)
    if cuda.cuDeviceGet(ctypes.byref(device), index) != 0:
        return None
    name = ctypes.create_string_buffer(256)
    bus = ctypes.create_string_buffer(64)
    total = ctypes.c_size_t(0)
    named = cuda.cuDeviceGetName(name, len(name), device) == 0
    placed = cuda.cuDeviceGetPCIBusId(bus, len(bus), device) == 0
    sized = cuda.cuDeviceTotalMem_v2(ctypes.byref(total), device) == 0
    attributes: dict[str, int] = {}
    for key, code in ATTRIBUTES.items():
        value = ctypes.c_int(0)
        if cuda.cuDeviceGetAttribute(ctypes.byref(value), code, device) == 0 and value.value > 0:
            attributes[key] = value.value
    return DriverGpu(
        index=index,
        name=name.value.decode("utf-8", "replace") if named else "NVIDIA GPU",
        bus_id=bus.value.decode("ascii", "replace") if placed else None,
        memory_bytes=total.value if sized else None,
        attributes=attributes,
    )
