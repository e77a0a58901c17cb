"""The timing process's part for convolutions: packs a weight, verifies and times a micro-kernel as it is served."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cpu.pack_conv import PLACES, transformed, words
from haotuner.backends.cpu.timer_process import BARE, LOOKS, VERIFY_THREADS, WHOLE, Libraries, bits, numbers
from haotuner.backends.timing_job import op_of
from haotuner.isolate.answers import Job, Refusal
from haotuner.ops.convolution import windows
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_EXTRA
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

SHAPES = 5  # that a kernel is verified at
VERIFY_FLOPS = 3e8  # of one of them at most: the reference is numpy's, in float64
NONE = np.zeros(0, np.float32)


class ConvTimer:
    """Buffers of one timing process for convolutions."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._flat: dict[str, NDArray[Any]] = {}

    def time(self, job: Job) -> Job:
        """Samples and looks in microseconds of one kernel at one shape; the weight is cold or hot, images are hot."""
        op, shape = op_of(job), Shape.of(job["shape"])
        x, y = (
            self._buffer(o.name, op.operand_shape(o, shape), op.dtype_of(o))
            for o in (op.meaning.operands[0], op.meaning.output)
        )
        floats = self._packed(job, op, NONE).size
        copies = max(2, -(-int(job["cold_bytes"]) // (4 * floats))) if job["cold_bytes"] else 1
        samples = np.zeros((len(LOOKS), int(job["most"])), np.float64)
        sizes = {name: prod(op.extents(shape)[axis] for axis in axes) for name, axes in op.epilogue_operands.items()}
        extra = dict(
            zip(sizes, np.split(self._buffer("extra", (sum(sizes.values()),)), np.cumsum([*sizes.values()])), strict=False)
        )
        tensors = (x, self._buffer("weight", (copies * floats,)), y, NONE)
        taken = self._call(job, op, shape, tensors, copies, samples, extra)
        return dict(zip(LOOKS, (samples[:, :taken] / 1e3).tolist(), strict=True))

    def verify(self, job: Job) -> Job:
        """Check one kernel against the reference at several shapes, alone and shared, with a bias and without."""
        op, rng = op_of(job), np.random.default_rng(int(job["seed"]))
        worst = 0.0
        for at, shape in enumerate(_shapes(op, int(job["tile"]["q"]), rng)):
            whole = at % 2 == 0
            case = CallCase.drawn(op, shape, rng, whole=whole, computed=job["computed"])
            inputs = case.operands
            packed = self._packed(job, op, inputs["weight"])
            plain = whole and at and not op.epilogue and op.plain  # exact: nothing is rounded
            bias = rng.integers(-3, 4, op["f"]).astype(np.float32) if plain else NONE
            extra = {name: _room(inputs[name], len(axes) == 1) for name, axes in op.epilogue_operands.items()}
            for share in (WHOLE, PLACES.index("q"), PLACES.index("f")):
                out = case.outputs()[op.meaning.output.name]
                call = {**job, **BARE, "axis": share, "threads": 1 if share == WHOLE else VERIFY_THREADS}
                self._call(
                    call, op, shape, (numerics.spaced(inputs["x"], 3), packed, out.inner, bias), 1, np.zeros(0), extra
                )
                result = out.inner - (_along(op, bias) if bias.size else 0)
                verdict = case.verdict({op.meaning.output.name: result})
                if verdict.wrong:
                    raise Refusal("verify", "wrong", f"{shape}, shared along {share}: {verdict}")
                if out.touched():
                    raise Refusal("verify", "out_of_bounds", f"{shape}, shared along {share}: wrote outside the output")
                worst = max(worst, verdict.worst)
        return {"max_error": worst}

    def _packed(self, job: Job, op: Op, weight: NDArray[Any]) -> NDArray[np.float32]:
        """The weight as the loops read it; of no weight an array of its size."""
        fields, function = np.array(_words(job, op), np.int64), "ht_pack_conv"
        pack = self._libraries.function(job["library"], function)
        out = np.zeros(int(pack(fields, NONE, NONE)), np.float32)
        if weight.size:
            pack(fields, bits(np.ascontiguousarray(weight)), out)
        return out

    def _call(
        self,
        job: Job,
        op: Op,
        shape: Shape,
        tensors: tuple[Any, Any, Any, Any],
        copies: int,
        samples: NDArray[Any],
        extra: Mapping[str, NDArray[Any]],
    ) -> int:
        x, packed, y, bias = tensors
        extents = op.extents(shape)
        strides = [_strides(op, operand, array) for operand, array in ((op.meaning.operands[0], x), (op.meaning.output, y))]
        numbers = [
            *(int(job[key]) for key in ("kernel", "axis", "threads")),
            copies,
            *(int(job[key]) for key in ("sample_ns", "limit_ns", "least")),
            *(extents.get(axis, 1) for axis in "bhwpq"),
            *(strides[0].get(axis, 0) for axis in "bchw"),
            *(strides[1].get(axis, 0) for axis in "bfpq"),
            *_words(job, op),
            *_extra_words(op, extents),
        ]
        values = np.concatenate([*extra.values(), np.zeros(1, np.float32)])
        try:
            function = self._libraries.function(job["library"], "ht_time_conv")
            return int(function(bits(x), packed, bits(y), bias, np.array(numbers, np.int64), samples, values))
        except (ValueError, RuntimeError, TypeError) as error:
            raise Refusal("run", "error", str(error)[:2000]) from error

    def _buffer(self, name: str, shape: tuple[int, ...], dtype: str = "fp32") -> NDArray[Any]:
        """A buffer that only grows, so that jobs of one kind see the same memory."""
        count, name = prod(shape), f"{name} {dtype}"
        if name not in self._flat or self._flat[name].size < count:
            drawn = np.random.default_rng(0).standard_normal(min(max(count, 1), 1 << 20), dtype=np.float32)
            self._flat[name] = np.resize(numbers(drawn, dtype), count)
        return self._flat[name][:count].reshape(shape)


def conv_facts(kernel: MicroKernel) -> Job:
    """Fields of a job about the kernel, for the native side and for the check of results."""
    return {"lanes": kernel["vl"], "tiles": transformed([kernel]), "computed": numerics.computed_by([kernel.name])}


def _words(job: Job, op: Op) -> list[int]:
    return words(op, int(job["lanes"]), tuple(map(int, job["tiles"])))


def _strides(op: Op, operand: Any, array: NDArray[Any]) -> dict[str, int]:
    return dict(zip(operand.axes(op.all_options()), (stride // array.itemsize for stride in array.strides), strict=True))


def _room(values: NDArray[Any], channel: bool) -> NDArray[np.float32]:
    """Memory of an epilogue's operand: of a channel in fp32, a tensor like y as it is, in 32-bit room."""
    if channel:
        return values.astype(np.float32)
    room, flat = np.zeros(values.size, np.float32), bits(values).reshape(-1)
    room.view(flat.dtype)[: flat.size] = flat
    return room


def _extra_words(op: Op, extents: Mapping[str, int]) -> list[int]:
    """Number of operands of the epilogue, and for each its offset behind the others and its strides, in elements."""
    result, begin = [len(op.epilogue_operands)], 0
    for axes in op.epilogue_operands.values():
        sizes = [extents[axis] for axis in axes]
        strides = {axis: prod(sizes[index + 1 :]) for index, axis in enumerate(axes)}
        result += [begin, *(strides.get(axis, 0) for axis in "bfpq")]
        begin += prod(sizes)
    return [*result, *([0] * (1 + 5 * MAX_EXTRA - len(result)))]


def _along(op: Op, bias: NDArray[Any]) -> NDArray[Any]:
    """A value of each feature, to be added to the output."""
    axes = op.meaning.output.axes(op.all_options())
    return bias.reshape([-1 if axis == "f" else 1 for axis in axes])


def _shapes(op: Op, pixels: int, rng: np.random.Generator) -> list[Shape]:
    """The smallest images, some whose pixels end within a tile and around it, some of several images."""
    result = windows(op.kind, dict(op.static), op.all_options())
    least = {axis: next(n for n in range(1, 1 << 21) if side.out(n) >= 1) for axis, side in result.items()}

    def shape(**extents: int) -> Shape:
        return Shape.of({axis: extents[axis] for axis in op.dynamic})

    shapes = [shape(b=1, **least)]
    while len(shapes) < SHAPES:
        most = int((2 * pixels) ** (1 / len(least))) + 4
        drawn = {axis: low + int(rng.integers(0, most)) * (1 if side.transposed else side.stride) for (axis, low), side in
                 zip(least.items(), result.values(), strict=True)}  # fmt: skip
        one_shape = shape(b=int(rng.integers(1, 4)), **drawn)
        shapes.append(one_shape if op.flops(one_shape) <= VERIFY_FLOPS else shape(b=1, **least))
    return shapes
