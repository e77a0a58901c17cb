"""GPU tile programs of any kind: waves, bank conflicts, sectors, how many tiles run together."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from haotuner.hw_profiles.typical import typical
from haotuner.spec.demand import Column
from haotuner.spec.device import Device
from haotuner.spec.occupancy import Room

BANKS = 32.0  # shared-memory banks of 4 bytes on every CUDA and RDNA device
SECTOR_BYTES = 32.0  # least that a GPU fetches from L2 or DRAM
WIDEST_LOAD = 4.0  # fp32 elements of a 16-byte load, the widest instruction
# Registers beside accumulators and operands: addresses, counters, constants. Compilers report 20 to 40 for such loops.
BOOKKEEPING_REGISTERS = 28.0


def waves_of(threads: Column, device: Device) -> Column:
    """Waves of a tile, the last one perhaps partly idle."""
    return np.ceil(threads / device.wave_width)


def strided_ways(lanes: Column, stride: Column, vector: Column) -> Column:
    """Times a shared-memory load is repeated when ``lanes`` threads read ``vector`` words every ``stride`` words; >= 1.

    Words of one lane are adjacent and use different banks, so a vector load counts per word (CUDA guide, shared memory).
    """
    common = np.gcd(stride.astype(np.int64), int(BANKS)).astype(np.float64)
    deepest = np.ceil(lanes * common / BANKS)
    return np.asarray(np.maximum(deepest / vector, 1.0), dtype=np.float64)


def round_of_tiles(device: Device, threads: Column, shared_bytes: Column, tiles: Column) -> Column:
    """Tiles that run at the same time on the whole device, by threads and shared memory alone."""
    usual = typical(device)
    room = Room(threads=device.threads_per_unit or usual.threads_per_unit, shared_bytes=device.l1_bytes or usual.l1_bytes)
    item = np.maximum(threads, 1.0)
    stored = room.holds(threads=item, registers=item, shared_bytes=np.maximum(shared_bytes, 1.0))
    fits = np.minimum(stored["threads"], stored["shared"])
    return np.asarray(np.minimum(device.compute_units * np.maximum(fits, 1.0), tiles), dtype=np.float64)


def for_each_kind(of: Callable[..., float], *columns: Column) -> Column:
    """``of`` of the whole numbers in each row, asked once for every distinct row; many kernels differ in few of them."""
    whole = [column.astype(np.int64) for column in columns]
    key = np.zeros_like(whole[0])
    for column in whole:  # one number a row sorts many times faster than rows do
        key = key * (column.max() + 1) + column
    _, first, where = np.unique(key, return_index=True, return_inverse=True)
    return np.array([of(*(int(column[at]) for column in whole)) for at in first.tolist()], dtype=np.float64)[where]


def used_of_sector(vector: Column, stride: Column, size: float) -> Column:
    """Share of each sector that one load uses when neighbours read ``vector`` elements every ``stride``; 0..1."""
    whole = SECTOR_BYTES / size
    share = vector / np.minimum(np.maximum(stride, vector), whole)
    return np.asarray(np.minimum(share, 1.0), dtype=np.float64)
