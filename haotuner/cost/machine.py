"""Machine: the numbers of a Device that a time estimate needs, none of them missing."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.words.device import Device

# Stand-ins for numbers that nobody could read. They only have to be of the right order: a wrong one moves every
# kernel of that device alike, and ranking within the device hardly changes.
_CLOCK_MHZ = {"cpu": 2500.0, "cuda": 1500.0, "hip": 1500.0}  # typical sustained clocks of servers and of GPUs
_PIPES = {"cpu": 1.0, "cuda": 4.0, "hip": 4.0}  # CPU: the least any SIMD core has; GPU: one per sub-partition
_BYTES_PER_FLOP = 0.04  # GPUs and server CPUs of 2017-2024 lie between 0.02 and 0.08 (datasheets)
_L1 = {"cpu": 32 * 2**10, "cuda": 64 * 2**10, "hip": 64 * 2**10}  # smallest of the current generations
_L2 = {"cpu": 512 * 2**10, "cuda": 4 * 2**20, "hip": 2 * 2**20}  # CPU: per core; GPU: whole device

_FMA_LATENCY = 4.0  # cycles: Zen 2-4, Skylake and later, Volta and later all take 4 (Agner Fog tables; Jia 2018)
_FMA_LATENCY_OF_ARCH = {"x86-64-v2": 3.0}  # without FMA an accumulator waits for the addition alone: 3 on Zen 2-4
_NEAR = {"cpu": 128.0, "cuda": 128.0, "hip": 128.0}  # bytes per cycle and unit: two 64-byte loads; 32 banks of 4 bytes
_NEAR_OF_ARCH = {"sm_75": 64.0}  # GA102 white paper: Turing 64 bytes per clock and SM, Ampere 128
# Bytes per cycle and unit sustained from L2. CPU: half of a line. CUDA: 2,155 GB/s on V100 (Jia 2018) and 1,270 GB/s on T4
# (Jia 2019) are 20 a unit and cycle; A100 twice that (5,120 bytes a cycle, NVIDIA A100 white paper), and its successors.
_MID = {"cpu": 32.0, "cuda": 20.0, "hip": 40.0}
_MID_OF_ARCH = {"sm_80": 40.0, "sm_90a": 40.0, "sm_100a": 40.0}
# How well work on different resources overlaps: the exponent of the norm that adds their times; 1 is a sum, infinity a
# maximum. Out-of-order cores hide nearly all; the waves of a GPU tile wait for each other at every barrier. With 4 instead
# of 1.5 (and the L2 rate doubled) the best GEMM kernels of two Turing cards rank 1,950th by analysis instead of 200th.
_OVERLAP = {"cpu": 4.0, "cuda": 1.5, "hip": 1.5}
_LOADS = {"cpu": 2.0, "cuda": 1.0, "hip": 1.0}  # load instructions (of a whole wave) started per cycle and unit
_ISSUE = {"cpu": 5.0, "cuda": 4.0, "hip": 4.0}  # instructions of any kind per cycle and unit: decode width; schedulers
# Instruction cache of a unit. Turing's is the small one (Jia 2019, table 3.1: 46 KiB; Volta 128 KiB); RDNA has 32 KiB a pair
# of compute units (AMD RDNA white paper); x86 cores 32 KiB.
_CODE = {"cpu": 32 * 2**10, "cuda": 128 * 2**10, "hip": 32 * 2**10}
_CODE_OF_ARCH = {"sm_75": 46 * 2**10}
_INSTRUCTION_BYTES = {"cpu": 7.0, "cuda": 16.0, "hip": 8.0}  # EVEX FMA with a short offset; 128-bit; VOP3
# Bytes of code per cycle and unit from beyond that cache. RDNA: what W7800's records say of loops of 1.5 to 4 times its size
# (13 bytes a cycle just beyond, 2 at four times); 2 and 8 rank both RDNA GPUs' kernels as well within 0.01.
_FETCH = {"cpu": 16.0, "cuda": 32.0, "hip": 4.0}
# Cycles from asking L2 to the value: 188 on T4 (Jia 2019, table 3.1), 14 on Zen 2-4 (Agner Fog). CPU tiles wait for none.
_MID_LATENCY = {"cpu": 14.0, "cuda": 200.0, "hip": 200.0}
_START_CYCLES = {
    "cpu": 40.0,
    "cuda": 1200.0,
    "hip": 1500.0,
}  # per tile: loop entry and write-back; block launch and first loads


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Rates and sizes of one device; every field is finite and positive. Rates per unit unless ``total`` is said."""

    kind: str
    units: float
    wave_width: float  # fp32 lanes of one instruction
    clock_ghz: float
    pipes: float  # wave-wide FMAs per cycle
    fma_latency: float  # cycles
    peak_gflops: float  # total
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
    l2_bytes: float  # CPU: per core; GPU: whole device
    l3_bytes: float  # whole device; the L2 where there is none

    @property
    def balance(self) -> float:
        """Flops per byte of main memory at which arithmetic and memory take the same time."""
        return self.peak_gflops / self.memory_gbps


