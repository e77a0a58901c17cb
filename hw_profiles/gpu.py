"""This host's GPUs as Devices: the CUDA driver and NVML joined, a profile filling what neither said."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields, replace
from typing import Any

from haotuner.errors import EnvironmentMissing, UnknownDevice
from haotuner.hw_profiles.gpu_queries import DriverGpu, NoGpu, NvmlGpu, NvmlHost, query_driver, query_nvml
from haotuner.hw_profiles.profile import profile_named
from haotuner.hw_profiles.topology import Host
from haotuner.spec.device import Device, Source

# fp32 cores of an SM by compute capability: CUDA C++ programming guide, arithmetic throughput of 32-bit multiply-add.
_CORES = {(3, 5): 192, (3, 7): 192, (5, 0): 128, (5, 2): 128, (6, 0): 64, (6, 1): 128, (7, 0): 64, (7, 5): 64, (8, 0): 64}
_CORES |= {(8, 6): 128, (8, 7): 128, (8, 9): 128, (9, 0): 128, (10, 0): 128, (10, 3): 128, (12, 0): 128}
# fp16 multiply-adds with fp32 sums that an SM's tensor cores do each clock: the vendor's white papers of each generation.
# Those of GeForce boards do half of them.
_TENSOR = {(7, 0): 512, (7, 5): 512, (8, 0): 1024, (8, 6): 512, (8, 7): 512, (8, 9): 512, (9, 0): 2048, (10, 0): 4096}
_TENSOR |= {(10, 3): 4096, (12, 0): 512}
_ARCH_SPECIFIC = {(9, 0), (10, 0), (10, 3), (12, 0)}  # wgmma and later matrix instructions exist in the "a" targets only
_WARP = 32  # of every CUDA GPU so far
_OF_UNITS = ("compute_units", "peak_gflops", "tensor_tflops")  # what a part of a GPU has less of
_FIELDS = {field.name for field in fields(Device)}
_REGISTERS = 255  # 32-bit registers one thread can name, compute capability 3.5 and later


def gpu_devices(host: Host) -> tuple[Device | NoGpu, ...]:
    """Every GPU of the host in CUDA's order (NVML's where CUDA is silent); a failed one keeps its place."""
    seen_by_nvml = query_nvml(host.nvml)
    seen_by_cuda = query_driver(host.cuda_library)
    if isinstance(seen_by_cuda, NoGpu):
        if isinstance(seen_by_nvml, NoGpu):
            return (seen_by_nvml,)
        return tuple(gpu if isinstance(gpu, NoGpu) else join_gpu(gpu, None) for gpu in seen_by_nvml.gpus)
    return tuple(join_gpu(_partner(gpu, seen_by_nvml), gpu) for gpu in seen_by_cuda)


def gpu_device(index: int, *, host: Host) -> Device:
    """The GPU of that number.

    Raises:
        EnvironmentMissing: no GPU can be asked, or this one fails.
        UnknownDevice: the host has GPUs, but not that many.
    """
    result = gpu_devices(host)
    alone = result[0] if len(result) == 1 else None
    if isinstance(alone, NoGpu):
        raise EnvironmentMissing(f"device cuda:{index}: no usable GPU on this host: {alone.detail}. To do: {alone.remedy}.")
    if index >= len(result):
        raise UnknownDevice(f"device cuda:{index}: this host has {', '.join(f'cuda:{i}' for i in range(len(result)))}")
    answer = result[index]
    if isinstance(answer, NoGpu):
        raise EnvironmentMissing(f"device cuda:{index}: the GPU does not answer: {answer.detail}. To do: {answer.remedy}.")
    return answer


def part_of(gpu: Device, units: int) -> Device:
    """So many of a GPU's multiprocessors, as a device of its own: its L2 and its memory are the whole one's.

    Raises:
        UnknownDevice: the device is no GPU, or does not have more than so many.
    """
    if gpu.kind == "cpu":
        raise UnknownDevice(f"{gpu.id}/{units}: a part is of a GPU; a CPU's threads are named with --threads")
    if not 1 <= units < gpu.compute_units:
        raise UnknownDevice(
            f"{gpu.id}/{units}: {gpu.name} has {gpu.compute_units} multiprocessors; a part has fewer, and at least one"
        )
    parted: dict[str, Source] = {key: "derived" for key in _OF_UNITS if key in gpu.sources}
    tensor = gpu.tensor_tflops
    return replace(
        gpu.with_units(units),
        id=f"{gpu.id}-{units}sm",
        name=f"{gpu.name}, {units} of its {gpu.compute_units} multiprocessors",
        tensor_tflops=None if tensor is None else tensor * units / gpu.compute_units,
        sources={**gpu.sources, **parted},
    )


def _partner(gpu: DriverGpu, nvml: NvmlHost | NoGpu) -> NvmlGpu | None:
    """NVML's view of the same board, matched by its place on the PCI bus; CUDA_VISIBLE_DEVICES reorders numbers."""
    boards = () if isinstance(nvml, NoGpu) else nvml.gpus
    for board in boards:
        if isinstance(board, NvmlGpu) and board.bus_id and gpu.bus_id and _bus(board.bus_id) == _bus(gpu.bus_id):
            return board
    return None


