"""Arcs, hyperbolic and error functions, of the functions that kernels have."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from math import pi, sqrt
from typing import TypeAlias

import numpy as np

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


# erfc(x) = exp(-x^2) P(x) / Q(x) from 1 to 8, R / S from there on: Cephes' ndtr.c (Moshier), right to 4e-16.
_P = (2.46196981473530512524e-10, 5.64189564831068821977e-1, 7.46321056442269912687, 4.86371970985681366614e1,
      1.96520832956077098242e2, 5.26445194995477358631e2, 9.34528527171957607540e2, 1.02755188689515710272e3,
      5.57535335369399327526e2)  # fmt: skip
_Q = (1.0, 1.32281951154744992508e1, 8.67072140885989742329e1, 3.54937778887819891062e2, 9.75708501743205489753e2,
      1.82390916687909736289e3, 2.24633760818710981792e3, 1.65666309194161350182e3, 5.57535340817727675546e2)  # fmt: skip
_R = (5.64189583547755073984e-1, 1.27536670759978104416, 5.01905042251180477414, 6.16021097993053585195,
      7.40974269950448939160, 2.97886665372100240670)  # fmt: skip
_S = (1.0, 2.26052863220117276590, 9.39603524938001434673, 1.20489539808096656605e1, 1.70814450747565897222e1,
      9.60896809063285878198, 3.36907645100081516050)  # fmt: skip
_LARGE = 30.0  # erfc of it is 0 in every type; squares of larger ones could overflow

# A first guess of erfinv, inside 0.7 and beyond, and two steps of Newton's: torch's own (Math.h, calc_erfinv).
_INNER = (
    (-0.140543331, 0.914624893, -1.645349621, 0.886226899),
    (0.012229801, -0.329097515, 1.442710462, -2.118377725, 1.0),
)
_OUTER = ((1.641345311, 3.429567803, -1.624906493, -1.970840454), (1.637067800, 3.543889200, 1.0))
_INSIDE = 0.7


@in_floats
def erfc(g: ConstantFolding, x: str) -> str:
    """1 - erf(x), of which nothing is lost where it is small."""
    a = g.map("min", g.map("max", g.map("abs", x), 1), _LARGE)
    near = g.map("div", polynomial(g, a, _P), polynomial(g, a, _Q))
    far = g.map("div", polynomial(g, a, _R), polynomial(g, a, _S))
    share = g.map("select", g.map("less", a, 8), near, far)
    small = g.map("mul", g.map("exp", g.map("neg", g.map("mul", a, a))), share)
    beyond = g.map("select", g.map("less", x, 0), less_from(g, 2, small), small)
    inside = less_from(g, 1, g.map("erf", x))
    return g.map("select", g.map("greater", g.map("abs", x), 1), beyond, inside)


@in_floats
def erfinv(g: ConstantFolding, y: str) -> str:
    """Infinite at -1 and 1, NaN beyond."""
    own = g.types[y].dtype
    size = g.map("abs", y)
    square = g.map("mul", y, y)
    inner = g.map("div", g.map("mul", y, polynomial(g, square, _INNER[0])), polynomial(g, square, _INNER[1]))
    rest = g.map("mul", less_from(g, 1, g.map("select", g.map("less", size, 1), size, 0)), 0.5)
    z = g.map("sqrt", g.map("neg", g.map("log", rest)))
    outer = signed(g, g.map("div", polynomial(g, z, _OUTER[0]), polynomial(g, z, _OUTER[1])), y)
    x = g.map("select", g.map("greater", size, _INSIDE), outer, inner)
    for _ in range(2):
        slope = g.map("mul", g.map("exp", g.map("neg", g.map("mul", x, x))), 2 / sqrt(pi))
        x = g.map("sub", x, g.map("div", g.map("sub", g.map("erf", x), y), slope))
    ends = g.map("select", g.map("equal", size, 1), signed(g, g.constant(np.inf, own), y), g.constant(np.nan, own))
    return g.map("select", g.map("less", size, 1), x, ends)
