"""The timing process's part for kinds without loops of their own: verifies and times one kernel, however it is cut."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.case_check import largest_error
from haotuner.backends.cpu.timed_libraries import Libraries
from haotuner.backends.cpu.timer_process import LOOKS, bits, numbers
from haotuner.backends.jobs import op_of
from haotuner.isolate.answers import Job, Refusal
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.kind import Operand
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.limits import MAX_AXES
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

WHOLE = 255  # HT_WHOLE of native/kinds/sliced.h
_ROLES = ("input", "constant", "output", "beside")  # in the order of the runtime's numbers
VERIFY_THREADS = 3  # more than the slices of small shapes, so that some are cut unevenly
BARE = {"sample_ns": 1, "limit_ns": 1, "least": 0}  # one call, nothing timed
EXTENTS = 6  # shapes that are looked at: the smallest, some around the tile, some beyond


class SlicedTimer:
    """Buffers of one timing process for ops of any kind."""

    def __init__(self, libraries: Libraries) -> None:
        self._libraries = libraries
        self._flat: dict[tuple[str, str], NDArray[Any]] = {}

    def time(self, job: Job) -> Job:
        """Samples and looks in microseconds of one kernel at one shape."""
        op, shape = op_of(job), Shape.of(job["shape"])
        operands = op.meaning.inputs + op.meaning.written
        size = sum(prod(op.operand_shape(o, shape)) * DTYPES[op.dtype_of(o)].size for o in operands)
        copies = max(2, -(-int(job["cold_bytes"]) // max(size, 1))) if job["cold_bytes"] else 1
        arrays = [self._buffer(op, operand, shape, copies) for operand in operands]
        samples = np.zeros((len(LOOKS), int(job["most"])), np.float64)
        taken = self._call(job, op, op.extents(shape), arrays, copies, samples)
        return dict(zip(LOOKS, (samples[:, :taken] / 1e3).tolist(), strict=True))

    def verify(self, job: Job) -> Job:
        """Check one kernel against the reference at several shapes, whole and cut along each axis of the output."""
        op, rng = op_of(job), np.random.default_rng(int(job["seed"]))
        worst = 0.0
        cuts = [WHOLE, *(op.axes.index(axis) for axis in (*op.parallel, *job.get("folded", ())) if axis in op.axes)]
        for index, shape in enumerate(_shapes(op, job["tile"], rng)):
            whole = op.meaning.exact and index % 2 == 0
            case = CallCase.drawn(op, shape, rng, whole=whole)
            apart = [numerics.spaced(case.operands[operand.name], 3) for operand in op.meaning.inputs]
            for cut in cuts:
                outs = case.outputs()
                call = {**job, **BARE, "axis": cut, "threads": 1 if cut == WHOLE else VERIFY_THREADS}
                arrays = [*apart, *(out.inner for out in outs.values())]
                self._call(call, op, op.extents(shape), arrays, 1, np.zeros(0))
                where = f"{shape}, {'whole' if cut == WHOLE else f'cut along {op.axes[cut]}'}"
                worst = max(worst, largest_error(case, outs, where))
        return {"max_error": worst}

    def _call(
        self, job: Job, op: Op, extents: Mapping[str, int], arrays: Sequence[NDArray[Any]], copies: int, samples: Any
    ) -> int:
        operands = op.meaning.inputs + op.meaning.written
        words = [
            *(int(job[key]) for key in ("kernel", "axis", "least_tiles", "threads")),
            copies,
            *(int(job[key]) for key in ("sample_ns", "limit_ns", "least")),
            len(op.every_axis),
            len(operands),
            *_padded([extents[axis] for axis in op.every_axis]),
        ]
        for operand in operands:
            dtype, axes = DTYPES[op.dtype_of(operand)], operand.axes(op.all_options())
            words += [_ROLES.index(operand.role), dtype.code, dtype.size * 8, len(axes)]
            words += _padded([op.every_axis.index(axis) for axis in axes])
        try:
            function = self._libraries.function(job["library"], "ht_time_sliced")
            return int(function(*map(bits, arrays), np.array(words, np.int64), samples))
        except (ValueError, RuntimeError, TypeError) as error:
            raise Refusal("run", "error", str(error)[:2000]) from error

    def _buffer(self, op: Op, operand: Operand, shape: Shape, copies: int) -> NDArray[Any]:
        """Copies of one operand; the memory only grows, so that jobs of one kind see the same."""
        dtype = numerics.numpy_dtype(op.dtype_of(operand))
        operand_shape = op.operand_shape(operand, shape)
        count, key = prod(operand_shape) * copies, (operand.name, dtype.name)
        if key not in self._flat or self._flat[key].size < count:
            self._flat.pop(key, None)
            drawn = np.random.default_rng(0).standard_normal(min(max(count, 1), 1 << 20), dtype=np.float32)
            self._flat[key] = np.resize(numbers(drawn, op.dtype_of(operand)), count)
        return self._flat[key][:count].reshape((copies, *operand_shape) if copies > 1 else operand_shape)


def _padded(values: Sequence[int]) -> list[int]:
    return [*values, *([0] * (MAX_AXES - len(values)))]


def _shapes(op: Op, tile: Mapping[str, int], rng: np.random.Generator) -> list[Shape]:
    """Shapes around the tile: one of everything, just under and over, and some drawn."""
    result = [{axis: 1 for axis in op.dynamic}]
    for over in (-1, 1):
        result.append({axis: max(1, int(tile.get(axis, 1)) + over) for axis in op.dynamic})
    while len(result) < EXTENTS:
        result.append({axis: int(rng.integers(1, 3 * int(tile.get(axis, 1)) + 8)) for axis in op.dynamic})
    return [Shape.of(extents) for extents in result]
