"""Weights and inputs that every contender gets alike, and the check of what comes back."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Array
from haotuner.bench.encoding import rounded
from haotuner.bench.images import weight_shape
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPES
from haotuner.spec import numerics
from haotuner.spec.op import Op

SAFETY = 8.0  # see `error_share`
DIRECT_FLOPS = 2**28  # element-by-element check: 5 ms of float64 arithmetic a result
EPS = float(np.finfo(np.float32).eps) / 2  # unit roundoff


def binds_weight(op: Op) -> bool:
    """Whether a server binds one operand and calls with the others."""
    return op.kind in ("dense", "grouped") or is_convolution(op.kind)


def _weight_shape(op: Op) -> tuple[int, ...]:
    if not binds_weight(op):
        return (1,)
    if op.kind == "grouped":
        return (op["g"], op["n"], op["k"])
    return weight_shape(op) if is_convolution(op.kind) else (op["n"], op["k"])


def draw_weights(op: Op, count: int, seed: int) -> list[Array]:
    """``count`` weights, of dense ``(n, k)``, each with memory of its own and differing from all others.

    One weight is drawn, the others are its elements moved on by one each: drawing 128 MB for every contender would take
    longer than the race.
    """
    size = _weight_shape(op)
    first = _drawn([seed, *size], size, op.dtype)
    return [rolled(first, index) for index in range(count)]


def rolled(values: NDArray[Any], index: int) -> NDArray[Any]:
    """The copy of that number: the elements moved on by so many, in memory of its own; the values themselves for 0."""
    return np.roll(values.ravel(), index).reshape(values.shape) if index else values


def draw_x(op: Op, m: int, seed: int) -> Array:
    """Input ``(m, k)``."""
    return _drawn([seed, m, op["k"]], (m, op["k"]), op.dtype_of(op.meaning.operands[0]))


def _drawn(seed: list[int], size: tuple[int, ...], dtype: str) -> Array:
    """Standard normal; of integers over most of their range."""
    values = np.random.default_rng(seed).standard_normal(size, dtype=np.float32)
    element_type = DTYPES[dtype]
    if not element_type.eps:
        values = values * np.float32((element_type.high - element_type.low) / 8) + np.float32(
            (element_type.high + element_type.low + 1) / 2
        )
    return rounded(values, dtype)


def error_share(x: Array, weight: Array, y: Array, dtype: str = "fp32") -> float:
    """Largest error of ``y = x @ weight.T`` as a share of what sums in fp32 may leave; over 1 (or inf) is wrong.

    As many rows as fit in ``DIRECT_FLOPS``, the first and the last among them, go before the judge, element by element. All
    rows are compared through a product with a random sign vector (Freivalds 1977) in float64. Their bound is
    ``8 sqrt(k) u |x_i| |w|`` (norms; u is the unit roundoff): the growth with sqrt(k) is the probabilistic one of Higham and
    Mary (2019, theorem 3.1). Both are narrow enough to refuse bf16 or tf32 products.
    """
    if y.shape != (x.shape[0], weight.shape[0]) or not np.isfinite(y).all():
        return math.inf
    m, k = x.shape
    n = weight.shape[0]
    x64, w64 = x.astype(np.float64), weight.astype(np.float64)
    x_norm, w_norm = np.linalg.norm(x64, axis=1), np.linalg.norm(w64, axis=1)
    scale = SAFETY * math.sqrt(k) * EPS
    if not DTYPES[dtype].eps:  # sums of integers are exact, and as fp64 still
        return 0.0 if np.array_equal(y.astype(np.float64), x64 @ w64.T) else math.inf
    own = SAFETY * DTYPES[dtype].eps / 2 if dtype != "fp32" else 0.0  # rounding of the results themselves
    rng = np.random.default_rng(m)
    rows = _some_rows(m, max(2, DIRECT_FLOPS // (2 * n * k)), rng)
    verdict = numerics.check(
        Op(kind="dense", static=(("n", n), ("k", k)), dtype=dtype), {"x": x[rows], "weight": weight}, y[rows]
    )
    signs = rng.choice((-1.0, 1.0), n)
    bound = scale * x_norm * np.linalg.norm(w_norm) + own * np.linalg.norm(y.astype(np.float64), axis=1)
    whole = np.abs(y @ signs - x64 @ (signs @ w64)) / bound
    return float(max(verdict.worst, whole.max()))


def _some_rows(m: int, most: int, rng: np.random.Generator) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if m <= most:
        return np.arange(m)
    between = rng.choice(np.arange(1, m - 1), most - 2, replace=False)
    return np.sort(np.concatenate(([0, m - 1], between)))
