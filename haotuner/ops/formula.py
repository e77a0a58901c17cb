"""Formulas: an element of an output as a small tree of loads, functions and reductions, each with numpy's meaning.

A kind with a formula has its reference for free (``evaluate``, numpy in float64), and families can make programs from it.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from math import erf
from typing import Any, TypeAlias

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


@dataclass(frozen=True, slots=True)
class Load:
    """An element of an operand, at the axes that it has."""

    operand: str


@dataclass(frozen=True, slots=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True, slots=True)
class Size:
    """The extent of an axis, as a number."""

    axis: str


@dataclass(frozen=True, slots=True)
class Apply:
    """An element-wise function; a key of ``functions.FUNCTIONS``."""

    function: str
    arguments: tuple[Formula, ...]


@dataclass(frozen=True, slots=True)
class Reduce:
    """A reduction over one axis: a key of ``functions.REDUCTIONS``."""

    how: str
    axis: str
    of: Formula


Formula: TypeAlias = Load | Number | Size | Apply | Reduce


def evaluate(
    formula: Formula, inputs: Mapping[str, Any], axes: Mapping[str, tuple[str, ...]], output: tuple[str, ...]
) -> Any:
    """The formula over whole arrays, with the axes of ``output`` in that order.

    Args:
        formula: what an element is.
        inputs: arrays by operand.
        axes: axes of each operand, outermost first.
        output: axes of the result; each is one of some operand.
    """
    order = tuple(dict.fromkeys([*output, *(axis for names in axes.values() for axis in names)]))

    def spread(name: str) -> Any:
        """An operand with every axis of ``order``, of extent 1 where it has none."""
        array, own = np.asarray(inputs[name]), axes[name]
        array = array.transpose([own.index(axis) for axis in order if axis in own])
        return array.reshape([inputs[name].shape[own.index(axis)] if axis in own else 1 for axis in order])

    def value(part: Formula) -> Any:
        if isinstance(part, Load):
            return spread(part.operand)
        if isinstance(part, Number):
            return np.float64(part.value)
        if isinstance(part, Size):
            return np.float64(extents[part.axis])
        if isinstance(part, Reduce):
            return REDUCTIONS[part.how].reduce(value(part.of), axis=order.index(part.axis), keepdims=True)
        return FUNCTIONS[part.function](*(value(argument) for argument in part.arguments))

    extents = {axis: np.asarray(inputs[name]).shape[at] for name, own in axes.items() for at, axis in enumerate(own)}
    result = value(formula)
    whole = np.broadcast_to(result, [extents[axis] if axis in output else 1 for axis in order])
    return whole.reshape([extents[axis] for axis in output])


def elementwise(formula: Formula, inputs: Mapping[str, Any]) -> Any:
    """A formula of loads, numbers and functions alone; ``inputs``: arrays of one shape, or that broadcast, by operand."""
    if isinstance(formula, Load):
        return inputs[formula.operand]
    if isinstance(formula, Number):
        return np.float64(formula.value)
    if isinstance(formula, Apply):
        return FUNCTIONS[formula.function](*(elementwise(argument, inputs) for argument in formula.arguments))
    raise ValueError(f"{formula} is no function of one element")


def parts(formula: Formula) -> Iterator[Formula]:
    """The formula and everything in it, inner parts first."""
    if isinstance(formula, Apply):
        for argument in formula.arguments:
            yield from parts(argument)
    elif isinstance(formula, Reduce):
        yield from parts(formula.of)
    yield formula


def reductions(formula: Formula) -> tuple[Reduce, ...]:
    """Its reductions, each once, in an order in which each can be computed from those before it."""
    return tuple(dict.fromkeys(part for part in parts(formula) if isinstance(part, Reduce)))


def apply(function: str, *arguments: Formula | float) -> Apply:
    """An element-wise function of formulas and numbers."""
    return Apply(
        function, tuple(Number(argument) if isinstance(argument, (int, float)) else argument for argument in arguments)
    )


def mean(axis: str, of: Formula) -> Apply:
    """The sum over an axis, divided by its extent."""
    return apply("div", Reduce("sum", axis, of), Size(axis))
