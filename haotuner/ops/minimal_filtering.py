"""Minimal filtering of 3x3 windows (Winograd 1980; Lavin & Gray, CVPR 2016): its transforms, and what they do to errors.

With ``tile`` outputs each way, ``y = A' [(G g G') * (B' d B)] A``: inputs ``d`` of ``tile + 2`` each way, weights ``g`` of
3 x 3.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.ops.kind import sum_rounding

Matrix = NDArray[np.float64]
TILES = (2, 4)
EPS = 2.0**-24  # fp32's unit roundoff
STEPS = 8.0  # roundings of the four transforms of each side, beside those of the sum

_INPUT = {
    2: [[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]],
    4: [[4, 0, -5, 0, 1, 0], [0, -4, -4, 1, 1, 0], [0, 4, -4, -1, 1, 0], [0, -2, -1, 2, 1, 0], [0, 2, -1, -2, 1, 0],
        [0, 4, 0, -5, 0, 1]],
}  # fmt: skip
_WEIGHT = {
    2: [[1, 0, 0], [1 / 2, 1 / 2, 1 / 2], [1 / 2, -1 / 2, 1 / 2], [0, 0, 1]],
    4: [[1 / 4, 0, 0], [-1 / 6, -1 / 6, -1 / 6], [-1 / 6, 1 / 6, -1 / 6], [1 / 24, 1 / 12, 1 / 6], [1 / 24, -1 / 12, 1 / 6],
        [0, 0, 1]],
}  # fmt: skip
_OUTPUT = {
    2: [[1, 1, 1, 0], [0, 1, -1, -1]],
    4: [[1, 1, 1, 1, 1, 0], [0, 1, -1, 2, -2, 0], [0, 1, 1, 4, 4, 0], [0, 1, -1, 8, -8, 1]],
}


def points(tile: int) -> int:
    """Products of one tile, a channel and a feature."""
    return (tile + 2) ** 2


def transforms(tile: int) -> tuple[Matrix, Matrix, Matrix]:
    """``B'`` (side, side), ``G`` (side, 3) and ``A'`` (tile, side)."""
    return tuple(np.array(of[tile], np.float64) for of in (_INPUT, _WEIGHT, _OUTPUT))  # type: ignore[return-value]


def growth(tile: int, channels: int) -> float:
    """Error of an output over the magnitudes that meet in it, for inputs and weights of one size each (root mean square)."""
    norms = [np.sqrt((of**2).sum(axis=1)) for of in transforms(tile)]
    one_way = float(np.sqrt((transforms(tile)[2] ** 2 @ (norms[0] * norms[1]) ** 2).max()))
    return EPS * (sum_rounding(channels) + STEPS) * one_way**2 / 9  # the magnitudes are those of nine taps


def tolerance(x: Any, weight: Any, before: tuple[int, int], out: tuple[int, int], tile: int) -> Any:
    """Units of roundoff that each output (b, f, p, q) may be off: x (b, c, h, w), weight (f, c, 3, 3) in float64.

    Roundings of different points are independent, so that their squares add up; magnitudes of channels, which a sum meets
    one after the other, add up themselves (the model of ``sum_rounding``).
    """
    ahead, of_weight, back = transforms(tile)
    side = tile + 2
    down, across = (-(-extent // tile) for extent in out)
    room = np.zeros((*x.shape[:2], down * tile + 2, across * tile + 2))
    part = x[:, :, : room.shape[2] - before[0], : room.shape[3] - before[1]]
    room[:, :, before[0] : before[0] + part.shape[2], before[1] : before[1] + part.shape[3]] = part
    seen = np.lib.stride_tricks.sliding_window_view(room, (side, side), axis=(2, 3))[:, :, ::tile, ::tile] ** 2
    inputs = np.sqrt(np.einsum("ui,bcyxij,vj->uvbyxc", ahead**2, seen, ahead**2, optimize=True))
    weights = np.sqrt(np.einsum("ui,fcij,vj->uvcf", of_weight**2, weight**2, of_weight**2, optimize=True))
    products = (inputs.reshape(side, side, -1, x.shape[1]) @ weights).reshape(side, side, x.shape[0], down, across, -1) ** 2
    found = np.sqrt(np.einsum("iu,uvbyxf,jv->bfyixj", back**2, products, back**2, optimize=True))
    found = found.reshape(x.shape[0], -1, down * tile, across * tile)[:, :, : out[0], : out[1]]
    return (sum_rounding(x.shape[1]) + STEPS) * found
