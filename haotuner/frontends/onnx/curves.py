"""Arcs, hyperbolic functions and logarithms near 1, of the functions that kernels have; digits of tiny numbers are kept.

A compiler may join sums in another order, so no rule takes 1 away from a sum with 1 to find what rounding has lost.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import wraps
from math import log, pi
from typing import TypeAlias

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.node_context import Rule

Curve: TypeAlias = Callable[..., str]  # a builder and names of tensors -> the name of the result

# atan(x) = x + x z P(z) / Q(z), z = x^2, up to 0.66: Cephes' atan.c (Moshier), right to 2e-16.
_ATAN_P = (-8.750608600031904122785e-1, -1.615753718733365076637e1, -7.500855792314704667340e1, -1.228866684490136173410e2,
           -6.485021904942025371773e1)  # fmt: skip
_ATAN_Q = (1.0, 2.485846490142306297962e1, 1.650270098316988542046e2, 4.328810604912902668951e2, 4.853903996359136964868e2,
           1.945506571482613964425e2)  # fmt: skip
_STEEP = 2.41421356237309504880  # tan(3 pi / 8)
_HUGE = 1e9  # from here on x^2 + 1 is x^2


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
def atan(g: ConstantFolding, x: str) -> str:
    """The angle of a slope."""
    a = g.map("abs", x)
    steep, some = g.map("greater", a, _STEEP), g.map("greater", a, 0.66)
    turned = g.map("div", g.map("sub", a, 1), g.map("add", a, 1))
    inverse = g.map("neg", g.map("reciprocal", g.map("select", steep, a, 1)))
    small = g.map("select", steep, inverse, g.map("select", some, turned, a))
    z = g.map("mul", small, small)
    share = g.map("div", polynomial(g, z, _ATAN_P), polynomial(g, z, _ATAN_Q))
    near = g.map("add", g.map("mul", small, g.map("mul", z, share)), small)
    own = g.types[x].dtype
    start = g.map("select", some, g.constant(pi / 4, own), g.constant(0, own))
    return signed(g, g.map("add", g.map("select", steep, g.constant(pi / 2, own), start), near), x)


@in_floats
def asin(g: ConstantFolding, x: str) -> str:
    """2 atan(x / (1 + sqrt(1 - x^2)))."""
    root = g.map("sqrt", g.map("mul", less_from(g, 1, x), g.map("add", x, 1)))
    return g.map("mul", atan(g, g.map("div", x, g.map("add", root, 1))), 2)


@in_floats
def acos(g: ConstantFolding, x: str) -> str:
    """2 atan(sqrt((1 - x) / (1 + x)))."""
    return g.map("mul", atan(g, g.map("sqrt", g.map("div", less_from(g, 1, x), g.map("add", x, 1)))), 2)


@in_floats
def atan2(g: ConstantFolding, y: str, x: str) -> str:
    """The angle of a point; 0 of the origin."""
    high, wide = g.map("abs", y), g.map("abs", x)
    more, less = g.map("max", high, wide), g.map("min", high, wide)
    flat = atan(g, g.map("div", less, g.map("select", g.map("equal", more, 0), 1, more)))
    up = g.map("select", g.map("greater", high, wide), less_from(g, pi / 2, flat), flat)
    return signed(g, g.map("select", g.map("less", x, 0), less_from(g, pi, up), up), y)


@in_floats
def log1p(g: ConstantFolding, x: str) -> str:
    """log(1 + x): near 0 the series of 2 atanh(x / (2 + x))."""
    s = g.map("div", x, g.map("add", x, 2))
    terms = 10 if g.types[x].dtype == "fp64" else 5
    series = polynomial(g, g.map("mul", s, s), tuple(2 / (2 * k + 1) for k in reversed(range(terms))))
    return g.map("select", g.map("less", g.map("abs", x), 0.25), g.map("mul", s, series), g.map("log", g.map("add", x, 1)))


@in_floats
def expm1(g: ConstantFolding, x: str) -> str:
    """exp(x) - 1: near 0 it is 2 t / (1 - t), t = tanh(x / 2)."""
    t = g.map("tanh", g.map("mul", x, 0.5))
    near = g.map("div", g.map("add", t, t), less_from(g, 1, t))
    return g.map("select", g.map("less", g.map("abs", x), 1), near, g.map("sub", g.map("exp", x), 1))


@in_floats
def sinh(g: ConstantFolding, x: str) -> str:
    """(exp(x) - exp(-x)) / 2."""
    return g.map("mul", g.map("sub", expm1(g, x), expm1(g, g.map("neg", x))), 0.5)


@in_floats
def cosh(g: ConstantFolding, x: str) -> str:
    """(exp(x) + exp(-x)) / 2."""
    return g.map("mul", g.map("add", g.map("exp", x), g.map("exp", g.map("neg", x))), 0.5)


@in_floats
def asinh(g: ConstantFolding, x: str) -> str:
    """log(x + sqrt(x^2 + 1)) of the size, which is log1p(x + x^2 / (1 + sqrt(x^2 + 1)))."""
    a = g.map("abs", x)
    tame = g.map("min", a, _HUGE)
    root = g.map("sqrt", g.map("add", g.map("mul", tame, tame), 1))
    near = log1p(g, g.map("add", tame, g.map("mul", tame, g.map("div", tame, g.map("add", root, 1)))))
    size = g.map("select", g.map("less", a, _HUGE), near, g.map("add", g.map("log", a), log(2)))
    return signed(g, size, x)


@in_floats
def acosh(g: ConstantFolding, x: str) -> str:
    """log(x + sqrt(x^2 - 1)), which is log1p(t + sqrt(t) sqrt(t + 2)) of t = x - 1."""
    t = g.map("sub", g.map("min", x, _HUGE), 1)
    root = g.map("mul", g.map("sqrt", t), g.map("sqrt", g.map("add", t, 2)))  # NaN below 1, where t (t + 2) may be positive
    near = log1p(g, g.map("add", t, root))
    return g.map("select", g.map("greater", x, _HUGE), g.map("add", g.map("log", x), log(2)), near)


@in_floats
def atanh(g: ConstantFolding, x: str) -> str:
    """log((1 + x) / (1 - x)) / 2 of the size."""
    a = g.map("abs", x)
    return signed(g, g.map("mul", log1p(g, g.map("div", g.map("add", a, a), less_from(g, 1, a))), 0.5), x)


def _of_first(curve: Curve) -> Rule:
    return lambda c: curve(c.g, c.tensor(0))


CURVES: Mapping[str, Rule] = {
    "Atan": _of_first(atan), "Asin": _of_first(asin), "Acos": _of_first(acos), "Sinh": _of_first(sinh),
    "Cosh": _of_first(cosh), "Asinh": _of_first(asinh), "Acosh": _of_first(acosh), "Atanh": _of_first(atanh),
}  # fmt: skip
