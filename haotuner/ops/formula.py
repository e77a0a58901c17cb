"""Formulas: what an element of an output is, as a small tree of loads, arithmetic and reductions.

A kind with a formula has its reference for free (``evaluate``, numpy in float64), and families can make programs from it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from haotuner.ops.functions import FUNCTIONS, REDUCTIONS


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
