"""Occupancy: how many blocks of a GPU micro-kernel a compute unit holds at a time, and what limits them."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.words.device import Device
from haotuner.words.kernel import Footprint

# Where a profile leaves a limit out: the least of the GPUs that can be bought (CUDA programming guide, technical
# specifications; AMD hardware specifications).
THREADS, REGISTERS, SHARED_BYTES, BLOCKS = 1024, 65536, 48 << 10, 16
RESERVED_BYTES = 1024  # of shared memory, taken by the system for each block on sm_80 and later; assumed everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupancy:
    """Resident blocks of one compute unit; 0 where not even one fits."""

    blocks: int
    waves: int  # waves (warps) of those blocks
    limit: str  # what keeps the next block out: threads, registers, shared or blocks


def waves_of(threads: int, device: Device) -> int:
    """Waves of a block, the last one perhaps partly idle."""
    return -(-threads // device.wave_width)


def occupancy(footprint: Footprint, device: Device) -> Occupancy:
    """Blocks that run together on one unit of the device."""
    waves = waves_of(footprint.threads, device)
    lanes = waves * device.wave_width
    fits = {
        "threads": (device.threads_per_unit or THREADS) // lanes,
        "registers": (device.registers_per_unit or REGISTERS) // (lanes * footprint.registers_per_thread),
        "shared": (device.l1_bytes or SHARED_BYTES) // (footprint.shared_bytes + RESERVED_BYTES),
        "blocks": device.blocks_per_unit or BLOCKS,
    }
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(blocks=fits[limit], waves=fits[limit] * waves, limit=limit)
