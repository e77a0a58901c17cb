"""State of the timing process: loaded libraries and buffers. Verifies and times kernels and compositions."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np
import tvm_ffi
from numpy.typing import NDArray

from haotuner.backends.timing_job import largest_error, op_of
from haotuner.isolate.answers import Job, Refusal
from haotuner.microkernels.cpu.typed import word_for
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.epilogue import operands_of
from haotuner.ops.kind import Operand
from haotuner.spec import numerics
from haotuner.spec.call_case import CallCase
from haotuner.spec.limits import MAX_AXES
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

KEPT = 48  # of a few hundred kilobytes each


class Libraries:
    """Functions by the path of their library; the oldest library is let go when there are many."""

    def __init__(self) -> None:
        self._loaded: dict[str, Any] = {}

    def function(self, path: str, name: str) -> Callable[..., Any]:
        """One exported function; Refusal if the library does not load or has none of that name."""
        if path not in self._loaded:
            if len(self._loaded) >= KEPT:
                self._loaded.pop(next(iter(self._loaded)))
            try:
                self._loaded[path] = tvm_ffi.load_module(path)
            except Exception as error:  # a library that does not load is data
                raise Refusal("load", "error", str(error)[:2000]) from error
        try:
            result: Callable[..., Any] = self._loaded[path].get_function(name)
        except Exception as error:
            raise Refusal("load", "error", str(error)[:2000]) from error
        return result


# A look at the machine before anything is timed: pauses make it a tenth of a second, in which other load comes and goes.
WATCH_LOOKS, WATCH_PAUSE_S = 16, 0.008
WATCH_SAMPLES = 4  # reads of two MiB a look
WATCH_FLOATS = WATCH_LOOKS * WATCH_SAMPLES * (2 << 20) // 4
LOOKS = ("samples_us", "memory_us", "compute_us", "together_us")  # the rows of what timing.c returns


class TimerProcess:
    """Buffers and libraries of one measuring process."""

    def __init__(self, libraries: Libraries | None = None) -> None:
        self._libraries = libraries or Libraries()
        self._flat: dict[str, np.ndarray[Any, Any]] = {}
        self._random = np.random.default_rng(0).standard_normal(1 << 20, dtype=np.float32)

    def time(self, job: Job) -> Job:
        """Samples and looks in microseconds of one composition; see timing.c for the fields of the job."""
        n, k, m = (int(job[key]) for key in ("n", "k", "m"))
        op, weight_floats = op_of(job), int(job["floats"])
        copies = max(2, -(-int(job["cold_bytes"]) // (weight_floats * 4))) if job["cold_bytes"] else 1
        x = self._buffer("x", m * k, op.dtype_of(op.meaning.operands[0]))
        y = self._buffer("y", m * n)
        w = self._buffer("w", copies * weight_floats, op.dtype_of(op.meaning.operands[1]))
        rows, wholes = self._extras(op)
        extra = self._buffer("extra", (rows + wholes * m) * n)
        samples = np.zeros((len(LOOKS), int(job["most"])), np.float64)
        taken = self._call(job, op, x, w, y, m, (k, n), copies, samples, extra)
        us = samples[:, :taken] / 1e3
        return dict(zip(LOOKS, us.tolist(), strict=True))

    def watch(self, job: Job) -> Job:
        """Speed of the machine just now, in microseconds of two fixed loops (watch.h), over about a tenth of a second."""
        floats = max(WATCH_FLOATS, int(job["cold_bytes"]) // 4)
        seen = []
        for part in np.array_split(self._buffer("w", floats), WATCH_LOOKS):  # each elsewhere: nothing is cached
            samples = np.zeros((2, WATCH_SAMPLES), np.float64)
            self._libraries.function(job["library"], "ht_watch")(part, samples)
            seen.append(samples / 1e3)
            time.sleep(WATCH_PAUSE_S)
        return dict(zip(("memory_us", "compute_us"), np.concatenate(seen, axis=1).tolist(), strict=True))

    def verify(self, job: Job) -> Job:
        """Check one kernel against float64 on ragged shapes; answers the largest error as a share of the tolerance."""
        worst = 0.0
        op_ = op_of(job)
        mr, nr, pw, k, nt = (int(job[key]) for key in ("mr", "nr", "pw", "k", "nt"))
        rng = np.random.default_rng(int(job["seed"]))
        for tiles, n, whole, block in (
            (1, nr, True, 0),
            (2, 2 * nr + 1, False, 0),
            (3, nr - 1 if nr > 1 else 1, False, 0),
            (2, nr + nt, True, -(-k // 3)),  # the sum over k in parts
            *(((2, nr + nt, False, 0), (2, nr + nt - 1, True, -(-k // 3))) if nt else ()),  # the tail into Y, and beside it
        ):
            op = replace(op_, static=(("n", n), ("k", k)), options=tuple(o for o in op_.options if o[0] != "weight"))
            m = tiles * mr
            panels = -(-n // nr) * (nr // pw)
            case = CallCase.drawn(op, Shape.of(m=m), rng, whole=whole)
            inputs, outputs = case.operands, case.outputs()
            x = np.full(
                (m + 1, k + 9), numerics.unread(inputs["x"].dtype), inputs["x"].dtype
            )  # where a kernel must not read
            x[:m, :k] = inputs["x"]
            y = outputs[op.meaning.output.name]
            self._call(
                {**job, "n": n, "panels": panels, "m": m, "parts": [[job["kernel"], tiles]], "k_block": block},
                op,
                bits(x[:m, :k]),
                packed_panels(op, inputs["weight"], panels, pw),
                bits(y.inner),
                m,
                (k + 9, y.outer.shape[1]),
                1,
                np.zeros(0),
                _extra(op, inputs, m * n),
            )
            worst = max(worst, largest_error(case, outputs, f"m={m} n={n} k={k}"))
        return {"max_error": worst}

    def _extras(self, op: Op) -> tuple[int, int]:
        """Number of rows of n, and of matrices of m x n, that the epilogue reads."""
        extents = [extent for _, extent in operands_of(op.epilogue)]
        return extents.count("channel"), extents.count("whole")

    def _call(
        self,
        job: Job,
        op: Op,
        x: Any,
        w: Any,
        y: Any,
        m: int,
        strides: tuple[int, int],
        copies: int,
        samples: Any,
        extra: Any,
    ) -> int:
        parts = [int(v) for part in job["parts"] for v in part]
        words = [
            job["n"],
            job["k"],
            job["pw"],
            job["panels"],
            job["col_block"],
            m,
            *strides,
            job["threads"],
            job["split"],
            job["row_block"],
            job["k_block"],
            *self._extras(op),
            copies,
            job["sample_ns"],
            job["limit_ns"],
            job["least"],
            len(parts) // 2,
            *parts,
        ]
        try:
            return int(
                self._libraries.function(job["library"], "ht_time")(x, w, y, np.array(words, np.int64), samples, extra)
            )
        except (ValueError, RuntimeError, TypeError) as error:
            raise Refusal("run", "error", str(error)[:2000]) from error

    def _buffer(self, name: str, floats: int, dtype: str = "fp32") -> np.ndarray[Any, Any]:
        """A flat buffer that only grows, so that jobs of one kind see the same memory; 32-bit words of any type."""
        name = name if dtype == "fp32" else f"{name} {dtype}"
        if name not in self._flat or self._flat[name].size < floats:
            self._flat.pop(name, None)
            self._flat[name] = np.resize(self._values(dtype), floats)
        return self._flat[name][:floats]

    def _values(self, dtype: str) -> np.ndarray[Any, Any]:
        """Numbers that the type has, as 32-bit words: random bits would be slow ones here and there."""
        return numbers(self._random, dtype).view(np.float32)


def numbers(normal: np.ndarray[Any, Any], dtype: str) -> np.ndarray[Any, Any]:
    """Standard normal numbers as a type has them, in memory that DLPack takes; bytes fill most of their range."""
    element_type = DTYPES[dtype]
    if not element_type.eps:
        normal = np.clip(normal * 20 + (0 if element_type.low else 100), element_type.low, element_type.high)
    return bits(normal.astype(numerics.numpy_dtype(dtype)))


def bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """View of the same memory as a type that DLPack takes from numpy: bfloat16 is none."""
    return values.view(np.uint16) if values.dtype.kind == "V" else values


def _extra(op: Op, inputs: Mapping[str, Any], outputs: int) -> np.ndarray[Any, Any]:
    """Operands of an epilogue, one after the other: of a channel in fp32, tensors like y as they are in 32-bit room."""
    result = []
    for name, axes in op.epilogue_operands.items():
        if len(axes) == 1:
            result.append(inputs[name].astype(np.float32))
            continue
        room = np.zeros(outputs, np.float32)
        values = bits(inputs[name]).reshape(-1)
        room.view(values.dtype)[: values.size] = values
        result.append(room)
    return np.concatenate(result) if result else np.zeros(0, np.float32)


def packed_panels(op: Op, weight: Any, panels: int, pw: int) -> np.ndarray[Any, Any]:
    """A weight (n, k) as the runtime lays it out: panels [panel][k / terms][pw][terms], zero beyond n and k."""
    word = word_for(op)
    terms = 1 if word is None else word.terms
    depth = -(-weight.shape[1] // terms)
    begun = (
        [-128 * np.pad(weight.astype(np.int32).sum(1), (0, panels * pw - len(weight)))] if op.option("in") != "own" else []
    )
    room = np.zeros((panels * pw, depth * terms), weight.dtype)
    room[: weight.shape[0], : weight.shape[1]] = weight
    result = np.ascontiguousarray(bits(room).reshape(panels, pw, depth, terms).transpose(0, 2, 1, 3)).reshape(-1)
    return np.concatenate([result.view(np.float32), *(item.astype(np.int32).view(np.float32) for item in begun)])


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
