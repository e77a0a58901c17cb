"""Arithmetic of a request's sizes, by name: whole numbers of 64 bits, and real numbers in the element types of files.

A model computes a size as its file says: in float32 each step is rounded, int8 wraps. ``ht_size_value`` of the runtime
computes the same. Real numbers are doubles between steps. Behind +, -, *, / or a root of numbers of a narrower type comes a
rounding to that type: it gives what the type's own arithmetic gives (Figueroa, "When is double rounding innocuous?", 1995).
"""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from haotuner.errors import UsageError

REAL, WHOLE = "real", "whole"


@dataclass(frozen=True, slots=True)
class Operation:
    """``compute``: the result, of as many operands as ``of`` has kinds; each is ``REAL`` or ``WHOLE``, as is ``gives``."""

    compute: Callable[..., Any]
    of: tuple[str, ...]
    gives: str


def truncated(value: int, other: int) -> int:
    """A quotient cut towards 0, as C and ONNX divide whole numbers. ZeroDivisionError."""
    parts = abs(value) // abs(other)
    return parts if (value < 0) == (other < 0) else -parts


def _whole(value: float) -> int:
    if not -(2.0**63) < value < 2.0**63:
        raise UsageError(f"a size of {value}: no whole number of 64 bits; the model takes no such request")
    return int(value)


def _ratio(value: float, other: float) -> float:
    if other == 0:
        return math.nan if value == 0 or value != value else math.copysign(math.inf, value)
    return value / other


def _to_float(code: str) -> Callable[[float], float]:
    """The nearest number of a type of ``struct``; ties to the even one."""

    def rounded(value: float) -> float:
        try:
            return float(struct.unpack(code, struct.pack(code, value))[0])
        except OverflowError:
            return math.copysign(math.inf, value)

    return rounded


def _to_bf16(value: float) -> float:
    """Through float32, the nearest number whose last 16 bits are 0; ties to the even one."""
    narrow = _TO_FP32(value)
    if not math.isfinite(narrow):
        return narrow
    (bits,) = struct.unpack("<I", struct.pack("<f", narrow))
    return float(struct.unpack("<f", struct.pack("<I", (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000))[0])


def _wrapped(bits: int, *, signed: bool) -> Callable[[int], int]:
    low = -(1 << bits - 1) if signed else 0
    return lambda value: (value - low) % (1 << bits) + low


def _of_finite(function: Callable[[float], int]) -> Callable[[float], float]:
    return lambda value: float(function(value)) if math.isfinite(value) else value


def _largest(value: float, other: float) -> float:
    return math.nan if value != value or other != other else max(value, other)


def _smallest(value: float, other: float) -> float:
    return math.nan if value != value or other != other else min(value, other)


_TO_FP32 = _to_float("<f")
_PLAIN: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "max": max, "min": min,
}  # fmt: skip
_REAL: Mapping[str, Callable[..., float]] = {
    "real_add": operator.add, "real_sub": operator.sub, "real_mul": operator.mul, "real_div": _ratio,
    "real_max": _largest, "real_min": _smallest,
}  # fmt: skip
_OF_ONE: Mapping[str, Callable[[float], float]] = {
    "real_floor": _of_finite(math.floor),
    "real_ceil": _of_finite(math.ceil),
    "real_round": _of_finite(round),
    "real_sqrt": lambda value: math.sqrt(value) if value >= 0 else math.nan,
    "to_fp32": _TO_FP32,
    "to_fp16": _to_float("<e"),
    "to_bf16": _to_bf16,
}
# What expressions of dimensions have no sign for. The order is that of the C: SIZE_QUOTIENT and so on.
TYPED: Mapping[str, Operation] = {
    "quotient": Operation(truncated, (WHOLE, WHOLE), WHOLE),
    "real": Operation(float, (WHOLE,), REAL),
    "whole": Operation(_whole, (REAL,), WHOLE),
    **{name: Operation(compute, (REAL, REAL), REAL) for name, compute in _REAL.items()},
    **{name: Operation(compute, (REAL,), REAL) for name, compute in _OF_ONE.items()},
    **{
        f"to_{'int' if signed else 'uint'}{bits}": Operation(_wrapped(bits, signed=signed), (WHOLE,), WHOLE)
        for signed in (True, False)
        for bits in (8, 16, 32)
    },
}
OPERATIONS: Mapping[str, Operation] = {
    **{name: Operation(compute, (WHOLE, WHOLE), WHOLE) for name, compute in _PLAIN.items()},
    **TYPED,
    "capacity": Operation(int, (WHOLE,), WHOLE),  # rows of a cache; in a buffer those that it has room for
}