def machine(device: Device) -> Machine:
    """The machine of a device; numbers that the device does not know are replaced by ones typical of its kind."""
    cpu = device.kind == "cpu"
    clock_ghz = (device.clock_mhz or _CLOCK_MHZ[device.kind]) / 1e3
    pipes = float(device.fma_pipes or _PIPES[device.kind])
    if cpu and device.peak_gflops_unit:  # a busy moment may hide a pipe from the one, hardly from the best of both
        pipes = max(pipes, float(round(device.peak_gflops_unit / (2.0 * device.wave_width * clock_ghz))))
    peak = device.peak_gflops or (device.peak_gflops_unit or 0.0) * device.compute_units
    peak = peak or 2.0 * device.compute_units * device.wave_width * pipes * clock_ghz
    threads = float(device.threads_per_unit or (1 if cpu else 1024))  # 1024: the least of sm_75 and gfx10
    l1 = float(device.l1_bytes or _L1[device.kind])
    l2 = float(device.l2_bytes or _L2[device.kind])
    return Machine(
        kind=device.kind,
        units=float(device.compute_units),
        wave_width=float(device.wave_width),
        clock_ghz=clock_ghz,
        pipes=pipes,
        fma_latency=_FMA_LATENCY_OF_ARCH.get(device.arch, _FMA_LATENCY),
        peak_gflops=peak,
        memory_gbps=device.memory_gbps or _BYTES_PER_FLOP * peak,
        near_bytes=_NEAR_OF_ARCH.get(device.arch, _NEAR[device.kind]),
        mid_bytes=_MID_OF_ARCH.get(device.arch, _MID[device.kind]),
        mid_latency=_MID_LATENCY[device.kind],
        loads=_LOADS[device.kind],
        issue=_ISSUE[device.kind],
        start_cycles=_START_CYCLES[device.kind],
        overlap=_OVERLAP[device.kind],
        code_bytes=float(_CODE_OF_ARCH.get(device.arch, _CODE[device.kind])),
        instruction_bytes=_INSTRUCTION_BYTES[device.kind],
        fetch_bytes=_FETCH[device.kind],
        registers_per_thread=float(device.registers_per_thread),
        registers_per_unit=float(device.registers_per_unit or (device.registers_per_thread if cpu else 65536)),
        threads_per_unit=threads,
        threads_per_block=float(device.threads_per_block or (1 if cpu else 1024)),
        blocks_per_unit=float(device.blocks_per_unit or (1 if cpu else 16)),  # 16: sm_75 and sm_86
        l1_bytes=l1,
        shared_per_block_bytes=float(device.shared_per_block_bytes or min(l1, 48 * 2**10)),  # 48 KiB: without opt-in
        l2_bytes=l2,
        l3_bytes=float(device.l3_bytes or (l2 * device.compute_units if cpu else l2)),
    )
