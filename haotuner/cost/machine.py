"""Machine: the numbers of a Device that a time estimate needs, none of them missing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from haotuner.hw_profiles.typical import typical
from haotuner.spec.device import Device

_BYTES_PER_FLOP = 0.04  # GPUs and server CPUs of 2017-2024 lie between 0.02 and 0.08 (datasheets)


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates and sizes of a device; fields are finite; positive unless it says so; rates of one unit unless ``total``."""

    waves_hide_latency: bool  # a unit works on other tiles while one waits; else it runs one tile to its end
    units: float
    wave_width: float  # fp32 lanes of one instruction
    wave_threads: float  # threads of a wave; 1 where a wave is the SIMD register of one thread
    clock_ghz: float
    pipes: float  # wave-wide FMAs per cycle
    narrow_pipes: float  # the same of waves narrower than the widest
    fma_latency: float  # cycles
    spill_wait: float  # cycles in which a spilled accumulator is stored and loaded; 0 where other waves hide it
    peak_gflops: float  # total
    tensor_gflops: float  # total, of units for small matrices; the same as ``peak_gflops`` where there are none
    memory_gbps: float  # total
    near_bytes: float  # L1 or shared memory, bytes per cycle
    mid_bytes: float  # L2, bytes per cycle
    mid_latency: float  # L2, cycles
    loads: float  # load instructions per cycle
    issue: float  # instructions per cycle
    start_cycles: float  # per tile
    overlap: float  # exponent of the norm that joins times on different resources
    code_bytes: float  # instruction cache
    instruction_bytes: float
    fetch_bytes: float  # code from beyond the instruction cache, bytes per cycle
    registers_per_thread: float
    registers_per_unit: float  # GPU 32-bit registers; CPU: the same as per thread
    threads_per_unit: float
    threads_per_block: float
    blocks_per_unit: float
    l1_bytes: float
    shared_per_block_bytes: float
    l2_bytes: float  # of one L2
    l2_units: float  # that share it
    l3_bytes: float  # whole device; the L2 where there is none

    @property
    def balance(self) -> float:
        """Flops per byte of main memory at which arithmetic and memory take the same time."""
        return self.peak_gflops / self.memory_gbps

    @property
    def gflops(self) -> Mapping[str, float]:
        """Peak of the whole device by kind of unit, a key of ``Work.flops``."""
        return {"simd": self.peak_gflops, "tensor": self.tensor_gflops}

    @property
    def tensor_fmas(self) -> float:
        """Multiply-adds, each counted, that the units for small matrices of one unit do in a cycle."""
        return self.tensor_gflops / (2.0 * self.units * self.clock_ghz)


def machine(device: Device) -> Machine:
    """The machine of a device; numbers that the device does not know are replaced by ones typical of its kind."""
    t = typical(device)
    clock_ghz = (device.clock_mhz or t.clock_mhz) / 1e3
    pipes = float(device.fma_pipes or t.pipes)
    # Where a peak was measured a busy moment may hide a pipe from the one, hardly from the best of both.
    if not t.waves_hide_latency and device.peak_gflops_unit:
        pipes = max(pipes, float(round(device.peak_gflops_unit / (2.0 * device.wave_width * clock_ghz))))
    peak = device.peak_gflops or (device.peak_gflops_unit or 0.0) * device.compute_units
    peak = peak or 2.0 * device.compute_units * device.wave_width * pipes * clock_ghz
    l1, l2 = float(device.l1_bytes or t.l1_bytes), float(device.l2_bytes or t.l2_bytes)
    units = float(device.compute_units)
    return Machine(
        waves_hide_latency=t.waves_hide_latency,
        units=units,
        wave_width=float(device.wave_width),
        wave_threads=1.0 if t.wave_is_one_thread else float(device.wave_width),
        clock_ghz=clock_ghz,
        pipes=pipes,
        narrow_pipes=max(pipes, t.narrow_pipes),
        fma_latency=t.fma_latency,
        spill_wait=t.spill_wait,
        peak_gflops=peak,
        tensor_gflops=(device.tensor_tflops or 0.0) * 1e3 or peak,
        memory_gbps=device.memory_gbps or _BYTES_PER_FLOP * peak,
        near_bytes=t.near_bytes,
        mid_bytes=t.mid_bytes,
        mid_latency=t.mid_latency,
        loads=t.loads,
        issue=t.issue,
        start_cycles=t.start_cycles,
        overlap=t.overlap,
        code_bytes=float(t.code_bytes),
        instruction_bytes=t.instruction_bytes,
        fetch_bytes=t.fetch_bytes,
        registers_per_thread=float(device.registers_per_thread),
        registers_per_unit=float(device.registers_per_unit or t.registers_per_unit or device.registers_per_thread),
        threads_per_unit=float(device.threads_per_unit or t.threads_per_unit),
        threads_per_block=float(device.threads_per_block or t.threads_per_block),
        blocks_per_unit=float(device.blocks_per_unit or t.blocks_per_unit),
        l1_bytes=l1,
        shared_per_block_bytes=float(device.shared_per_block_bytes or min(l1, t.shared_per_block_bytes)),
        l2_bytes=l2,
        l2_units=1.0 if t.l2_is_per_unit else units,
        l3_bytes=float(device.l3_bytes or (l2 * device.compute_units if t.l2_is_per_unit else l2)),
    )
