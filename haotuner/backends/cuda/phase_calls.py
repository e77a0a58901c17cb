"""Transposed convolutions by windows in the timing process: launch parameters of each phase, and the weight of each."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cuda.timing_library import WindowWords
from haotuner.microkernels.cuda.conv import MOST_PHASES
from haotuner.microkernels.cuda.direct import sides_of
from haotuner.ops.convolution import Window
from haotuner.spec.op import Op


class PhaseWord(ctypes.Structure):
    """``ht_cuda_phase`` of native/cuda/ht_cuda_args.h."""

    _fields_ = tuple((name, ctypes.c_int32) for name in ("count", "taps", "before", "first"))


class PhaseWords(ctypes.Structure):
    """``ht_cuda_phases``."""

    _fields_ = (
        ("windows", WindowWords),
        *((name, ctypes.c_int32) for name in ("images", "p", "q", "down", "right", "taps_right")),
        ("tall", PhaseWord * MOST_PHASES), ("wide", PhaseWord * MOST_PHASES),
    )  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Results one stride apart: the taps that reach them, the first of which meets row ``-before`` for the first result."""

    count: int
    taps: tuple[int, ...]
    before: int


def phases_of(side: Window, out: int) -> list[Phase]:
    """Of an axis with so many results."""
    result = []
    for index in range(side.stride):
        taps = tuple(tap for tap in range(side.taps) if (index + side.before - tap * side.dilation) % side.stride == 0)
        before = (taps[0] * side.dilation - index - side.before) // side.stride if taps else 0
        result.append(Phase(count=len(range(index, out, side.stride)), taps=taps, before=before))
    return result


def words_of(op: Op, windows: WindowWords, images: int, p: int, q: int) -> PhaseWords:
    """Phase parameters of a launch."""
    sides = sides_of(op)
    made = PhaseWords(windows, images, p, q, sides[0].stride, sides[1].stride, sides[1].taps)
    made.windows.down = made.windows.right = 1
    tall, wide = sides
    made.windows.dilation_down = -(tall.dilation // gcd(tall.stride, tall.dilation))
    made.windows.dilation_right = -(wide.dilation // gcd(wide.stride, wide.dilation))
    for side, extent, words in ((tall, p, made.tall), (wide, q, made.wide)):
        first = 0
        for index, phase in enumerate(phases_of(side, extent)):
            words[index] = PhaseWord(phase.count, len(phase.taps), phase.before, first)
            first += len(phase.taps)
    return made


def turned(op: Op, weight: NDArray[Any]) -> NDArray[Any]:
    """The weight (channels, features of a group, taps) of each phase as (features, taps, channels), groups one by one."""
    groups, sides = int(op.option("groups")), sides_of(op)
    grouped = weight.reshape(groups, op["c"] // groups, op["f"] // groups, sides[0].taps, sides[1].taps)
    parts = [
        np.moveaxis(grouped[:, :, :, down.taps][:, :, :, :, right.taps], 1, -1).reshape(-1)
        for down in phases_of(sides[0], 0)
        for right in phases_of(sides[1], 0)
    ]
    return np.concatenate(parts)
