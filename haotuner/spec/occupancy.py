"""Occupancy: how many tiles a compute unit holds at a time, by each of its resources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint

# Where a device leaves a limit out: the least of the GPUs that can be bought (CUDA programming guide, technical
# specifications; AMD hardware specifications). Shared memory: what a block gets without asking for more.
THREADS, REGISTERS, SHARED_BYTES, BLOCKS = 1024, 65536, 48 << 10, 16
RESERVED_BYTES = 1024  # of shared memory, taken by the system for each block on sm_80 and later; assumed everywhere

Number = TypeVar("Number", int, NDArray[np.float64])


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Room of one unit for its tiles together; ``None`` is no limit."""

    threads: float | None = None
    registers: float | None = None
    shared_bytes: float | None = None
    blocks: float | None = None

    def holds(self, *, threads: Number, registers: Number, shared_bytes: Number) -> dict[str, Number]:
        """Tiles that each limited resource has room for, by resource.

        Args:
            threads: of one tile; where a unit hands out whole waves, rounded up to them.
            registers: of one thread.
            shared_bytes: of one tile, with what the system takes for itself.

        Numbers or columns, all of them above 0; where the room is whole numbers, so is the answer.
        """
        every: tuple[tuple[str, Any, Number], ...] = (
            ("threads", self.threads, threads),
            ("registers", self.registers, threads * registers),
            ("shared", self.shared_bytes, shared_bytes),
            ("blocks", self.blocks, threads * 0 + 1),
        )
        return {name: has // requested for name, has, requested in every if has is not None}


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
    room = Room(
        threads=device.threads_per_unit or THREADS,
        registers=device.registers_per_unit or REGISTERS,
        shared_bytes=device.l1_bytes or SHARED_BYTES,
        blocks=device.blocks_per_unit or BLOCKS,
    )
    fits = room.holds(
        threads=waves * device.wave_width,
        registers=footprint.registers_per_thread,
        shared_bytes=footprint.shared_bytes + RESERVED_BYTES,
    )
    limit = min(fits, key=lambda name: fits[name])
    return Occupancy(blocks=fits[limit], waves=fits[limit] * waves, limit=limit)
