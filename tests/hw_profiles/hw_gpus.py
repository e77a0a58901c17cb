"""GPUs that are not here: NVML's answers, and a CUDA driver library compiled from the same numbers."""

import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

LIBRARY_NOT_FOUND, NO_PERMISSION, NOT_SUPPORTED, LOST, UNKNOWN = 12, 4, 3, 15, 999


@dataclass
class Board:
    """What NVML and CUDA say of one H200 (values as its driver gives them); ``fails`` maps a call to an error code."""

    name: str = "NVIDIA H200"
    bus_id: str = "00000000:18:00.0"
    capability: tuple[int, int] = (9, 0)
    memory_bytes: int = 150754820096
    sm_mhz: int = 1980
    memory_mhz: int = 3201
    bus_bits: int = 6144
    cores: int = 16896
    mig: tuple[int, int] = (0, 0)
    instance: tuple[int, int] | None = None  # SMs and MB of a MIG instance
    fails: dict[str, int] = field(default_factory=dict)


class FakeNvml:
    """A module with the functions of pynvml that haotuner calls; the errors are pynvml's own."""

    NVMLError = pynvml.NVMLError
    NVML_CLOCK_SM = pynvml.NVML_CLOCK_SM
    NVML_CLOCK_MEM = pynvml.NVML_CLOCK_MEM

    def __init__(self, *boards: Board, **fails: int) -> None:
        self.boards = boards
        self.fails = fails
        self.open = False

    def _answer(self, call: str, value: Any, board: Board | None = None) -> Any:
        code = self.fails.get(call) or (board.fails.get(call) if board else None)
        if code:
            raise pynvml.NVMLError(code)
        assert self.open or call == "nvmlInit", f"{call} outside of nvmlInit and nvmlShutdown"
        return value

    def nvmlInit(self) -> None:
        self._answer("nvmlInit", None)
        self.open = True

    def nvmlShutdown(self) -> None:
        self._answer("nvmlShutdown", None)
        self.open = False

    def nvmlDeviceGetCount(self) -> Any:
        return self._answer("nvmlDeviceGetCount", len(self.boards))

    def nvmlSystemGetDriverVersion(self) -> Any:
        return self._answer("nvmlSystemGetDriverVersion", "580.82.07")

    def nvmlSystemGetCudaDriverVersion_v2(self) -> Any:
        return self._answer("nvmlSystemGetCudaDriverVersion_v2", 13000)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Any:
        return self._answer("nvmlDeviceGetHandleByIndex", self.boards[index], self.boards[index])

    def nvmlDeviceGetMemoryInfo(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetMemoryInfo", SimpleNamespace(total=board.memory_bytes), board)

    def nvmlDeviceGetPciInfo(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetPciInfo", SimpleNamespace(busId=board.bus_id.encode()), board)

    def nvmlDeviceGetCudaComputeCapability(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetCudaComputeCapability", board.capability, board)

    def nvmlDeviceGetName(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetName", board.name, board)

    def nvmlDeviceGetMaxClockInfo(self, board: Board, clock: int) -> Any:
        value = board.sm_mhz if clock == self.NVML_CLOCK_SM else board.memory_mhz
        return self._answer("nvmlDeviceGetMaxClockInfo", value, board)

    def nvmlDeviceGetMemoryBusWidth(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetMemoryBusWidth", board.bus_bits, board)

    def nvmlDeviceGetNumGpuCores(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetNumGpuCores", board.cores, board)

    def nvmlDeviceGetMigMode(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetMigMode", board.mig, board)

    def nvmlDeviceGetMaxMigDeviceCount(self, board: Board) -> Any:
        return self._answer("nvmlDeviceGetMaxMigDeviceCount", 7, board)

    def nvmlDeviceGetMigDeviceHandleByIndex(self, board: Board, index: int) -> Any:
        if board.instance is None or index != 2:  # instances need not start at 0
            raise pynvml.NVMLError(6)
        return self._answer("nvmlDeviceGetMigDeviceHandleByIndex", board, board)

    def nvmlDeviceGetAttributes(self, board: Board) -> Any:
        assert board.instance
        units, megabytes = board.instance
        answer = SimpleNamespace(multiprocessorCount=units, memorySizeMB=megabytes)
        return self._answer("nvmlDeviceGetAttributes", answer, board)


# CUdevice_attribute numbers (cuda.h) and an H200's values, written down apart from haotuner's own table.
H200_ATTRIBUTES = {
    1: 1024,
    8: 49152,
    10: 32,
    13: 1980000,
    16: 132,
    36: 3201000,
    37: 6144,
    38: 62914560,
    39: 2048,
    75: 9,
    76: 0,
    81: 233472,
    82: 65536,
    97: 232448,
    106: 32,
}

_DRIVER = """
#include <string.h>
#include <stddef.h>
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int *count) { *count = COUNT; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return index < COUNT ? 0 : 101; }
int cuDeviceGetName(char *name, int size, int device) { strncpy(name, NAME, size); return 0; }
int cuDeviceGetPCIBusId(char *bus, int size, int device) { strncpy(bus, BUS, size); bus[6] += device; return BUS_RC; }
int cuDeviceTotalMem_v2(size_t *bytes, int device) { *bytes = MEMORY; return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    switch (attribute) { CASES default: return 1; }
}
"""


def cuda_driver(folder: Path, compiler: str, **settings: Any) -> str:
    """Path of a library with the CUDA driver's functions that haotuner calls."""
    values: dict[str, Any] = {"INIT": 0, "COUNT": 1, "BUS_RC": 0, "MEMORY": 150115581952, "NAME": "NVIDIA H200"}
    values |= {"BUS": "0000:18:00.0", "attributes": H200_ATTRIBUTES, **settings}
    cases = "".join(f"case {code}: *value = {number}; return 0;" for code, number in values.pop("attributes").items())
    source, library = folder / "driver.c", folder / "libcuda.so"
    source.write_text(_DRIVER.replace("CASES", cases))
    defines = [f'-D{key}="{value}"' if isinstance(value, str) else f"-D{key}={value}" for key, value in values.items()]
    subprocess.run([compiler, "-shared", "-fPIC", *defines, str(source), "-o", str(library)], check=True)
    return str(library)
