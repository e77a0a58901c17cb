"""Panels of fp32 weights for packs whose libraries lay none out: by numpy, with the bits of newer libraries."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.errors import PackInvalid
from haotuner.pack.op import PackOp
from haotuner.runtime.library import Library

BLOCK_FLOATS = 1 << 22  # 16 MiB at a time, so that a memory-mapped weight is never in memory twice


def floats_of_panels(library: Library, position: int) -> int:
    """Number of floats of the op's panels where the library lays out its fp32 weight itself, else 0."""
    try:
        return int(library.function("ht_pack")(position, None, None))
    except (PackInvalid, ValueError):  # it has no such function, or none for this type
        return 0


def panels_by_numpy(op: PackOp, weight: NDArray[Any], panels: NDArray[np.float32]) -> None:
    """Fill panels ``(panels, k, pw)`` with a weight ``(n, k)`` or ``(k, n)``, zero padded."""
    rows = weight.T if op.weight == "kn" else weight
    step = max(1, BLOCK_FLOATS // (op.k * op.pw))
    for first in range(0, op.panels, step):
        block = rows[first * op.pw : (first + step) * op.pw]
        whole = len(block) // op.pw
        part = panels[first : first + step]
        part[:whole] = block[: whole * op.pw].reshape(whole, op.pw, op.k).transpose(0, 2, 1)
        left = len(block) - whole * op.pw
        part[whole:] = 0
        if left:
            part[whole, :, :left] = block[whole * op.pw :].T
