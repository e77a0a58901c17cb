"""Device: what the hardware is, in terms that fit CPUs and GPUs alike."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Literal

Kind = Literal["cpu", "cuda", "hip", "opencl"]  # opencl: GPUs of the other vendors, that only others' records name
Source = Literal["queried", "measured", "datasheet", "derived"]

STANDIN = "stand-in-"  # ids of the drivers that tests put in a GPU's place: their times are invented

_ID = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")


def is_standin(device_id: str) -> bool:
    """True if an id is of a stand-in for tests: its records are neither exported nor learned from."""
    return device_id.startswith(STANDIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One processor, or a subset of one (fewer cores or SMs, a narrower instruction set).

    A number that nobody could read is ``None``, never invented; ``sources`` says where each number came from.
    A *compute unit* is a core on a CPU and an SM (or CU) on a GPU; a *wave* is a SIMD register or a warp.
    """

    id: str  # lower case with dashes; names the profile file
    kind: Kind
    name: str  # as the vendor or the operating system reports it
    arch: str  # what the compiler is told: an LLVM -mcpu name, or sm_90a
    compute_units: int
    wave_width: int  # fp32 lanes that execute one instruction together
    registers_per_thread: int  # CPU: SIMD registers; GPU: 32-bit registers, the architectural limit
    registers_per_unit: int | None = None  # GPU: 32-bit registers of an SM
    threads_per_unit: int | None = None
    threads_per_block: int | None = None
    blocks_per_unit: int | None = None
    fma_pipes: int | None = None  # wave-wide FMAs (without FMA: multiply-add pairs) started per cycle and unit
    l1_bytes: int | None = None  # per unit: data cache; GPU: shared memory an SM can hand out
    shared_per_block_bytes: int | None = None  # GPU: opt-in limit of one block
    l2_bytes: int | None = None  # CPU: per core; GPU: whole device
    l3_bytes: int | None = None
    memory_bytes: int | None = None
    memory_gbps: float | None = None  # peak (datasheet) or measured read bandwidth of the whole device
    memory_gbps_unit: float | None = None  # read bandwidth that one unit alone reaches
    clock_mhz: float | None = None
    peak_gflops: float | None = None  # fp32 FMA peak of the whole device
    peak_gflops_unit: float | None = None
    tensor_tflops: float | None = None  # dense fp16 (CPU: bf16) tensor peak; None where there is no such unit
    mig: bool | None = None
    sources: Mapping[str, Source] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not _ID.fullmatch(self.id):
            raise ValueError(f"device id {self.id!r} must be lower case words joined by dashes")
        for name in ("compute_units", "wave_width", "registers_per_thread"):
            if getattr(self, name) < 1:
                raise ValueError(f"device {self.id}: {name} is {getattr(self, name)}, must be at least 1")
        for name, value in self.numbers().items():
            if value < 0:
                raise ValueError(f"device {self.id}: {name} is {value}, must not be negative")
        object.__setattr__(self, "sources", MappingProxyType(dict(self.sources)))

    def numbers(self) -> dict[str, float]:
        """Every known numeric field by name; units are in the names."""
        result: dict[str, float] = {}
        for name in self.__dataclass_fields__:
            value = getattr(self, name)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                result[name] = value
        return result

    def with_units(self, units: int) -> Device:
        """Copy of the device with only ``units`` compute units in use (a resource subset is a device too)."""
        if not 1 <= units <= self.compute_units:
            raise ValueError(f"device {self.id} has {self.compute_units} compute units, asked for {units}")
        share = units / self.compute_units
        one_gbps = self.memory_gbps_unit
        gbps = self.memory_gbps
        if gbps is not None and one_gbps is not None:
            gbps = min(gbps, one_gbps * units)  # one unit cannot saturate the memory, a few can
        return replace(
            self,
            compute_units=units,
            memory_gbps=gbps,
            peak_gflops=None if self.peak_gflops is None else self.peak_gflops * share,
            tensor_tflops=None if self.tensor_tflops is None else self.tensor_tflops * share,
        )
