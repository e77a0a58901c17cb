"""The space of CLBlast's Xgemm: every configuration that its tuner's rules allow, in the values that its database uses."""

from __future__ import annotations

from itertools import product

import numpy as np
from numpy.typing import NDArray

PARAMETERS = ("GEMMK", "KREG", "KWG", "KWI", "MDIMA", "MDIMC", "MWG", "NDIMB", "NDIMC", "NWG", "SA", "SB", "STRM", "STRN",
              "VWM", "VWN")  # fmt: skip
Configs = NDArray[np.int64]  # shape (configurations, parameters), columns in the order of PARAMETERS
_TILES, _VECTORS, _SWITCH = (16, 32, 64, 128), (1, 2, 4, 8), (0, 1)
_THREADS = {0: (8, 16, 32), 1: (4, 8, 16, 32)}  # along an axis, of each of the two kernels


def xgemm_space() -> Configs:
    """Both kernels: 0 stages operands if asked to; 1 keeps tiles in registers and steps by KREG (its src/tuning/kernels)."""
    staged = [
        (0, 1, kwg, kwi, ma, mc, mwg, nb, nc, nwg, sa, sb, strm, strn, vm, vn)
        for mwg, mc, vm, ma in _axes(0)
        for nwg, nc, vn, nb in _axes(0)
        for kwg in (16, 32)
        if _loads(kwg, mc * nc, ma) and _loads(kwg, mc * nc, nb)
        for kwi in (2, 8)
        for strm, strn, sa, sb in product(_SWITCH, repeat=4)
    ]
    direct = [
        (1, kreg, 1, 1, mc, mc, mwg, nc, nc, nwg, 0, 0, 0, 0, vm, vn)
        for mwg, mc, vm, ma in _axes(1)
        if ma == mc
        for nwg, nc, vn, nb in _axes(1)
        if nb == nc
        for kreg in (1, 2, 4, 8, 16)
        if kreg % vn == 0
    ]
    return np.array(staged + direct, np.int64)


def _axes(kernel: int) -> list[tuple[int, int, int, int]]:
    """Tile, threads, vector and loading threads of one axis."""
    threads = _THREADS[kernel]
    return [
        (tile, of, vector, loading)
        for tile, of, vector, loading in product(_TILES, threads, _VECTORS, threads)
        if tile % (of * vector) == 0 and tile % (loading * vector) == 0
    ]


def _loads(kwg: int, threads: int, loading: int) -> bool:
    """True if the threads of a group, ``loading`` side by side, fetch whole rows of a block of steps."""
    return threads % loading == 0 and kwg % (threads // loading) == 0
