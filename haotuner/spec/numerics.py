"""Check of numerical results: drawn inputs, the reference in float64, a tolerance for each element, guard bands.

One judge for every place that checks results: the measuring process, a pack's verification, races against other libraries.
Needs numpy only.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from haotuner.ops.dtypes import DTYPES
from haotuner.ops.epilogue import STEPS
from haotuner.ops.kind import FILTERED, Operand
from haotuner.spec.composition import Composition
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

Array: TypeAlias = NDArray[Any]
EXACTLY: Mapping[str, str] = MappingProxyType({})
GUARD = 24  # elements around every row of an output that a call must leave alone
SENTINEL = -7.25e30  # no result of the test data comes near it; as fp16 it is -inf, which none is either
INTEGER_SENTINEL = 11.0  # above the least integer
EPILOGUE_ULPS = 2.0  # of vector functions in an epilogue
FP16_END = 65520.0  # what lies nearer to 65504, the largest number, than to the next there would be
BYTE_SUMS = 500.0  # a result of random bytes, scaled by one over this and the root of k, is a few tens
WHOLE = 3  # drawn whole numbers are from -3 to 3: every sum of them is exact, so one missing or doubled term shows


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """Result of a comparison. ``worst``: the largest error as a share of what is allowed; ``wrong``: elements over it."""

    worst: float
    wrong: int
    at: tuple[int, ...] = ()  # the first wrong element, what it is and what it should be
    actual: float = 0.0
    expected: float = 0.0

    def __str__(self) -> str:
        """In words, for a message."""
        if not self.wrong:
            return f"right: the largest error is {self.worst:.2g} of what is allowed"
        return f"{self.wrong} wrong results, the first at {list(self.at)}: {self.actual}, want {self.expected}"


def numpy_dtype(name: str) -> np.dtype[Any]:
    """Numpy's type of a dtype name; TypeError for bf16 where no package brings it."""
    element_type = DTYPES[name].numpy
    if not hasattr(np, element_type):
        with contextlib.suppress(ImportError):
            importlib.import_module("ml_dtypes")  # tells numpy of them; it comes with TVM
    return np.dtype(element_type)


def draw(
    op: Op, shape: Shape, rng: np.random.Generator, *, whole: bool = False, names: Collection[str] | None = None
) -> dict[str, Array]:
    """Inputs and constants of one call by operand name, as they are stored; epilogue operands among them.

    ``whole``: small whole numbers instead of what the kind draws (standard normal). ``names``: of these operands alone.
    """
    result = {}
    for operand in op.meaning.inputs:
        if names is not None and operand.name not in names:
            continue
        size = op.operand_shape(operand, shape)
        cut = op.meaning.ends.get(operand.name)
        element_type = DTYPES[op.dtype_of(operand)]
        if element_type.size == 1:
            least, most = (-WHOLE if element_type.low else 0, WHOLE) if whole else (element_type.low, element_type.high)
            values: Array = rng.integers(least, most + 1, size)
        else:
            values = _drawn(op, operand, size, rng, whole) if cut is None else ends(rng, op.extents(shape)[cut], size[0])
        result[operand.name] = values.astype(numpy_dtype(op.dtype_of(operand)))
    extents = op.extents(shape)
    for name, axes in op.epilogue_operands.items():
        if names is not None and name not in names:
            continue
        values = _normal(tuple(extents[axis] for axis in axes), rng, whole)
        if name == "scale" and op.sums == "int32" and not whole:  # sums of bytes are that large
            terms = op.flops(shape) / 2 / max(1, prod(op.operand_shape(op.meaning.output, shape)))
            values = values / np.float32(BYTE_SUMS * np.sqrt(max(1, terms)))
        result[name] = values.astype(numpy_dtype(op.extra_dtype(name)))
    if "low" in result:  # the ends of a clamp, in their order
        result["low"], result["high"] = np.minimum(result["low"], result["high"]), np.maximum(result["low"], result["high"])
    return result


