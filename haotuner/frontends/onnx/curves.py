"""The angle of a point, and what rules share that are made of several functions."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import pi
from typing import TypeAlias

from haotuner.frontends.onnx.constant_folding import ConstantFolding

Curve: TypeAlias = Callable[..., str]  # a builder and names of tensors -> the name of the result


def in_floats(curve: Curve) -> Curve:
    """Halves are computed as floats: a square of them would overflow, and every step would be rounded."""

    @wraps(curve)
    def found(g: ConstantFolding, *inputs: str) -> str:
        own = g.types[inputs[0]].dtype
        if own in ("fp32", "fp64"):
            return curve(g, *inputs)
        return g.add("cast", curve(g, *(g.add("cast", operand, dtype="fp32") for operand in inputs)), dtype=own)

    return found


def less_from(g: ConstantFolding, number: float, x: str) -> str:
    """The number less x."""
    return g.map("sub", g.constant(number, g.types[x].dtype), x)


def polynomial(g: ConstantFolding, x: str, coefficients: tuple[float, ...]) -> str:
    """The first is that of the highest power."""
    result = g.constant(coefficients[0], g.types[x].dtype)
    for coefficient in coefficients[1:]:
        result = g.map("add", g.map("mul", result, x), coefficient)
    return result


def signed(g: ConstantFolding, size: str, x: str) -> str:
    """With the sign of x; 0 where x is."""
    return g.map("select", g.map("less", x, 0), g.map("neg", size), size)


@in_floats
def atan2(g: ConstantFolding, y: str, x: str) -> str:
    """The angle of a point; 0 of the origin."""
    high, wide = g.map("abs", y), g.map("abs", x)
    more, less = g.map("max", high, wide), g.map("min", high, wide)
    flat = g.map("atan", g.map("div", less, g.map("select", g.map("equal", more, 0), 1, more)))
    up = g.map("select", g.map("greater", high, wide), less_from(g, pi / 2, flat), flat)
    return signed(g, g.map("select", g.map("less", x, 0), less_from(g, pi, up), up), y)
