"""Minimal filtering by Toom-Cook (Winograd 1980; Lavin & Gray, CVPR 2016): its transforms, and what they do to errors.

Along one axis ``tile`` outputs of a window of ``taps`` are ``y = A' [(G g) * (B' d)]`` with ``tile + taps - 1`` products;
along two, those of both. A window that moves by more than one pixel is cut in phases, taps that are a stride apart: they
move by one over every stride-th pixel, and are further channels of the sum (Huang et al., DWM, AAAI 2020). Where taps are
apart (dilation), so are the outputs of a tile: each residue of the dilation is a convolution of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.ops.kind import sum_rounding

Matrix = NDArray[np.float64]
TILES = (2, 4, 6)  # outputs, as conv_filter.h has them
POINTS = (Fraction(0), Fraction(1), Fraction(-1), Fraction(2), Fraction(-2), Fraction(1, 2), Fraction(-1, 2))  # and infinity
MOST_POINTS = len(POINTS) + 1
EPS = 2.0**-24  # fp32's unit roundoff
STEPS = 8.0  # roundings of the transforms of each side, beside those of the sum


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """Movement of a window over one axis: ``stride`` pixels a step, ``before`` pixels of padding first.

    Its ``taps`` are ``dilation`` pixels apart. One of stride and dilation is 1. ``residues``: of a transposed
    convolution's stride; each makes an output of every place of the window.
    """

    taps: int
    stride: int = 1
    before: int = 0
    dilation: int = 1
    residues: int = 1

    @property
    def each(self) -> int:
        """Taps of a phase."""
        return -(-self.taps // self.stride)

    @property
    def phases(self) -> int:
        """Number of phases that have taps."""
        return min(self.taps, self.stride)

    @property
    def whole(self) -> int:
        """Number of phases that have ``each`` taps: the first ones; the others lack the last."""
        return self.taps - (self.each - 1) * self.stride

    def outputs(self, tile: int) -> int:
        """Outputs of a tile: one where there is one tap, which nothing is transformed for."""
        return tile if self.each > 1 else 1

    def points(self, tile: int) -> int:
        """Products of a tile and a phase."""
        return self.outputs(tile) + self.each - 1

    def terms(self, tile: int) -> int:
        """Products of a tile and all phases: those that lack a tap have none at infinity."""
        return (self.points(tile) - 1) * self.phases + self.whole


def points(tile: int, axes: Sequence[Axis]) -> int:
    """Products of one tile, each of all phases and channels, for a feature."""
    return prod(axis.points(tile) for axis in axes)


def terms(tile: int, axes: Sequence[Axis]) -> int:
    """Products of a tile, each of one phase and one channel."""
    return prod(axis.terms(tile) for axis in axes)


def fits(tile: int, axes: Sequence[Axis]) -> bool:
    """True if there are points for such tiles, and something is transformed."""
    return any(axis.each > 1 for axis in axes) and all(axis.points(tile) <= MOST_POINTS for axis in axes)


@cache
def transforms(tile: int, taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """``B'`` (points, points), ``G`` (points, taps) and ``A'`` (tile, points) of one axis; of one tap nothing changes."""
    if taps == 1:
        return np.eye(1), np.eye(1), np.eye(1)
    some = POINTS[: tile + taps - 2]
    ahead = [[*_product([b for b in some if b != a]), Fraction(0)] for a in some] + [_product(some)]
    slopes = [prod((a - b for b in some if b != a), start=Fraction(1)) for a in some]
    weight = [[a**k / slope for k in range(taps)] for a, slope in zip(some, slopes, strict=True)]
    weight.append([Fraction(int(k == taps - 1)) for k in range(taps)])
    back = [[*(a**j for a in some), Fraction(int(j == tile - 1))] for j in range(tile)]
    return tuple(np.array(of, np.float64) for of in (ahead, weight, back))  # type: ignore[return-value]


def _product(roots: Sequence[Fraction]) -> list[Fraction]:
    """Coefficients of the polynomial with these roots, the constant first."""
    result = [Fraction(1)]
    for root in roots:
        result = [low - root * high for low, high in zip([Fraction(0), *result], [*result, Fraction(0)], strict=True)]
    return result


def growth(tile: int, axes: Sequence[Axis], channels: int) -> float:
    """Error of an output over the magnitudes that meet in it, for inputs and weights of one size each (root mean square)."""
    phases = prod(axis.phases for axis in axes)
    ways = prod(_one_way(axis.outputs(tile), axis.each) for axis in axes) * phases / prod(axis.taps for axis in axes)
    return EPS * (sum_rounding(channels * phases) + STEPS) * ways


def _one_way(tile: int, taps: int) -> float:
    ahead, weight, back = transforms(tile, taps)
    norms = [(of**2).sum(axis=1) for of in (ahead, weight)]
    return float(np.sqrt((back**2 @ (norms[0] * norms[1])).max()))


def phased(x: Any, weight: Any, axes: tuple[Axis, Axis], out: tuple[int, ...], tile: int) -> tuple[Any, Any]:
    """Image that tiles see of x (b, c, h, w), and weight (f, c, r, s), with phases as channels: a window that moves by one.

    The image begins with the padding and ends with the last tile's inputs, zeros where x has none.
    """
    sizes = [-(-extent // a.outputs(tile)) * a.outputs(tile) + a.each - 1 for a, extent in zip(axes, out, strict=True)]
    tall, wide = axes
    room = np.zeros((*x.shape[:2], sizes[0] * tall.stride, sizes[1] * wide.stride), x.dtype)
    part = x[:, :, : room.shape[2] - tall.before, : room.shape[3] - wide.before]
    room[:, :, tall.before : tall.before + part.shape[2], wide.before : wide.before + part.shape[3]] = part
    taps = np.zeros((*weight.shape[:2], tall.each * tall.stride, wide.each * wide.stride), weight.dtype)
    taps[:, :, : tall.taps, : wide.taps] = weight
    places = [(i, j) for i in range(tall.phases) for j in range(wide.phases)]
    cut = [[of[:, :, i :: tall.stride, j :: wide.stride] for i, j in places] for of in (room, taps)]
    return np.concatenate(cut[0], axis=1), np.concatenate(cut[1], axis=1)


def residues(
    x: Any, axes: tuple[Axis, Axis], out: tuple[int, ...]
) -> Iterator[tuple[tuple[slice, slice], Any, tuple[Axis, Axis]]]:
    """The convolutions without dilation that one with it is: their outputs, their part of x (b, c, h, w), their windows."""
    tall, wide = axes
    padded = np.pad(x, ((0, 0), (0, 0), (tall.before, 0), (wide.before, 0)))
    plain = tuple(replace(axis, dilation=1, before=axis.before if axis.dilation == 1 else 0) for axis in axes)
    for i in range(min(tall.dilation, out[0])):
        for j in range(min(wide.dilation, out[1])):
            outputs = (slice(i, None, tall.dilation), slice(j, None, wide.dilation))
            part = padded[:, :, (tall.before if tall.dilation == 1 else 0) :, (wide.before if wide.dilation == 1 else 0) :]
            yield outputs, part[:, :, outputs[0], outputs[1]], plain  # type: ignore[misc]


def tolerance(x: Any, weight: Any, axes: tuple[Axis, Axis], out: tuple[int, int], tile: int) -> Any:
    """Units of roundoff that each output (b, f, p, q) may be off: x (b, c, h, w), weight (f, c, r, s) in float64.

    Roundings of different points are independent, so that their squares add up; magnitudes of channels, which a sum meets
    one after the other, add up themselves (the model of ``sum_rounding``).
    """
    if any(axis.dilation > 1 for axis in axes):
        whole = np.zeros((x.shape[0], weight.shape[0], *out))
        for outputs, part, plain in residues(x, axes, out):
            item = whole[:, :, outputs[0], outputs[1]]
            item[...] = tolerance(part, weight, plain, item.shape[2:], tile)
        return whole
    room, taps = phased(x, weight, axes, out, tile)
    tall, wide = (transforms(axis.outputs(tile), axis.each) for axis in axes)
    sides, steps = (tall[0].shape[0], wide[0].shape[0]), (tall[2].shape[0], wide[2].shape[0])
    seen = np.lib.stride_tricks.sliding_window_view(room, sides, axis=(2, 3))[:, :, :: steps[0], :: steps[1]] ** 2
    down, across = seen.shape[2:4]
    inputs = np.sqrt(np.einsum("ui,bcyxij,vj->uvbyxc", tall[0] ** 2, seen, wide[0] ** 2, optimize=True))
    # One product of matrices whose result lies as the next one reads it: weights of many channels are most of the work.
    factors = np.einsum("ui,vj->uvij", tall[1] ** 2, wide[1] ** 2).reshape(prod(sides), -1)
    weights = factors @ (taps**2).transpose(2, 3, 1, 0).reshape(factors.shape[1], -1)
    weights = np.sqrt(weights, out=weights).reshape(*sides, *taps.shape[1::-1])
    products = (inputs.reshape(*sides, -1, room.shape[1]) @ weights).reshape(*sides, x.shape[0], down, across, -1) ** 2
    result = np.sqrt(np.einsum("iu,uvbyxf,jv->bfyixj", tall[2] ** 2, products, wide[2] ** 2, optimize=True))
    result = result.reshape(x.shape[0], -1, down * steps[0], across * steps[1])[:, :, : out[0], : out[1]]
    return (sum_rounding(room.shape[1]) + STEPS) * result