def ends(rng: np.random.Generator, extent: int, groups: int) -> Array:
    """Ends of so many groups that cut an axis at random, some of them empty; the last is the axis's extent."""
    return np.append(np.sort(rng.integers(0, extent + 1, groups - 1)), extent)


def _drawn(op: Op, operand: Operand, size: tuple[int, ...], rng: np.random.Generator, whole: bool) -> Array:
    if op.meaning.draw is not None and not whole:
        return np.asarray(op.meaning.draw(rng, operand, size))
    return _normal(size, rng, whole)


def _normal(size: tuple[int, ...], rng: np.random.Generator, whole: bool) -> Array:
    return rng.integers(-WHOLE, WHOLE + 1, size) if whole else rng.standard_normal(size, dtype=np.float32)


def reference(op: Op, inputs: Mapping[str, Array]) -> NDArray[np.float64]:
    """The op's result in float64, epilogue included; ``inputs`` as they are stored."""
    value = _as_stored(op, op.meaning.result(_wide(op, inputs), op.all_options()))
    extra = _extra(op, inputs)
    for step in op.epilogue:
        value = STEPS[step].apply(value, extra)
    return _stored(op, np.asarray(value, np.float64))


def _stored(op: Op, value: NDArray[np.float64]) -> NDArray[np.float64]:
    """As integers keep it: to the nearest, ties to even, within their range; fp16 has infinity beyond its own."""
    element_type = DTYPES[op.dtype_of(op.meaning.output)]
    if element_type.name == "fp16":
        return np.where(np.abs(value) >= FP16_END, np.copysign(np.inf, value), value)
    return value if element_type.eps else np.clip(np.rint(value), element_type.low, element_type.high)


def computed_by(kernels: Iterable[str]) -> dict[str, str]:
    """Facts that ``check`` needs of the micro-kernels that may have computed a result: some trade exactness for speed."""
    tiles = [dict(Composition.of(name).kernels[0].params).get("wt", 0) for name in kernels if "_winograd_" in name]
    return {FILTERED: str(max(tiles))} if tiles else {}


def tolerance(
    op: Op,
    inputs: Mapping[str, Array],
    want: NDArray[np.float64],
    computed: Mapping[str, str] = EXACTLY,
    *,
    step_eps: float = DTYPES["fp32"].eps,
) -> NDArray[np.float64]:
    """Tolerance of each element of the result: rounding of the sums, the epilogue's gain, and of the output itself.

    ``step_eps``: how exactly the sums and each step of the epilogue are kept on their way; larger of libraries that keep
    them in 16 bits.
    """
    element_type = DTYPES[op.dtype_of(op.meaning.output)]
    eps = element_type.eps
    if not eps and not op.epilogue:
        return np.zeros(want.shape)  # sums of integers
    # Sums are kept in fp32 at least, whatever the operands' type.
    units = np.asarray(_as_stored(op, op.meaning.tolerance(_wide(op, inputs), {**op.all_options(), **computed})), np.float64)
    value = want
    if op.epilogue or op.sums != "fp32" or not eps or np.isinf(want).any():  # otherwise nothing below reads it
        value = np.asarray(_as_stored(op, op.meaning.result(_wide(op, inputs), op.all_options())))
    # Sums of integers are exact, and rounded once where they become floats.
    allowed = DTYPES["fp32"].eps * (units if op.sums == "fp32" else np.abs(value))
    extra = _extra(op, inputs)
    if op.epilogue:
        allowed = allowed + (step_eps - DTYPES["fp32"].eps) * np.abs(value)
    for step in (STEPS[name] for name in op.epilogue):
        entered, value = np.abs(value), step.apply(value, extra)
        # Each step rounds its result; what it computes inside is as exact as its input is large.
        inside = EPILOGUE_ULPS * np.minimum(entered, 1.0 + np.abs(value))
        allowed = allowed * step.enlarges(extra) + step_eps * (np.abs(value) + inside)
    if not eps:  # what lies so near to a half may be either
        return np.maximum(_stored(op, value + allowed) - want, want - _stored(op, value - allowed))
    if eps > DTYPES["fp32"].eps:
        over = np.isinf(want) & np.isfinite(value)
        allowed = allowed + eps * np.abs(np.where(over, value, want)) + element_type.least
        if op.meaning.rounded is not None:
            half = op.meaning.rounded(
                _wide(op, inputs), op.all_options(), lambda x: (eps * np.abs(x) + element_type.least) / 2
            )
            allowed = allowed + np.asarray(_as_stored(op, half), np.float64)
        if element_type.name == "fp16":  # what lies that near to the end of fp16 may be either
            allowed = np.where(np.abs(np.abs(value) - FP16_END) <= FP16_END * eps, np.inf, allowed)
    return np.broadcast_to(allowed, want.shape)


