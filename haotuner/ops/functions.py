"""Element-wise functions and reductions by name, each with the numpy that says what it means."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from math import erf
from typing import Any

import numpy as np

_erf = np.frompyfunc(erf, 1, 1)


def _real_erf(x: Any) -> Any:
    x = np.asarray(x)
    kind = x.dtype if x.dtype.kind == "f" else np.dtype(np.float64)
    return np.asarray(_erf(x.astype(np.float64)), np.float64).astype(kind)


def _sigmoid(x: Any) -> Any:
    x = np.asarray(x)
    with np.errstate(over="ignore"):  # exp of a large number is infinity, and 1 / infinity is the 0 that is meant
        return (1 / (1 + np.exp(-x))).astype(x.dtype)


def _remainder(x: Any, y: Any) -> Any:
    """The sign of the divisor, as in Python."""
    return np.mod(x, y)


def _power(x: Any, y: Any) -> Any:
    with np.errstate(all="ignore"):
        return np.power(x, y)


def _silent(function: Callable[..., Any]) -> Callable[..., Any]:
    """IEEE results without numpy's warnings: NaN and infinity are values."""

    def quiet(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return quiet


# In formulas and graphs alike. Comparisons give booleans; "select" is numpy's where.
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "add": _silent(operator.add),
    "sub": _silent(operator.sub),
    "mul": _silent(operator.mul),
    "div": _silent(operator.truediv),
    "floordiv": _silent(np.floor_divide),
    "mod": _silent(_remainder),
    "fmod": _silent(np.fmod),
    "pow": _power,
    "max": np.maximum,
    "min": np.minimum,
    "neg": operator.neg,
    "abs": np.abs,
    "sign": np.sign,
    "exp": _silent(np.exp),
    "log": _silent(np.log),
    "sqrt": _silent(np.sqrt),
    "rsqrt": _silent(lambda x: 1 / np.sqrt(x)),
    "reciprocal": _silent(lambda x: 1 / x),
    "erf": _real_erf,
    "tanh": np.tanh,
    "sigmoid": _sigmoid,
    "sin": _silent(np.sin),
    "cos": _silent(np.cos),
    "tan": _silent(np.tan),
    "asin": _silent(np.arcsin),
    "acos": _silent(np.arccos),
    "atan": _silent(np.arctan),
    "sinh": _silent(np.sinh),
    "cosh": _silent(np.cosh),
    "asinh": _silent(np.arcsinh),
    "acosh": _silent(np.arccosh),
    "atanh": _silent(np.arctanh),
    "log1p": _silent(np.log1p),
    "expm1": _silent(np.expm1),
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.round,
    "equal": operator.eq,
    "less": operator.lt,
    "less_equal": operator.le,
    "greater": operator.gt,
    "greater_equal": operator.ge,
    "and": np.logical_and,
    "or": np.logical_or,
    "xor": np.logical_xor,
    "not": np.logical_not,
    "bitand": np.bitwise_and,
    "bitor": np.bitwise_or,
    "bitxor": np.bitwise_xor,
    "isnan": np.isnan,
    "isinf": np.isinf,
    "select": np.where,
}
# Of real numbers; each takes many instructions.
TRANSCENDENTAL = frozenset(
    {"exp", "log", "erf", "tanh", "sigmoid", "pow", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "asinh"}
    | {"acosh", "atanh", "log1p", "expm1"}
)
COMPARISONS = frozenset(
    {"equal", "less", "less_equal", "greater", "greater_equal", "and", "or", "xor", "not", "isnan", "isinf"}
)

REDUCTIONS: Mapping[str, Any] = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}
