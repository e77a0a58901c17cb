"""Number of blocks an SM runs together, by the rules of CUDA: registers go to whole warps, per scheduler, in steps.

The rules are those of NVIDIA's occupancy calculator (``cuda_occupancy.h``); the sizes are the device's.
"""

from __future__ import annotations

from haotuner.hw_profiles.profile import profiles
from haotuner.spec.device import Device
from haotuner.spec.occupancy import BLOCKS, REGISTERS, RESERVED_BYTES, SHARED_BYTES, THREADS

WARP = 32
SCHEDULERS = 4
REGISTER_STEP = 256  # a warp's registers come in multiples of it
SHARED_STEP = 128  # bytes


def resident_blocks(device: Device, *, threads: int, registers: int, shared_bytes: int) -> int:
    """Blocks that one SM runs together; 0 where not one fits.

    Args:
        device: what limits an SM.
        threads: of a block.
        registers: of a thread, as the compiled kernel has them.
        shared_bytes: of a block, static and dynamic.
    """
    warps = -(-threads // WARP)
    of_a_warp = -(-registers * WARP // REGISTER_STEP) * REGISTER_STEP
    per_scheduler = (device.registers_per_unit or REGISTERS) // SCHEDULERS // max(of_a_warp, REGISTER_STEP)
    shared = -(-(shared_bytes + RESERVED_BYTES) // SHARED_STEP) * SHARED_STEP
    return min(
        per_scheduler * SCHEDULERS // warps,
        (device.threads_per_unit or THREADS) // (warps * WARP),
        (device.l1_bytes or SHARED_BYTES) // shared,
        device.blocks_per_unit or BLOCKS,
    )


def typical_of(arch: str) -> Device:
    """A device of an architecture, for its SM's limits; where no profile is one, one that knows none of them."""
    for profile in profiles():
        if profile.device.arch == arch:
            return profile.device
    return Device(
        id="unknown", kind="cuda", name=arch, arch=arch, compute_units=1, wave_width=WARP, registers_per_thread=255
    )