def compare(result: Array, want: NDArray[np.float64], allowed: NDArray[np.float64] | float) -> Verdict:
    """Element by element; NaN and infinities where finite numbers are wanted are wrong, and the other way round."""
    actual = np.asarray(result, np.float64)
    with np.errstate(invalid="ignore"):  # infinity less infinity
        error = np.abs(actual - want)
    error = np.where((actual == want) | (np.isnan(actual) & np.isnan(want)), 0.0, error)
    wrong = (error != 0) & ~(error <= allowed) & ~np.isposinf(allowed)  # of NaN nobody says how far it may be off
    if not wrong.any():
        shares = error / np.maximum(allowed, np.finfo(np.float64).tiny)
        return Verdict(worst=float(np.max(shares, initial=0.0, where=error > 0)), wrong=0)
    over = np.where(np.isnan(error - allowed), np.inf, error - allowed)
    at = tuple(int(i) for i in np.unravel_index(int(np.argmax(np.where(wrong, over, -np.inf))), error.shape))
    return Verdict(
        worst=float("inf"), wrong=int(wrong.sum()), at=at, actual=float(np.asarray(result)[at]), expected=float(want[at])
    )


def check(
    op: Op, inputs: Mapping[str, Array], result: Array, *, whole: bool = False, computed: Mapping[str, str] = EXACTLY
) -> Verdict:
    """The result of one call against the reference, as ``bounds`` says."""
    return compare(result, *bounds(op, inputs, whole=whole, computed=computed))


def bounds(
    op: Op, inputs: Mapping[str, Array], *, whole: bool = False, computed: Mapping[str, str] = EXACTLY
) -> tuple[NDArray[np.float64], NDArray[np.float64] | float]:
    """The reference, and how far each element may be off: ``whole`` numbers of a kind that is exact on them not at all.

    ``computed``: how, see ``computed_by``.
    """
    want = reference(op, inputs)
    rounds = DTYPES[op.dtype_of(op.meaning.output)].eps > DTYPES["fp32"].eps
    exact = whole and op.meaning.exact and not op.epilogue and not rounds and not computed
    return want, 0.0 if exact else tolerance(op, inputs, want, computed)


def expected(
    op: Op, inputs: Mapping[str, Array], computed: Mapping[str, str] = EXACTLY, *, whole: bool = False
) -> dict[str, tuple[Any, Any]]:
    """Of everything that a call writes, by operand name: the reference, and how far each element may be off."""
    return _beside(op, inputs) | {op.meaning.output.name: bounds(op, inputs, whole=whole, computed=computed)}


def _beside(op: Op, inputs: Mapping[str, Array]) -> dict[str, tuple[Any, Any]]:
    result: dict[str, tuple[Any, Any]] = {}
    for operand in op.meaning.written[:-1]:
        want, units = op.meaning.beside[operand.name](_wide(op, inputs))
        exact = not DTYPES[op.dtype_of(operand)].eps
        result[operand.name] = np.asarray(want, np.float64), 0.0 if exact else DTYPES["fp32"].eps * units
    return result


