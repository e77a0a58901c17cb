"""Convolutions that read windows where they lie, in the timing process; transposed ones by phases."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import gcd, prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cuda.timing_library import (
    ArgsWords,
    BatchWords,
    CallWords,
    DeviceScratch,
    Loaded,
    TimingLibrary,
    WindowWords,
    call_words,
)
from haotuner.backends.cuda.verifying import drawn
from haotuner.backends.timing_job import largest_error
from haotuner.microkernels.cuda.conv import MOST_PHASES, channels_last, channels_of_group, product_extents, transposed
from haotuner.microkernels.cuda.direct import sides_of
from haotuner.microkernels.cuda.fused import CHANNELS, after_of
from haotuner.ops.convolution import Window
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape


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


def weights_by_phase(op: Op, weight: NDArray[Any]) -> NDArray[Any]:
    """The weight (channels, features of a group, taps) of each phase as (features, taps, channels), groups one by one."""
    groups, sides = int(op.option("groups")), sides_of(op)
    grouped = weight.reshape(groups, op["c"] // groups, op["f"] // groups, sides[0].taps, sides[1].taps)
    parts = [
        np.moveaxis(grouped[:, :, :, down.taps][:, :, :, :, right.taps], 1, -1).reshape(-1)
        for down in phases_of(sides[0], 0)
        for right in phases_of(sides[1], 0)
    ]
    return np.concatenate(parts)


DRAWN = 2  # shapes beside the smallest image that leaves something
MOST_GROUPS, MOST_CHANNELS, MOST_FEATURES = 2, 128, 24  # of a check
GAP_BYTES = 32  # between pixels of x: what every kernel takes


class WindowCall:
    """One call on an image, and a compact result.

    ``apart``: elements between pixels of an image whose channels come last, else between its rows.
    """

    def __init__(self, op: Op, extents: Mapping[str, int], loaded: Loaded, at: Mapping[str, int], apart: int) -> None:
        tall, wide = sides_of(op)
        h, w, c, f = extents.get("h", 1), extents["w"], extents["c"], extents["f"]
        phased = transposed(op)
        result = product_extents(op, extents, phased=phased)
        groups, channels = int(op.option("groups")), channels_of_group(op)
        m, n, k, features = int(result["m"]), int(result["n"]), int(result["k"]), f // groups
        strides = (h * w * apart, w * apart, apart, 1) if channels_last(op) else (c * h * apart, apart, 1, h * apart)
        self.words = WindowWords(
            *strides, h, w, extents.get("p", 1), extents["q"], channels, wide.taps,
            tall.stride, wide.stride, tall.before, wide.before, tall.dilation, wide.dilation,
        )  # fmt: skip
        beside = {name: at[name] for name in (*CHANNELS, "residual") if name in at}
        first, second = ("x", "weight") if channels_last(op) else ("weight", "x")
        ldx, ldw, ldy = (c, k, f) if channels_last(op) else (k, strides[3], n)
        args = ArgsWords(
            x=at[first], y=at["y"], m=m, n=n, k=k, ldx=ldx, ldw=ldw, ldy=ldy, splits=1, **beside, **after_of(op)
        )
        self.weights = np.array([at[second]], np.uint64)  # outlives the call
        self.call = call_words([(loaded, m)], 0, args, self.weights)
        if channels_last(op):
            batch = BatchWords.of(groups, channels, features * k, features)
        else:
            batch = BatchWords.of(groups, features * k, channels * strides[3], features * n)
            batch.extents[-2], batch.w[-2], batch.y[-2], batch.channel_rows = extents["b"], strides[0], f * n, 1
        batch.channel_apart[-1] = features
        if phased:
            self.phases = words_of(op, self.words, extents["b"], extents.get("p", 1), extents["q"])
            batch.extents[-2] = self.phases.down * self.phases.right
        self.call.batch, self.call.matrices = batch, groups * batch.extents[-2]
        self.call.windows = ctypes.addressof(self.phases if phased else self.words)


def taps_before_channels(op: Op, weight: NDArray[Any]) -> NDArray[Any]:
    """The weight (features, channels, taps) as (features, taps, channels); of a transposed convolution by phases."""
    return weights_by_phase(op, weight) if transposed(op) else np.ascontiguousarray(np.moveaxis(weight, 1, -1))


def small(op: Op) -> Op:
    """Op with the same window on fewer groups, channels (whole steps of k) and features."""
    groups = int(op.option("groups"))
    some, channels = min(groups, MOST_GROUPS), channels_of_group(op)
    channels, features = min(channels, MOST_CHANNELS), min(op["f"] // groups, MOST_FEATURES)
    sizes = {"c": channels * some, "f": features * some}
    static = tuple((axis, sizes.get(axis, extent)) for axis, extent in op.static)
    options = tuple((name, str(some) if name == "groups" else value) for name, value in op.options)
    return Op(kind=op.kind, static=static, dtype=op.dtype, options=options, epilogue=op.epilogue)


def shapes(op: Op, rng: np.random.Generator) -> Iterator[Shape]:
    """The smallest image that leaves something, and some drawn."""
    sides = dict(zip(("h", "w"), sides_of(op), strict=True))
    least = {axis: next(n for n in range(1, 1 << 21) if side.out(n) >= 1) for axis, side in sides.items()}
    for count in range(1 + DRAWN):
        extents = {"b": 1 + count, **{axis: least[axis] + count * int(rng.integers(1, 9)) for axis in least}}
        yield Shape.of({axis: extents[axis] for axis in op.dynamic})


def verify(op: Op, loaded: Loaded, native: TimingLibrary, rng: np.random.Generator, depth: int) -> float:
    """The largest error as a share of the tolerance; Refusal for wrong numbers and for a write outside the output.

    ``depth``: of a step along k, which lies in one tap.
    """
    checked_op = small(op)
    if channels_of_group(checked_op) % depth:
        checked_op = op
    return max(_verified(checked_op, shape, loaded, native, rng) for shape in shapes(checked_op, rng))


def _verified(op: Op, shape: Shape, loaded: Loaded, native: TimingLibrary, rng: np.random.Generator) -> float:
    case = CallCase.drawn(op, shape, rng)
    inputs, outputs = case.operands, case.outputs(gaps=False)
    x = numerics.spaced(inputs["x"], GAP_BYTES // inputs["x"].itemsize)
    room = x.base if x.base is not None else x
    written = outputs[op.meaning.output.name]
    with DeviceScratch(native) as scratch:
        put = scratch.put
        y = put(written.outer)
        at = {name: put(inputs[name]) for name in (*CHANNELS, "residual") if name in inputs}
        at |= {
            "x": put(room),
            "weight": put(taps_before_channels(op, inputs["weight"])),
            "y": y + numerics.GUARD * written.outer.itemsize,
        }
        made = WindowCall(op, op.extents(shape), loaded, at, room.shape[-1])
        native.run(made.call)
        native.get(y, written.outer)
    return largest_error(case, outputs, f"{op.name} {shape}")


class WindowOperands:
    """Operands of one shape on the device, compact."""

    def __init__(self, scratch: DeviceScratch, op: Op, shape: Shape) -> None:
        self._op, self._extents = op, op.extents(shape)
        self._at = {
            operand.name: scratch.put(drawn(prod(op.operand_shape(operand, shape)), op.dtype_of(operand)))
            for operand in op.meaning.inputs
        }
        output = op.meaning.output
        self._at["y"] = scratch.put(drawn(prod(op.operand_shape(output, shape)), op.dtype_of(output)))
        self._at |= {
            name: scratch.put(drawn(prod(self._extents[axis] for axis in axes), op.extra_dtype(name)))
            for name, axes in op.epilogue_operands.items()
        }

    def call(self, loaded: Loaded) -> CallWords:
        """One launch; this object must outlive it."""
        self._call = WindowCall(
            self._op, self._extents, loaded, self._at, self._extents["c" if channels_last(self._op) else "w"]
        )
        return self._call.call
