"""Compiled code of a convolution's unrolled filter taps: loads shared or not, values kept, bounds checks.

Found in the records of Kernel Tuner's convolution on two RDNA and three NVIDIA GPUs and explained by what the source asks:

- where whole blocks cover the image there is no bounds check, and an image value that several outputs of a thread use is
  loaded once. Otherwise reads of the image are checked one by one and none is shared. LLVM (HIP) checks staged reads too.
- a value that is loaded once has to be kept until its last use. LLVM does so whatever it costs, nvcc only for reads through
  the read-only cache; what does not fit into registers is spilled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from haotuner.hw_profiles.typical import typical
from haotuner.microkernels.cuda.tiles import BOOKKEEPING_REGISTERS, for_each_kind
from haotuner.spec.demand import Column
from haotuner.spec.device import Device

# Instructions of one checked read beside the read: nvcc compares row and column into a predicate; LLVM compares twice, saves
# the mask of lanes, branches, waits for the value and restores the mask.
CHECKED_READ_NVCC, CHECKED_READ_LLVM = 2.0, 6.0
UNROLLED_INSTRUCTIONS = 16384.0  # LLVM's -pragma-unroll-threshold: what would be longer is not unrolled at all
# Accesses of a multiply-add whose image value was spilled; 0.5 and 2 rank the two RDNA GPUs' kernels as well within 0.01.
SPILLED_READ = 1.0
_RDNA_WAVE = 32  # lanes; CDNA and GCN have 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """Columns of shape ``(rows,)``; instructions are those of one thread in one step, a filter tap."""

    read: Column  # image values one thread reads over all taps, where only the source decides
    loads: Column  # loads of image values, those of spilled values included
    checks: Column  # instructions that check bounds
    spilled: Column  # accesses to values that were spilled
    unrolled: Column  # taps unrolled; 1 where the compiler gives up


def compiled(
    device: Device,
    *,
    outputs: tuple[Column, Column],
    apart: tuple[Column, Column],
    filter_size: tuple[Column, Column],
    exact: Column,
    staged: Column,
    read_only: Column,
) -> Compiled:
    """Instructions that one thread executes in a step.

    Pairs are rows and columns: outputs of a thread, their distance, filter. ``exact`` is 1 where whole blocks cover the
    image, ``staged`` where it is read from shared memory, ``read_only`` where it is read through the read-only cache.
    """
    (ty, tx), (by, bx), (fh, fw) = outputs, apart, filter_size
    taps, every = fh * fw, ty * tx
    shared = distinct(ty, by, fh) * distinct(tx, bx, fw)
    llvm = typical(device).compiler == "llvm"
    checked = 1.0 - exact if llvm else (1.0 - exact) * (1.0 - staged)
    selected = kept_values(ty, by, fh) * distinct(tx, bx, fw) + ty * kept_values(tx, bx, fw)
    keeps = 1.0 - checked if llvm else (1.0 - checked) * read_only * (1.0 - staged)
    room = np.maximum(registers_of_a_thread(device) - every - BOOKKEEPING_REGISTERS, 0.0)
    spilled = SPILLED_READ * every * keeps * np.maximum(1.0 - room / np.maximum(selected, 1.0), 0.0)
    loads = np.where(checked > 0, every, shared / taps) + spilled
    checks = checked * every * (CHECKED_READ_LLVM if llvm else CHECKED_READ_NVCC)
    too_long = llvm & (checked > 0) & (taps * (every + loads + checks) > UNROLLED_INSTRUCTIONS)
    return Compiled(
        read=np.where((exact > 0) | (staged > 0), shared, every * taps),
        loads=loads,
        checks=checks,
        spilled=spilled,
        unrolled=np.where(too_long, 1.0, taps),
    )


def registers_of_a_thread(device: Device) -> float:
    """32-bit registers that a kernel without launch bounds may use.

    LLVM then leaves room for the largest block there is, on RDNA (waves of 32) on the two compute units of a work-group
    processor: 128 on RDNA 2, 192 on RDNA 3, where the records of both begin to be slow; 128 on CDNA 2, of which there were
    no records. nvcc takes the architectural limit.
    """
    most = float(device.registers_per_thread)
    if typical(device).compiler != "llvm" or not device.registers_per_unit or not device.threads_per_block:
        return most
    units = 2.0 if device.wave_width <= _RDNA_WAVE else 1.0
    return min(most, units * device.registers_per_unit / device.threads_per_block)


def distinct(outputs: Column, apart: Column, taps: Column) -> Column:
    """Values along one axis that a thread reads for ``outputs`` outputs ``apart`` from each other under ``taps`` taps."""
    return np.where(apart < taps, (outputs - 1.0) * apart + taps, outputs * taps)


def kept_values(outputs: Column, apart: Column, taps: Column) -> Column:
    """Most values along one axis that are loaded before some tap and used again at it or later."""
    return for_each_kind(_kept, outputs, apart, taps)


def _kept(outputs: int, apart: int, taps: int) -> int:
    at = np.add.outer(np.arange(outputs) * apart, np.arange(taps))  # value that an output uses at a tap
    tap = np.broadcast_to(np.arange(taps), at.shape)
    first, last = np.full(at.max() + 1, taps), np.full(at.max() + 1, -1)
    np.minimum.at(first, at, tap)
    np.maximum.at(last, at, tap)
    return max(int(((first < now) & (now <= last)).sum()) for now in range(taps))
