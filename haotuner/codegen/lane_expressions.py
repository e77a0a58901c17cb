"""Arithmetic of one lane: expressions that vector functions are written in, for two printers.

A printer binds every expression to a variable, so that one which is used twice is computed once. Nothing branches:
``select`` computes both of its values. Types: ``fp32``, ``fp64``, ``int32``, ``uint64``, and ``bool`` of comparisons.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

ROUNDERS = {"fp32": 1.5 * 2.0**23, "fp64": 1.5 * 2.0**52}  # added to a number, they leave a whole one in its lowest bits


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """A function of lanes, a constant, or an argument; ``number``: the constant, the argument's index, or a shift's bits."""

    function: str
    dtype: str
    arguments: tuple[Lane, ...] = ()
    number: float | int = 0

    def __add__(self, other: Operand) -> Lane:
        return _of_two("add", self, other)

    def __radd__(self, other: float) -> Lane:
        return _of_two("add", constant(other, self.dtype), self)

    def __sub__(self, other: Operand) -> Lane:
        return _of_two("sub", self, other)

    def __rsub__(self, other: float) -> Lane:
        return _of_two("sub", constant(other, self.dtype), self)

    def __mul__(self, other: Operand) -> Lane:
        return _of_two("mul", self, other)

    def __truediv__(self, other: Operand) -> Lane:
        return _of_two("div", self, other)

    def __rtruediv__(self, other: float) -> Lane:
        return _of_two("div", constant(other, self.dtype), self)

    def __and__(self, other: Operand) -> Lane:
        return _of_two("bitand", self, other)

    def __or__(self, other: Operand) -> Lane:
        return _of_two("bitor", self, other)

    def __xor__(self, other: Operand) -> Lane:
        return _of_two("bitxor", self, other)

    def __lshift__(self, count: int) -> Lane:
        return Lane("shift_left", self.dtype, (self,), count)

    def __rshift__(self, count: int) -> Lane:
        """Of ``int32`` with the sign, of ``uint64`` with zeros."""
        return Lane("shift_right", self.dtype, (self,), count)

    def __lt__(self, other: Operand) -> Lane:
        return _of_two("less", self, other, "bool")

    def __gt__(self, other: Operand) -> Lane:
        return _of_two("greater", self, other, "bool")


Operand: TypeAlias = Lane | float | int


def _of_two(function: str, first: Lane, other: Operand, dtype: str = "") -> Lane:
    second = other if isinstance(other, Lane) else constant(other, first.dtype)
    assert first.dtype == second.dtype, (function, first.dtype, second.dtype)
    return Lane(function, dtype or first.dtype, (first, second))


def constant(number: float, dtype: str) -> Lane:
    """A number that every lane has."""
    return Lane("constant", dtype, (), number)


def argument(index: int) -> Lane:
    """The ``index``-th argument of a function of fp32."""
    return Lane("argument", "fp32", (), index)


def cast(x: Lane, dtype: str) -> Lane:
    """A number in another type."""
    return Lane("cast", dtype, (x,))


def bits(x: Lane) -> Lane:
    """Bits of a float as ``int32``, of a double as ``uint64``."""
    return Lane("bits", {"fp32": "int32", "fp64": "uint64"}[x.dtype], (x,))


def from_bits(x: Lane) -> Lane:
    """The number that has these bits."""
    return Lane("from_bits", {"int32": "fp32", "uint64": "fp64"}[x.dtype], (x,))


def fused(a: Lane, b: Operand, c: Operand) -> Lane:
    """A b + c, rounded once where the processor does it."""
    b, c = (value if isinstance(value, Lane) else constant(value, a.dtype) for value in (b, c))
    return Lane("fused", a.dtype, (a, b, c))


def select(condition: Lane, value: Operand, other: Operand) -> Lane:
    """``value`` where the condition holds."""
    dtype = next(item.dtype for item in (value, other) if isinstance(item, Lane))
    value, other = (item if isinstance(item, Lane) else constant(item, dtype) for item in (value, other))
    return Lane("select", dtype, (condition, value, other))


def equal(a: Lane, b: Operand) -> Lane:
    """Truth of a comparison."""
    return _of_two("equal", a, b, "bool")


def is_nan(x: Lane) -> Lane:
    """True of NaN."""
    return Lane("is_nan", "bool", (x,))


def sqrt(x: Lane) -> Lane:
    """The square root."""
    return Lane("sqrt", x.dtype, (x,))


def magnitude(x: Lane) -> Lane:
    """The number without its sign."""
    return Lane("abs", x.dtype, (x,))


def sign_of(x: Lane) -> Lane:
    """The sign bit of a float, alone."""
    return bits(x) & -(2**31)


def with_sign(value: Lane, sign: Lane) -> Lane:
    """A float that is not negative, with a sign bit."""
    return from_bits(bits(value) | sign)


def shifted(x: Lane) -> Lane:
    """The number, rounded to a whole one, plus the number of ``ROUNDERS``; in its lowest bits lies the whole one."""
    return fused(x, 1.0, ROUNDERS[x.dtype])


def nearest(x: Lane) -> Lane:
    """The nearest whole number; right up to half of the mantissa's range."""
    return shifted(x) - ROUNDERS[x.dtype]


def polynomial(coefficients: tuple[float, ...], x: Lane) -> Lane:
    """Horner's rule; the constant term is first."""
    result = constant(coefficients[-1], x.dtype)
    for coefficient in reversed(coefficients[:-1]):
        result = fused(result, x, coefficient)
    return result


def in_order(result: Lane) -> list[Lane]:
    """Every expression of one, each after those that it is made of."""
    order: dict[int, Lane] = {}

    def visit(lane: Lane) -> None:
        if id(lane) not in order:
            for operand in lane.arguments:
                visit(operand)
            order[id(lane)] = lane

    visit(result)
    return list(order.values())
