"""Generated programs in the timing process: what one must compute right, and operands to time it with."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.backends.cuda.timing_library import ArgsWords, CallWords, DeviceScratch, Loaded, TimingLibrary, call_words
from haotuner.backends.timing_job import largest_error
from haotuner.codegen.schedule import merged_sizes
from haotuner.microkernels.cuda.generated import CudaGenerated, Cut
from haotuner.ops.kind import WRITTEN
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.limits import MAX_AXES, MAX_OPERANDS
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

DRAWN = 2  # shapes beside those around a vector
MOST_FLOPS = 3e5  # of a shape: the reference takes float64 of the host


class CutWords(ctypes.Structure):
    """``ht_cuda_generated_kernel`` of native/cuda/generated.h."""

    _fields_ = tuple((name, ctypes.c_int32) for name in Cut.__slots__)


class ProgramArgs(ctypes.Structure):
    """``ht_generated_args`` of native/cuda/ht_cuda_generated.h."""

    _fields_ = (
        ("data", ctypes.c_uint64 * MAX_OPERANDS), ("strides", (ctypes.c_int64 * MAX_AXES) * MAX_OPERANDS),
        ("sizes", ctypes.c_int64 * MAX_AXES), ("partial", ctypes.c_uint64), ("parts", ctypes.c_int), ("phase", ctypes.c_int),
    )  # fmt: skip


class GeneratedWords(ctypes.Structure):
    """``htt_generated`` of timing_cuda.c."""

    _fields_ = (
        ("kernel", CutWords), ("args", ProgramArgs), ("shape", ctypes.c_int64 * MAX_AXES), ("rank", ctypes.c_int32),
        ("partial", ctypes.c_uint64),
    )  # fmt: skip


def words_of(
    op: Op, shape: Shape, family: CudaGenerated, kernel: MicroKernel, places: Sequence[int],
    strides: Sequence[Sequence[int]], *, gaps: bool, partial: int,
) -> GeneratedWords:  # fmt: skip
    """A call on operands at these addresses, strides in elements, what is written last; ``gaps``: some lie apart.

    ``partial``: memory for results of parts of a fold, of ``partial_bytes``.
    """
    cut, plan = family.cut(kernel), family.plan(kernel)
    words = GeneratedWords(kernel=CutWords(*(int(getattr(cut, name)) for name in Cut.__slots__)), partial=partial)
    out = op.operand_shape(op.meaning.output, shape)
    sizes = {name: int(op.extents(shape)[name]) for name in plan.graph.dimensions}
    if cut.merges and not gaps:  # as the runtime does it
        sizes, out = merged_sizes(plan, sizes), (*(1 for _ in out[1:]), prod(out))
    for index, (address, steps) in enumerate(zip(places, strides, strict=True)):
        words.args.data[index] = address
        words.args.strides[index][: len(steps)] = list(steps)
    words.args.sizes[: len(sizes)] = list(sizes.values())
    words.shape[: len(out)] = out
    words.rank = len(out)
    return words


def partial_bytes(op: Op, shape: Shape, family: CudaGenerated, kernel: MicroKernel) -> int:
    """Of the results of all parts of a call, at most."""
    return 4 * family.cut(kernel).floats(op.operand_shape(op.meaning.output, shape))


def _call(loaded: Loaded, words: GeneratedWords) -> CallWords:
    call = call_words([(loaded, 1)], 0, ArgsWords(m=1, n=1, k=1, splits=1), np.zeros(1, np.uint64))
    call.generated = ctypes.addressof(words)
    return call


def verify_generated(
    op: Op, kernel: MicroKernel, family: CudaGenerated, loaded: Loaded, native: TimingLibrary, rng: np.random.Generator
) -> float:
    """The largest error as a share of the tolerance, with and without gaps between rows; Refusal for what is wrong."""
    worst = 0.0
    for shape in _shapes(op, family.cut(kernel), rng):
        for gaps in (False, True):
            worst = max(worst, _verified(op, shape, kernel, family, loaded, native, rng, gaps=gaps))
    return worst


def _verified(
    op: Op, shape: Shape, kernel: MicroKernel, family: CudaGenerated, loaded: Loaded, native: TimingLibrary,
    rng: np.random.Generator, *, gaps: bool,
) -> float:  # fmt: skip
    case = CallCase.drawn(op, shape, rng)
    outputs = case.outputs(gaps=gaps)
    places: list[int] = []
    strides: list[tuple[int, ...]] = []
    with DeviceScratch(native) as scratch:

        def put(values: NDArray[Any], view: NDArray[Any]) -> int:
            at = scratch.put(values)
            places.append(at + view.__array_interface__["data"][0] - values.__array_interface__["data"][0])
            strides.append(tuple(step // view.itemsize for step in view.strides))
            return at

        for operand in op.meaning.inputs:
            value = np.ascontiguousarray(case.operands[operand.name])
            view = numerics.spaced(value, 3) if gaps else value
            root = view.base if gaps and view.base is not None else view
            put(np.ascontiguousarray(root), view)
        at = {name: put(output.outer, output.inner) for name, output in outputs.items()}
        partial = scratch.poisoned(partial_bytes(op, shape, family, kernel))
        words = words_of(op, shape, family, kernel, places, strides, gaps=gaps, partial=partial)
        native.run(_call(loaded, words))
        for name, output in outputs.items():
            native.get(at[name], output.outer)
    return largest_error(case, outputs)


def _shapes(op: Op, cut: Cut, rng: np.random.Generator) -> Iterator[Shape]:
    """One of everything, a vector and more, and some drawn; the outer axes shorter where there is too much to compute."""
    *outer, last = op.dynamic
    result = [dict.fromkeys(op.dynamic, 1), {**dict.fromkeys(outer, 3), last: cut.lanes * cut.vectors + 5}]
    for _ in range(DRAWN):
        result.append({axis: int(rng.integers(1, 40 if axis != last else 3 * cut.lanes + 8)) for axis in op.dynamic})
    for extents in result:
        while op.flops(Shape.of(extents)) > MOST_FLOPS and any(extents[axis] > 1 for axis in outer):
            extents |= {axis: max(1, extents[axis] // 2) for axis in outer}
        yield Shape.of(extents)


class GeneratedOperands:
    """Operands of one shape on the device, compact."""

    def __init__(self, scratch: DeviceScratch, op: Op, shape: Shape) -> None:
        self._scratch, self._op, self._shape = scratch, op, shape
        self._operands: list[int] = []
        self._strides: list[tuple[int, ...]] = []
        for operand in (*op.meaning.inputs, *op.meaning.written):
            size, dtype = op.operand_shape(operand, shape), numerics.numpy_dtype(op.dtype_of(operand))
            count = prod(size)
            self._operands.append(scratch.room(count * dtype.itemsize))
            self._strides.append(tuple(prod(size[axis + 1 :]) for axis in range(len(size))))
            if operand.role not in WRITTEN and count:
                values = np.random.default_rng(0).standard_normal(min(count, 1 << 20), dtype=np.float32)
                scratch.native.put(self._operands[-1], np.resize(values, count).astype(dtype))

    def call(self, loaded: Loaded, family: CudaGenerated, kernel: MicroKernel) -> CallWords:
        """One launch."""
        partial = self._scratch.room(partial_bytes(self._op, self._shape, family, kernel))
        self._words = words_of(
            self._op, self._shape, family, kernel, self._operands, self._strides, gaps=False, partial=partial
        )
        return _call(loaded, self._words)
