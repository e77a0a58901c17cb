"""Typical numbers of each kind of device: what a profile leaves out, and what no profile says.

The one table that is kept by kind. Whoever needs a number that hangs on the kind asks ``typical(device)``, so that nothing
above has to know which kinds there are. Stand-ins for what nobody could read only have to be of the right order: a wrong one
moves every kernel of that device alike, and ranking within the device hardly changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from haotuner.spec.device import Device, Kind
from haotuner.spec.occupancy import BLOCKS, REGISTERS, SHARED_BYTES, THREADS


@dataclass(frozen=True, slots=True, kw_only=True)
class Typical:
    """Rates are of one unit."""

    # where the profile is silent
    clock_mhz: float  # sustained by servers, by GPUs
    pipes: float  # CPU: the least any SIMD core has; GPU: one per sub-partition
    l1_bytes: int  # smallest of the current generations
    l2_bytes: int
    threads_per_unit: int
    threads_per_block: int
    blocks_per_unit: int
    registers_per_unit: int | None  # None: those of one thread
    shared_per_block_bytes: int
    # what kind of machine it is
    waves_hide_latency: bool  # a unit holds several tiles and works on others while one waits; else it runs one to its end
    l2_is_per_unit: bool  # else all units share it
    wave_is_one_thread: bool  # a wave is the SIMD register of one thread; else as many threads in lockstep
    compiler: Literal["llvm", "nvcc"]  # that turns source into its instructions
    # what no profile says
    fma_latency: float  # cycles
    near_bytes: float  # L1 or shared memory, bytes per cycle
    mid_bytes: float  # L2, bytes per cycle that are sustained
    mid_latency: float  # L2, cycles from asking to the value
    loads: float  # load instructions (of a whole wave) per cycle
    issue: float  # instructions of any kind per cycle: decode width; schedulers
    start_cycles: float  # per tile: loop entry and write-back; block launch and first loads
    overlap: float  # exponent of the norm that adds times on different resources; 1 is a sum, infinity a maximum
    code_bytes: int  # instruction cache
    instruction_bytes: float
    fetch_bytes: float  # code from beyond the instruction cache, bytes per cycle
    narrow_pipes: float  # pipes, at least, of vectors narrower than the widest
    spill_wait: float  # cycles in which an accumulator that was spilled is stored and loaded


_CPU = Typical(
    clock_mhz=2500.0,
    pipes=1.0,
    l1_bytes=32 * 2**10,
    l2_bytes=512 * 2**10,
    threads_per_unit=1,
    threads_per_block=1,
    blocks_per_unit=1,
    registers_per_unit=None,
    shared_per_block_bytes=SHARED_BYTES,
    waves_hide_latency=False,
    l2_is_per_unit=True,
    wave_is_one_thread=True,
    compiler="llvm",
    fma_latency=4.0,  # Zen 2-4, Skylake and later (Agner Fog tables)
    near_bytes=128.0,  # two 64-byte loads
    mid_bytes=32.0,  # half of a line
    mid_latency=14.0,  # Zen 2-4 (Agner Fog); CPU tiles wait for none
    loads=2.0,
    issue=5.0,
    start_cycles=40.0,
    overlap=4.0,  # out-of-order cores hide nearly all
    code_bytes=32 * 2**10,  # x86 cores
    instruction_bytes=7.0,  # EVEX FMA with a short offset
    fetch_bytes=16.0,
    narrow_pipes=2.0,  # every AVX core starts two FMAs a cycle when they are narrower than its widest (Agner Fog tables)
    spill_wait=8.0,  # from storing a vector to having loaded it, Zen 2-4 (Agner Fog)
)
_CUDA = Typical(
    clock_mhz=1500.0,
    pipes=4.0,
    l1_bytes=64 * 2**10,
    l2_bytes=4 * 2**20,
    threads_per_unit=THREADS,  # the least of sm_75 and gfx10
    threads_per_block=1024,
    blocks_per_unit=BLOCKS,  # sm_75 and sm_86
    registers_per_unit=REGISTERS,
    shared_per_block_bytes=SHARED_BYTES,
    waves_hide_latency=True,
    l2_is_per_unit=False,
    wave_is_one_thread=False,
    compiler="nvcc",
    fma_latency=4.0,  # Volta and later (Jia 2018)
    near_bytes=128.0,  # 32 banks of 4 bytes
    # 2,155 GB/s on V100 (Jia 2018) and 1,270 GB/s on T4 (Jia 2019) are 20 a unit and cycle.
    mid_bytes=20.0,
    mid_latency=200.0,  # 188 on T4 (Jia 2019, table 3.1)
    loads=1.0,
    issue=4.0,
    start_cycles=1200.0,
    # The waves of a GPU tile wait for each other at every barrier. With 4 instead (and the L2 rate doubled) the best GEMM
    # kernels of two Turing cards rank 1,950th by analysis instead of 200th.
    overlap=1.5,
    code_bytes=128 * 2**10,  # Volta (Jia 2019, table 3.1)
    instruction_bytes=16.0,
    fetch_bytes=32.0,
    narrow_pipes=0.0,
    spill_wait=0.0,  # other waves hide it
)
_HIP = replace(
    _CUDA,
    l2_bytes=2 * 2**20,
    compiler="llvm",
    mid_bytes=40.0,
    start_cycles=1500.0,
    code_bytes=32 * 2**10,  # RDNA: of a pair of compute units (AMD RDNA white paper)
    instruction_bytes=8.0,  # VOP3
    # What W7800's records say of loops of 1.5 to 4 times its instruction cache (13 bytes a cycle just beyond, 2 at four
    # times); 2 and 8 rank both RDNA GPUs' kernels as well within 0.01.
    fetch_bytes=4.0,
)
# GPUs of other vendors, of which nothing was measured here: those of a GPU whose compiler is LLVM.
_KINDS: Mapping[Kind, Typical] = {"cpu": _CPU, "cuda": _CUDA, "hip": _HIP, "opencl": _HIP}
_ARCHS: Mapping[str, Mapping[str, Any]] = {
    "x86-64-v2": {"fma_latency": 3.0},  # without FMA an accumulator waits for the addition alone: 3 on Zen 2-4
    # GA102 white paper: Turing 64 bytes per clock and SM, Ampere 128. Its instruction cache is the small one (Jia 2019).
    "sm_75": {"near_bytes": 64.0, "code_bytes": 46 * 2**10},
    "sm_80": {"mid_bytes": 40.0},  # 5,120 bytes a cycle (NVIDIA A100 white paper), and its successors
    "sm_90a": {
        "mid_bytes": 64.0
    },  # a unit's port: what neighbours ask at the same time is served once (H200 records: 48 to 64)
    "sm_100a": {"mid_bytes": 40.0},
}


def typical(device: Device) -> Typical:
    """Typical numbers of the device's kind and architecture."""
    return replace(_KINDS[device.kind], **_ARCHS.get(device.arch, {}))
