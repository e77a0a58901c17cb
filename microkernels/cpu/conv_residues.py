"""Transposed convolutions whose residues of the stride are rows, or columns, of one product (``conv_transpose_gemm.c``)."""

from __future__ import annotations

from collections import Counter
from itertools import product
from math import prod

from haotuner.ops.convolution import is_convolution, residue_taps, windows
from haotuner.spec.op import Op

MOST = 64  # residues, as HT_CONV_RESIDUES in conv.h


def woven_residues(op: Op) -> int:
    """Residues of the stride that one product computes; 0: the op is no such convolution. As ``ht_conv_is_woven``."""
    if not is_convolution(op.kind) or "transpose" not in op.kind or not op.plain:
        return 0
    sides = windows(op.kind, dict(op.static), op.all_options()).values()
    count = prod(side.stride for side in sides)
    fits = all(side.dilation == 1 and side.taps >= side.stride for side in sides)
    return count if fits and 1 < count <= MOST else 0


def residue_classes(op: Op) -> list[tuple[int, int]]:
    """Residues that see the same windows: how many they are, and the taps of such a window. The longest first."""
    sides = windows(op.kind, dict(op.static), op.all_options()).values()
    every = [Counter(residue_taps(side)).items() for side in sides]
    result = [(prod(lines for _, lines in item), prod(taps for taps, _ in item)) for item in product(*every)]
    return sorted(result, key=lambda item: -item[1])