class Guarded:
    """An output inside a larger array filled with a sentinel, so that a write outside it shows.

    ``gaps=False``: room lies before and behind it alone, so that its rows touch each other.
    """

    def __init__(self, shape: tuple[int, ...], dtype: str = "fp32", guard: int = GUARD, *, gaps: bool = True) -> None:
        self._shape, lines = shape, shape if gaps else (prod(shape),)
        around = tuple((1 if axis < len(lines) - 1 else guard) for axis in range(len(lines)))
        element_type = DTYPES[dtype]
        with np.errstate(over="ignore"):  # fp16 has no such number: minus infinity stands there
            sentinel = np.float64(SENTINEL) if element_type.eps else np.float64(element_type.low + INTEGER_SENTINEL)
            self._sentinel = sentinel.astype(numpy_dtype(dtype))
        self.outer = np.full([n + 2 * g for n, g in zip(lines, around, strict=True)], self._sentinel)
        self._inside = tuple(slice(g, g + n) for n, g in zip(lines, around, strict=True))

    @property
    def inner(self) -> Array:
        """The output: a view, with wider strides than its shape needs where there are gaps."""
        return self.outer[self._inside].reshape(self._shape)

    def touched(self) -> bool:
        """True if something outside the output was written to."""
        outside = np.ones(self.outer.shape, bool)
        outside[self._inside] = False
        return not bool(np.all(self.outer[outside] == self._sentinel))


def unread(dtype: np.dtype[Any]) -> float:
    """Value that stands where nothing must be read: NaN, of integers the largest number."""
    return np.nan if dtype.kind in "fV" else float(np.iinfo(dtype).max)  # V: bfloat16


def spaced(values: Array, gap: int) -> Array:
    """Copy of values in rows further apart, with NaN between them (integers: the largest number): what must not be read."""
    room = np.full((*values.shape[:-1], values.shape[-1] + gap), unread(values.dtype), values.dtype)
    room[..., : values.shape[-1]] = values
    return room[..., : values.shape[-1]]


def _extra(op: Op, inputs: Mapping[str, Array]) -> dict[str, NDArray[np.float64]]:
    """Operands of the epilogue, in float64, broadcast over the output's axes."""
    axes, result = op.meaning.output.axes(op.all_options()), {}
    for name, own in op.epilogue_operands.items():
        values = np.asarray(inputs[name], np.float64)
        for cut, rows in op.meaning.ends.items():
            if own[0] in op.meaning.ends_of_groups:  # each row has its group's
                values, own = values[_groups_of(inputs[cut], inputs["x"].shape[0])], (rows, *own[1:])
        result[name] = values.reshape([values.shape[own.index(axis)] if axis in own else 1 for axis in axes])
    return result


def _groups_of(ends: Array, rows: int) -> NDArray[np.intp]:
    """The group of each row; rows behind the last end are of the last one."""
    reached = np.maximum.accumulate(np.asarray(ends, np.int64))
    return np.minimum(np.searchsorted(reached, np.arange(rows), side="right"), len(reached) - 1)


def _as_stored(op: Op, value: Any) -> Any:
    """A result with the axes of the output's first layout, as the op stores it."""
    output = op.meaning.output
    stored, first = output.axes(op.all_options()), next(iter(output.layouts.values()))
    return value if stored == first else np.asarray(value).transpose([first.index(axis) for axis in stored])


def _wide(op: Op, inputs: Mapping[str, Array]) -> dict[str, NDArray[np.float64]]:
    """Inputs in float64 with the axes of their first layout."""
    options, result = op.all_options(), {}
    for operand in op.meaning.inputs:
        stored, first = operand.axes(options), next(iter(operand.layouts.values()))
        result[operand.name] = np.asarray(inputs[operand.name], np.float64).transpose([stored.index(axis) for axis in first])
    return result
