"""GPUs of this host as NVML and the CUDA driver report them, with a clean answer for each way they can fail.

No context is made, so nothing is allocated on the GPU. Numbers of attributes: cuda.h, ``CUdevice_attribute``.
"""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from haotuner.host.extras import how_to_get

Reason = Literal["no-module", "no-library", "no-driver", "no-gpu", "no-permission", "mismatch", "lost", "timeout", "unknown"]

# NVML's return codes (nvml.h, nvmlReturn_t) that end a query, and what helps. Any other code is "unknown" with its number.
_FATAL: dict[int, tuple[Reason, str]] = {
    4: ("no-permission", "run as a user who may open /dev/nvidiactl and /dev/nvidia0 (in a container: --gpus all)"),
    8: ("lost", "connect the GPU's power cables; NVML reports too little power"),
    9: ("no-driver", "load the NVIDIA kernel driver (`nvidia-smi` must work), or use --device cpu"),
    10: ("timeout", "the driver did not answer in time; look at `dmesg` for Xid errors"),
    11: ("lost", "the driver has an interrupt problem with the GPU; look at `dmesg`"),
    12: ("no-library", "install the NVIDIA driver (libnvidia-ml.so.1), or use --device cpu"),
    15: ("lost", "the GPU fell off the bus; look at `dmesg` for Xid 79, then reboot the machine"),
    16: ("lost", "the GPU waits for a reset by its administrator"),
    17: ("no-permission", "the operating system or the control group blocks the GPU; allow its device files"),
    18: ("mismatch", "kernel driver and libnvidia-ml are of different versions: reboot, or match the container's library"),
    28: ("lost", "the GPU is gone from the bus; look at `dmesg`"),
}
_LOST = frozenset({1, 15, 16, 28})  # the handle is of no more use; other codes concern one question only


@dataclass(frozen=True, slots=True, kw_only=True)
class NoGpu:
    """Reason why a GPU (or the whole of NVML) could not be asked, and what to do about it."""

    reason: Reason
    detail: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlGpu:
    """One GPU as NVML sees it; None where NVML would not say."""

    index: int
    name: str
    bus_id: str | None
    capability: tuple[int, int] | None
    memory_bytes: int | None
    clock_mhz: float | None  # the SM clock's maximum
    memory_clock_mhz: float | None
    bus_bits: int | None
    fp32_cores: int | None
    mig: bool | None
    mig_units: int | None  # SMs of the first MIG instance, when MIG is on
    mig_memory_bytes: int | None
    refused: dict[str, str] = field(default_factory=dict)  # question -> NVML's answer


@dataclass(frozen=True, slots=True, kw_only=True)
class NvmlHost:
    """All of NVML's answers. A lost GPU keeps its place, so that the numbers of the others stay."""

    driver: str | None
    cuda: str | None  # the newest CUDA that the driver can run
    gpus: tuple[NvmlGpu | NoGpu, ...]


def query_nvml(module: Any = None) -> NvmlHost | NoGpu:
    """Ask NVML for everything; never raises for what NVML answers.

    Args:
        module: something with pynvml's functions; None imports pynvml.
    """
    if module is None:
        try:
            module = importlib.import_module("pynvml")
        except ImportError as error:
            return NoGpu(reason="no-module", detail=str(error), remedy=f"{how_to_get('tune')} (brings nvidia-ml-py)")
    try:
        module.nvmlInit()
    except module.NVMLError as error:
        return _no_gpu(error)
    try:
        count = module.nvmlDeviceGetCount()
        refused: dict[str, str] = {}
        driver = _ask(module, refused, "driver", module.nvmlSystemGetDriverVersion)
        cuda = _ask(module, refused, "cuda", module.nvmlSystemGetCudaDriverVersion_v2)
        gpus = tuple(_nvml_gpu(module, index) for index in range(count))
    except module.NVMLError as error:
        return _no_gpu(error)
    finally:
        _shut(module)
    if not gpus:
        return NoGpu(
            reason="no-gpu",
            detail="the driver runs but shows no GPU",
            remedy="give the container a GPU, or use --device cpu",
        )
    return NvmlHost(driver=_text(driver), cuda=None if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}", gpus=gpus)


def _no_gpu(error: Any) -> NoGpu:
    reason, remedy = _FATAL.get(error.value, ("unknown", "run `nvidia-smi` and look at `dmesg`"))
    return NoGpu(reason=reason, detail=f"NVML: {error} (code {error.value})", remedy=remedy)


def _shut(module: Any) -> None:
    try:
        module.nvmlShutdown()
    except module.NVMLError:
        return  # a lost GPU may refuse this too; nothing is left to free


def _ask(module: Any, refused: dict[str, str], question: str, call: Callable[..., Any], *args: Any) -> Any:
    """One answer, or None with the refusal noted. A lost GPU ends the whole device."""
    try:
        return call(*args)
    except module.NVMLError as error:
        if error.value in _LOST:
            raise
        refused[question] = str(error)
        return None


def _nvml_gpu(module: Any, index: int) -> NvmlGpu | NoGpu:
    refused: dict[str, str] = {}

    def ask(question: str, call: Callable[..., Any], *args: Any) -> Any:
        return _ask(module, refused, question, call, *args)

    try:
        handle = module.nvmlDeviceGetHandleByIndex(index)
        memory = ask("memory", module.nvmlDeviceGetMemoryInfo, handle)
        pci = ask("bus_id", module.nvmlDeviceGetPciInfo, handle)
        capability = ask("capability", module.nvmlDeviceGetCudaComputeCapability, handle)
        mode = ask("mig", module.nvmlDeviceGetMigMode, handle)
        mig = None if mode is None else bool(mode[0])
        instance = _mig_instance(module, ask, handle) if mig else None
        return NvmlGpu(
            index=index,
            name=_text(ask("name", module.nvmlDeviceGetName, handle)) or "NVIDIA GPU",
            bus_id=None if pci is None else _text(pci.busId),
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            memory_bytes=None if memory is None else int(memory.total),
            clock_mhz=ask("clock", module.nvmlDeviceGetMaxClockInfo, handle, module.NVML_CLOCK_SM),
            memory_clock_mhz=ask("memory_clock", module.nvmlDeviceGetMaxClockInfo, handle, module.NVML_CLOCK_MEM),
            bus_bits=ask("bus_bits", module.nvmlDeviceGetMemoryBusWidth, handle),
            fp32_cores=ask("cores", module.nvmlDeviceGetNumGpuCores, handle),
            mig=mig,
            mig_units=None if instance is None else int(instance.multiprocessorCount),
            mig_memory_bytes=None if instance is None else int(instance.memorySizeMB) << 20,
            refused=refused,
        )
    except module.NVMLError as error:
        return _no_gpu(error)


def _mig_instance(module: Any, ask: Callable[..., Any], handle: Any) -> Any:
    """Attributes of the first MIG instance: what CUDA gives to a process that does not choose."""
    for index in range(ask("mig_count", module.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        instance = ask(f"mig_{index}", module.nvmlDeviceGetMigDeviceHandleByIndex, handle, index)
        if instance is not None:
            return ask("mig_attributes", module.nvmlDeviceGetAttributes, instance)
    return None


def _text(value: Any) -> str | None:
    """NVML's text: older bindings give bytes."""
    if value is None:
        return None
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


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
    return tuple(result for index in range(count.value) if (result := _driver_gpu(cuda, index)) is not None)


def _driver_gpu(cuda: ctypes.CDLL, index: int) -> DriverGpu | None:
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
