"""Occupancy: each resource counts for itself, numbers and columns alike, and an unknown one is no limit."""

from __future__ import annotations

import numpy as np

from haotuner.spec.device import Device
from haotuner.spec.kernel import Footprint
from haotuner.spec.occupancy import BLOCKS, RESERVED_BYTES, Room, occupancy

BARE = Device(id="bare", kind="cuda", name="b", arch="sm_86", compute_units=1, wave_width=32, registers_per_thread=255)


def test_each_resource_has_room_for_so_many_tiles() -> None:
    room = Room(threads=1536, registers=65536, shared_bytes=100_000, blocks=16)
    assert room.holds(threads=256, registers=40, shared_bytes=30_000) == {
        "threads": 6, "registers": 6, "shared": 3, "blocks": 16,
    }  # fmt: skip
    every = room.holds(
        threads=np.array([256.0, 512.0]), registers=np.array([40.0, 200.0]), shared_bytes=np.array([3e4, 1.0])
    )
    assert {name: fits.tolist() for name, fits in every.items()} == {
        "threads": [6, 3], "registers": [6, 0], "shared": [3, 100_000], "blocks": [16, 16],
    }  # fmt: skip


def test_what_is_not_limited_is_not_counted() -> None:
    assert Room(shared_bytes=10).holds(threads=1, registers=1, shared_bytes=3) == {"shared": 3}


def test_a_block_asks_for_whole_waves_and_what_the_system_takes_for_itself() -> None:
    device = Device(**{**BARE.numbers(), "id": "one", "kind": "cuda", "name": "o", "arch": "sm_86", "threads_per_unit": 96})  # type: ignore[arg-type]
    assert occupancy(Footprint(registers_per_thread=32, shared_bytes=0, threads=33), device).blocks == 1, "two waves of 32"
    full = occupancy(Footprint(registers_per_thread=32, shared_bytes=(48 << 10) - RESERVED_BYTES, threads=32), BARE)
    assert (full.blocks, full.waves, full.limit) == (1, 1, "shared")
    assert occupancy(Footprint(registers_per_thread=32, shared_bytes=0, threads=32), BARE).blocks == BLOCKS