def _bus(text: str) -> str:
    """NVML writes an eight-digit domain, CUDA a four-digit one."""
    return re.sub(r"^0+(?=[0-9a-f]{4}:)", "", text.lower())


def join_gpu(nvml: NvmlGpu | None, cuda: DriverGpu | None) -> Device | NoGpu:
    """One Device of both views, or what neither would tell.

    CUDA is asked first: of a partitioned board (MIG) it shows the instance that programs get, NVML the board around it.
    """
    attributes = dict(cuda.attributes) if cuda else {}
    name = (cuda.name if cuda else None) or (nvml.name if nvml else None) or "NVIDIA GPU"
    mig = nvml.mig if nvml else None
    profile = None if mig else profile_named(name)
    capability = (
        (attributes["capability_major"], attributes.get("capability_minor", 0)) if "capability_major" in attributes else None
    )
    capability = capability or (nvml.capability if nvml else None)
    if capability is None and profile is None:
        return _silent(f"{name}: neither CUDA nor NVML tells its compute capability")
    cores = _CORES.get(capability) if capability else None

    facts = _Facts({}, {})
    for key in attributes.keys() & _FIELDS:
        facts.put(key, attributes[key], "queried")
    facts.put("memory_bytes", cuda.memory_bytes if cuda else None, "queried")
    if nvml:
        facts.put("compute_units", nvml.mig_units, "queried")
        facts.put("memory_bytes", nvml.mig_memory_bytes if mig else nvml.memory_bytes, "queried")
        facts.put("clock_mhz", nvml.clock_mhz, "queried")
        if cores and nvml.fp32_cores and not mig:
            facts.put("compute_units", nvml.fp32_cores // cores, "derived")
    facts.put("clock_mhz", attributes["clock_khz"] / 1000 if "clock_khz" in attributes else None, "queried")
    facts.put("wave_width", _WARP, "derived")
    facts.put("registers_per_thread", _REGISTERS, "derived")
    if not mig:  # an instance has a part of the board's bandwidth, and nothing says which
        facts.put("memory_gbps", _bandwidth(nvml, attributes), "derived")
    if cores:
        facts.put("fma_pipes", cores // _WARP, "derived")
        facts.put_peak(2e-3 * cores)
    for key, value in profile.device.numbers().items() if profile else ():
        facts.put(key, value, "datasheet")
    if capability in _TENSOR:
        facts.put_tensor_peak(2e-6 * _TENSOR[capability] / (2 if "geforce" in name.lower() else 1))
    if "compute_units" not in facts.values:
        what = "MIG is on and none of its instances can be read" if mig else "neither CUDA nor NVML tells its number of SMs"
        return _silent(f"{name}: {what}")
    return Device(
        id=profile.device.id if profile else _slug(name, mig),
        kind="cuda",
        name=name,
        arch=_arch(capability) if capability else profile.device.arch if profile else "",
        mig=mig,
        sources=facts.sources,
        **facts.values,
    )


@dataclass(frozen=True, slots=True)
class _Facts:
    """Numbers of a Device as they come in; the first to speak of a number wins."""

    values: dict[str, Any]
    sources: dict[str, Source]

    def put(self, key: str, value: float | None, source: Source) -> None:
        if value is not None and key not in self.values:
            self.values[key], self.sources[key] = value, source

    def put_peak(self, gflops_per_mhz: float) -> None:
        """Peaks from units and clock, where both are known; ``gflops_per_mhz`` is of one unit."""
        if "clock_mhz" in self.values and "compute_units" in self.values:
            unit_peak = gflops_per_mhz * self.values["clock_mhz"]
            self.put("peak_gflops_unit", unit_peak, "derived")
            self.put("peak_gflops", unit_peak * self.values["compute_units"], "derived")

    def put_tensor_peak(self, tflops_per_mhz: float) -> None:
        """Peak of all matrix units likewise."""
        if "clock_mhz" in self.values and "compute_units" in self.values:
            peak = tflops_per_mhz * self.values["clock_mhz"] * self.values["compute_units"]
            self.put("tensor_tflops", peak, "derived")


def _silent(detail: str) -> NoGpu:
    return NoGpu(
        reason="unknown", detail=detail, remedy="`nvidia-smi -q` must show it to this user; update the NVIDIA driver"
    )


def _arch(capability: tuple[int, int]) -> str:
    return f"sm_{capability[0]}{capability[1]}{'a' if capability in _ARCH_SPECIFIC else ''}"


def _slug(name: str, mig: bool | None) -> str:
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "-".join([*words, *(["mig"] if mig and "mig" not in words else [])])


def _bandwidth(nvml: NvmlGpu | None, attributes: dict[str, int]) -> float | None:
    """Bus width x memory clock x 2 (both edges; drivers report the clock that makes this true for GDDR and HBM), GB/s."""
    clock_mhz = nvml.memory_clock_mhz if nvml else None
    bits = nvml.bus_bits if nvml else None
    clock_mhz = clock_mhz or (attributes["memory_clock_khz"] / 1000 if "memory_clock_khz" in attributes else None)
    bits = bits or attributes.get("bus_bits")
    return clock_mhz * 2 * bits / 8 / 1000 if clock_mhz and bits else None
