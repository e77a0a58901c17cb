"""Checks of a CUDA kernel before it is timed: small ragged products, and rows of the op's own extents."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.isolate.answers import Refusal
from haotuner.microkernels.cuda.launch import Launch
from haotuner.ops.dtypes import DTYPE_BYTES, DTYPES
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

ALIGNED_BYTES = 16  # rows of x are so many bytes apart, times something: what every kernel takes
COLUMNS = 48  # of the op's own extents that are compared; a reference of all of them takes seconds
PARTS = 3  # of the sum, in one of the cases
DEEP_GROUPS = 2  # of the op's own extents: all of them may be gigabytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One product: extents, whether on small whole numbers (no error is allowed), with bias, and the sum in parts."""

    op: Op
    m: int
    whole: bool = False
    bias: bool = False
    splits: int = 1
    columns: int = 0  # that are compared, 0 for all
    ends: tuple[int, ...] = ()  # of groups of rows, each with a matrix of its own

    @property
    def n(self) -> int:
        """Columns of y."""
        return self.op["n"]

    @property
    def k(self) -> int:
        """Terms of the sum."""
        return self.op["k"]

    @property
    def written(self) -> str:
        """Element type of y."""
        return self.op.dtype_of(self.op.meaning.output)

    def inputs(self, rng: np.random.Generator) -> dict[str, NDArray[Any]]:
        """x, weight and perhaps bias."""
        result = numerics.draw(self.op, Shape.of(m=self.m), rng, whole=self.whole)
        if self.ends:
            result["offsets"] = np.array(self.ends, np.int32)
        if self.bias:
            size = (len(self.ends), self.n) if self.ends else self.n
            result["bias"] = rng.integers(-numerics.WHOLE, numerics.WHOLE + 1, size).astype(
                numerics.numpy_dtype(self.op.dtype)
            )
        return result

    def padded(self, rng: np.random.Generator) -> NDArray[Any]:
        """Room for x with NaN (of bytes the largest) between its rows, which are whole vectors of any kernel apart."""
        step = ALIGNED_BYTES // DTYPE_BYTES[self.op.dtype]
        columns, dtype = (-(-self.k // step) + 1) * step, numerics.numpy_dtype(self.op.dtype_of(self.op.meaning.inputs[0]))
        return np.full((self.m, columns), numerics.unread(dtype), dtype)


def drawn(elements: int, dtype: str) -> NDArray[Any]:
    """Numbers to time with: standard normal, or any bytes; over and over where there are many."""
    rng, element_type, count = np.random.default_rng(0), DTYPES[dtype], min(elements, 1 << 20)
    if element_type.size == 1:
        values: NDArray[Any] = rng.integers(element_type.low, element_type.high + 1, count)
    else:
        values = rng.standard_normal(count, dtype=np.float32)
    return np.resize(values.astype(numerics.numpy_dtype(dtype)), elements)


def cases(op: Op, launch: Launch, depth: int) -> Iterator[Case]:
    """Small ragged products around one kernel's tile; ``depth``: elements of k in a step."""
    step = launch.vector if not launch.maps else max(launch.vector, ALIGNED_BYTES // DTYPE_BYTES[op.dtype])
    ragged = 1 if op.option("weight") != "kn" else step
    last = step * (max(depth // step, 1) - 1) or step  # a last step that is not whole, where there is such a thing

    if launch.groups:
        yield from _grouped_cases(op, launch, depth, ragged, last)
        return

    def small(n: int, k: int) -> Op:
        return replace(op, static=(("n", n), ("k", k)))

    wide = launch.tile_n + ragged
    plain = not op.epilogue  # it has its own bias
    bias = plain and op.sums == "fp32"  # sums of bytes stay as they are
    yield Case(op=small(wide, 2 * depth + last), m=launch.tile_m + 1, whole=plain, bias=bias)
    yield Case(op=small(max(launch.tile_n // step * step, step), depth), m=1)
    if launch.splits:
        yield Case(op=small(wide, PARTS * depth + last), m=max(1, launch.tile_m - 1), splits=PARTS, bias=bias, whole=plain)


def _grouped_cases(op: Op, launch: Launch, depth: int, ragged: int, last: int) -> Iterator[Case]:
    """Groups under, of and over a tile, empty ones among them; all rows in one of many; one row; a last step not whole."""
    m = 2 * launch.tile_m + 3
    cuts = ((0, 1, launch.tile_m + 2, launch.tile_m + 2, m), (0, 0, m, m))
    for index, ends in enumerate((*cuts, (1,))):
        n, k = launch.tile_n + ragged, 2 * depth + last
        if op.option("weight") == "kn" and launch.maps:
            k = 3 * depth  # whole steps: see the families
        small = replace(op, static=(("g", len(ends)), ("n", n), ("k", k)))
        own = not op.epilogue  # else it has its own bias, perhaps, and steps behind it
        yield Case(op=small, m=ends[-1], whole=own and index == 0, bias=own and index < 2, ends=ends)


def deep_case(op: Op, launch: Launch) -> Case:
    """The op's own n and k, one tile of rows, some columns of which are compared."""
    static, m = dict(op.static), min(launch.tile_m, 16)
    if launch.groups:
        groups = min(static["g"], DEEP_GROUPS)
        own = replace(op, static=(("g", groups), *((axis, static[axis]) for axis in ("n", "k"))))
        return Case(op=own, m=m, columns=COLUMNS, ends=(m // 2, m)[-groups:])
    own = replace(op, static=tuple((axis, static[axis]) for axis in ("n", "k")))
    return Case(op=own, m=m, columns=COLUMNS)


def check(case: Case, inputs: Mapping[str, NDArray[Any]], output: numerics.Guarded) -> float:
    """The largest error as a share of the tolerance; Refusal for wrong numbers and for a write outside the output."""
    op, result, weight = case.op, output.inner, inputs["weight"]
    kn = op.option("weight") == "kn"
    picked = np.arange(case.n)
    if case.columns and case.n > case.columns:
        picked = np.unique(np.linspace(0, case.n - 1, case.columns).round().astype(int))
        weight = weight[..., picked] if kn else weight[..., picked, :]
        op = replace(op, static=tuple((axis, len(picked) if axis == "n" else extent) for axis, extent in op.static))
    operands = {**inputs, "weight": weight}
    operands |= {name: inputs[name][..., picked] for name in op.epilogue_operands}
    want = numerics.reference(op, operands)
    exact = case.whole and op.dtype == case.written == "fp32"
    allowed = 0.0 if exact else numerics.tolerance(op, operands, want)
    if case.bias:
        bias = np.asarray(inputs["bias"], np.float64)[..., picked]
        if case.ends:  # that of each row's group
            bias = np.repeat(bias, np.diff(case.ends, prepend=0), axis=0)
        want = want + bias
        allowed = (
            allowed if exact else allowed + np.finfo(np.float32).eps * np.abs(want) + _step(case.written) * np.abs(want)
        )
    verdict = numerics.compare(result[:, picked], want, allowed)
    where = f"m={case.m} n={case.n} k={case.k} parts={case.splits}"
    if verdict.wrong:
        raise Refusal("verify", "wrong", f"{where}: {verdict}")
    if output.touched():
        raise Refusal("verify", "out_of_bounds", f"{where}: wrote outside the output")
    return verdict.worst


def _step(dtype: str) -> float:
    return DTYPES[dtype].eps
