"""Element-wise functions of float32 without a branch, each at most 2 ulp off, for C loops and for TVM's programs.

NaN, infinities and zeros are those of C99's Annex F. What a float's digits do not carry is computed in float64: two
rounded steps are then one. ``BOUNDS`` is what tests hold, over all exponents and on every instruction set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from haotuner.codegen.lane_expressions import (
    ROUNDERS,
    Lane,
    argument,
    bits,
    cast,
    constant,
    equal,
    from_bits,
    fused,
    is_nan,
    magnitude,
    nearest,
    polynomial,
    select,
    shifted,
    sign_of,
    sqrt,
    with_sign,
)
from haotuner.codegen.math_coefficients import (
    ASIN,
    ATAN,
    ATANH,
    COS,
    COS_WIDE,
    EXP_WIDE,
    HALF_PI,
    LN2_HIGH,
    LN2_LOW,
    LN2_WIDE,
    LOG,
    LOG2_E,
    QUARTERS,
    SIN,
    SIN_WIDE,
    SQRT_HALF,
    TAN_EIGHTH,
)

INFINITY, NAN = float("inf"), float("nan")
LEAST_NORMAL = 2.0**-126
ONE = 0x3FF << 52  # bits of 1.0
BIAS = 1023


def _least(x: Lane, bound: float) -> Lane:
    """The smaller of x and a bound; NaN stays."""
    return select(x > bound, bound, x)


def _exponent_and_rest(x: Lane) -> tuple[Lane, Lane]:
    """Float k and m - 1 of a positive x = 2^k m, m from sqrt(1/2) to sqrt(2); subnormal numbers too."""
    tiny = x < LEAST_NORMAL
    scaled = bits(select(tiny, x * 2.0**23, x)) - 0x3F3504F3
    rest = from_bits((scaled & 0x007FFFFF) + 0x3F3504F3) - 1.0
    return cast(scaled >> 23, "fp32") - select(tiny, constant(23.0, "fp32"), 0.0), rest


def _logarithm_ends(x: Lane, result: Lane) -> Lane:
    """The logarithm's values of infinity, NaN, zeros and negative numbers."""
    result = select(x < INFINITY, result, x)
    result = select(x < 0.0, NAN, result)
    return select(equal(x, 0.0), -INFINITY, result)


def _tail(n: Lane, f: Lane) -> Lane:
    """log(2^n (1 + f)) without f and the larger part of n ln 2."""
    square = f * f
    return fused(n, LN2_LOW, fused(square, -0.5, square * f * polynomial(LOG, f)))


def log(x: Lane) -> Lane:
    """Natural logarithm: of the mantissa, plus the exponent times ln 2."""
    n, f = _exponent_and_rest(x)
    return _logarithm_ends(x, fused(n, LN2_HIGH, f + _tail(n, f)))


def log1p(x: Lane) -> Lane:
    """log(1 + x): of the rounded sum, and what it lost, over the sum."""
    total = x + 1.0
    n, f = _exponent_and_rest(total)
    lost = select(x < 1.0, x - (total - 1.0), 1.0 - (total - x)) / total
    result = fused(n, LN2_HIGH, f + (_tail(n, f) + lost))
    result = select(x < INFINITY, result, x)
    result = select(x < -1.0, NAN, result)
    result = select(equal(x, -1.0), -INFINITY, result)
    return select(equal(x, 0.0), x, result)


def _twice_atanh(f: Lane) -> Lane:
    """log(1 + f) of a double between sqrt(1/2) - 1 and sqrt(2) - 1: 2 atanh(f / (2 + f))."""
    s = f / (f + 2.0)
    square, twice = s * s, s + s
    return fused(square * polynomial(ATANH, square), twice, twice)


def _log_of_one_more(z: Lane) -> Lane:
    """log(1 + z) of a double that is greater than -1 and finite, right where z is small."""
    biased = (bits(z + 1.0) + (ONE - SQRT_HALF)) >> 52  # the exponent's bits, where the mantissa begins at sqrt(1/2)
    k = from_bits(biased | (0x433 << 52)) - float(2**52 + BIAS)
    scale = from_bits((constant(2 * BIAS, "uint64") - biased) << 52)  # 2^-k
    return fused(k, LN2_WIDE, _twice_atanh(fused(z, scale, scale - 1.0)))


def _power_and_rest(x: Lane) -> tuple[Lane, Lane]:
    """Double t, whose lowest bits are n, and r of x = n ln 2 + r."""
    t = shifted(x * LOG2_E)
    return t, fused(t - ROUNDERS["fp64"], -LN2_WIDE, x)


def _exp_wide(x: Lane) -> Lane:
    """e^x of a double of at most a few hundred, as a double."""
    t, r = _power_and_rest(x)
    e = polynomial((1.0, 1.0, *EXP_WIDE), r)
    return from_bits(bits(e) + (bits(t) << 52))


def _expm1_wide(x: Lane) -> Lane:
    """e^x - 1 of a double of at most a few hundred, as a double."""
    t, r = _power_and_rest(x)
    less = fused(r * r, polynomial(EXP_WIDE, r), r)
    power = from_bits((bits(t) << 52) + ONE)
    return fused(less, power, power - 1.0)


def expm1(x: Lane) -> Lane:
    """e^x - 1."""
    inside = select(x < -50.0, -50.0, _least(x, 100.0))
    result = cast(_expm1_wide(cast(inside, "fp64")), "fp32")
    return select(equal(x, 0.0), x, result)


def sinh(x: Lane) -> Lane:
    """(e^x - e^-x) / 2, of m = e^|x| - 1: (m + m / (m + 1)) / 2."""
    m = _expm1_wide(cast(_least(magnitude(x), 100.0), "fp64"))
    return with_sign(cast((m + m / (m + 1.0)) * 0.5, "fp32"), sign_of(x))


def cosh(x: Lane) -> Lane:
    """(e^x + e^-x) / 2."""
    e = _exp_wide(cast(_least(magnitude(x), 100.0), "fp64"))
    return cast((e + 1.0 / e) * 0.5, "fp32")


def asinh(x: Lane) -> Lane:
    """log(x + sqrt(x^2 + 1)) = log1p(x + x^2 / (1 + sqrt(x^2 + 1))) of the size."""
    size = magnitude(x)
    a = cast(size, "fp64")
    square = a * a
    result = cast(_log_of_one_more(a + square / (sqrt(square + 1.0) + 1.0)), "fp32")
    return with_sign(select(size < INFINITY, result, size), sign_of(x))


def acosh(x: Lane) -> Lane:
    """log(x + sqrt(x^2 - 1)) = log1p(t + sqrt(t (t + 2))) of t = x - 1."""
    t = cast(x, "fp64") - 1.0
    result = cast(_log_of_one_more(t + sqrt(t * (t + 2.0))), "fp32")
    result = select(x < INFINITY, result, x)
    return select(x < 1.0, NAN, result)


def atanh(x: Lane) -> Lane:
    """log((1 + x) / (1 - x)) / 2 of the size."""
    size = magnitude(x)
    a = cast(size, "fp64")
    result = cast(_log_of_one_more((a + a) / (1.0 - a)) * 0.5, "fp32")
    result = select(size < 1.0, result, select(equal(size, 1.0), constant(INFINITY, "fp32"), NAN))
    return with_sign(select(is_nan(x), size, result), sign_of(x))


def _quarter_turns(size: Lane) -> tuple[Lane, Lane]:
    """Quarter turns q, and what is left, of an angle in float64: x = q pi / 2 + r, of q its remainder by 4 (-2 to 2).

    Payne and Hanek's way (1983): of 2 / pi only the bits that matter for a range of exponents are multiplied, so that
    products are exact. Ranges are 25 exponents wide; the constants of one are selected.
    """
    x = cast(size, "fp64")
    (_, first), *others = QUARTERS
    chunks: list[Lane] = [constant(chunk, "fp64") for chunk in first]
    for begin, values in others:
        above = x < begin
        chunks = [select(above, chunk, value) for chunk, value in zip(chunks, values, strict=True)]
    high, low, rest = (x * chunk for chunk in chunks)
    whole_high, whole_low = nearest(high), nearest(low)
    high, low = high - whole_high, low - whole_low
    more = nearest(high + low)
    left = (high - more) + low + rest
    count = whole_high + whole_low + more
    return fused(nearest(count * 0.25), -4.0, count), left * HALF_PI


def _sine(z: Lane, r: Lane, coefficients: tuple[float, ...]) -> Lane:
    return fused(z * polynomial(coefficients, z), r, r)


def _cosine(z: Lane, coefficients: tuple[float, ...]) -> Lane:
    return fused(z * z, polynomial(coefficients, z), fused(z, -0.5, 1.0))


def _wave(x: Lane, *, cosine: bool) -> Lane:
    count, angle = _quarter_turns(magnitude(x))
    r, quarter = cast(angle, "fp32"), cast(count, "int32")
    z = r * r
    quadrant = quarter + int(cosine)
    value = select(equal(quadrant & 1, 0), _sine(z, r, SIN), _cosine(z, COS))
    sign = (quadrant & 2) << 30
    return from_bits(bits(value) ^ (sign if cosine else sign ^ sign_of(x)))


def sin(x: Lane) -> Lane:
    """Sine of an angle of any size."""
    return _wave(x, cosine=False)


def cos(x: Lane) -> Lane:
    """Cosine of an angle of any size."""
    return _wave(x, cosine=True)


def tan(x: Lane) -> Lane:
    """Sine over cosine, both in float64."""
    count, r = _quarter_turns(magnitude(x))
    z = r * r
    sine, cosine = _sine(z, r, SIN_WIDE), _cosine(z, COS_WIDE)
    even = equal(fused(nearest(count * 0.5), -2.0, count), 0.0)
    result = cast(select(even, sine, 0.0 - cosine) / select(even, cosine, sine), "fp32")
    return from_bits(bits(result) ^ sign_of(x))


def atan(x: Lane) -> Lane:
    """The angle of a slope: of x, (x - 1) / (x + 1) or -1 / x, which is at most tan(pi / 8)."""
    a = cast(magnitude(x), "fp64")
    steep, some = a > 1.0 / TAN_EIGHTH, a > TAN_EIGHTH
    top = select(steep, -1.0, select(some, a - 1.0, a))
    t = top / select(steep, a, select(some, a + 1.0, 1.0))
    square = t * t
    start = select(steep, constant(HALF_PI, "fp64"), select(some, constant(HALF_PI / 2, "fp64"), 0.0))
    return with_sign(cast(start + fused(square * polynomial(ATAN, square), t, t), "fp32"), sign_of(x))


def _arc(x: Lane) -> tuple[Lane, Lane, Lane]:
    """True where |x| is at most 1/2; and the arcsine of |x| there, elsewhere of sqrt((1 - |x|) / 2), in float64."""
    a = cast(magnitude(x), "fp64")
    near = a < 0.5
    square = select(near, a * a, (1.0 - a) * 0.5)
    s = select(near, a, sqrt(square))
    return near, fused(square * polynomial(ASIN, square), s, s), a


def asin(x: Lane) -> Lane:
    """Arcsine of -1 to 1; beyond 1/2 pi / 2 less twice that of sqrt((1 - x) / 2)."""
    near, arc, _ = _arc(x)
    return with_sign(cast(select(near, arc, HALF_PI - (arc + arc)), "fp32"), sign_of(x))


def acos(x: Lane) -> Lane:
    """Arccosine: pi / 2 less the arcsine; beyond 1/2 2 asin(sqrt((1 - x) / 2)), and pi less that of -x."""
    near, arc, _ = _arc(x)
    wide = cast(x, "fp64")
    middle = select(wide < 0.0, HALF_PI + arc, HALF_PI - arc)
    twice = arc + arc
    return cast(select(near, middle, select(wide < 0.0, 2 * HALF_PI - twice, twice)), "fp32")


def power(x: Lane, y: Lane) -> Lane:
    """x^y = 2^(y log2 |x|) in float64, and the sign of an odd power."""
    size, exponent = magnitude(x), magnitude(y)
    n, f = _exponent_and_rest(size)
    logarithm = fused(_twice_atanh(cast(f, "fp64")), LOG2_E, cast(n, "fp64"))
    logarithm = select(cast(size, "fp64") < INFINITY, logarithm, INFINITY)
    logarithm = select(equal(cast(size, "fp64"), 0.0), -INFINITY, logarithm)
    product = logarithm * cast(y, "fp64")
    inside = select(product < -200.0, -200.0, _least(product, 200.0))
    t = shifted(inside)
    e = polynomial((1.0, 1.0, *EXP_WIDE), (inside - (t - ROUNDERS["fp64"])) * LN2_WIDE)
    result = cast(from_bits(bits(e) + (bits(t) << 52)), "fp32")
    # From 2^23 on floats are whole, from 2^24 on even.
    raised = select(exponent < 2.0**23, exponent + 2.0**23, exponent)
    rounded = select(exponent < 2.0**23, raised - 2.0**23, exponent)
    of_less = select(equal(rounded, exponent), result, select(size < INFINITY, NAN, result))
    result = select(x < 0.0, of_less, result)
    parity = select(exponent < 2.0**24, bits(raised), 0) << 31
    result = from_bits(bits(result) | (select(equal(rounded, exponent), parity, 0) & sign_of(x)))
    result = select(is_nan(x), x, select(is_nan(y), y, result))
    result = select(equal(size, 1.0), select(equal(exponent, INFINITY), 1.0, result), result)
    return select(equal(x, 1.0), 1.0, select(equal(y, 0.0), 1.0, result))


PARTS = 28  # bits of a quotient that a step finds


def fmod(x: Lane, y: Lane) -> Lane:
    """The remainder with the sign of x, exactly: quotients of up to 277 bits in steps of 28, whose products are exact."""
    size, divisor = magnitude(x), magnitude(y)
    a, b = cast(size, "fp64"), cast(divisor, "fp64")
    inverse = 1.0 / b
    for step in reversed(range(10)):
        scale = 2.0 ** (PARTS * step)
        a = a - nearest(a * (inverse * (1.0 / scale))) * (b * scale)
    result = cast(select(a < 0.0, a + b, a), "fp32")
    result = select(equal(divisor, INFINITY), size, result)  # by 0, and of infinity, it is NaN by itself
    result = select(size < INFINITY, result, NAN)
    return with_sign(result, sign_of(x))


def mod(x: Lane, y: Lane) -> Lane:
    """The remainder with the sign of y, as Python's; a number is its own remainder by infinity, or infinity is."""
    rest = fmod(x, y)
    moved = select(equal(sign_of(x) ^ sign_of(y), 0), rest, rest + y)
    return select(equal(rest, 0.0), with_sign(constant(0.0, "fp32"), sign_of(y)), moved)


FORMULAS: Mapping[str, Callable[..., Lane]] = {
    "log": log, "log1p": log1p, "expm1": expm1, "sin": sin, "cos": cos, "tan": tan, "sinh": sinh, "cosh": cosh,
    "asin": asin, "acos": acos, "atan": atan, "asinh": asinh, "acosh": acosh, "atanh": atanh,
    "pow": power, "fmod": fmod, "mod": mod,
}  # fmt: skip
OF_TWO = ("pow", "fmod", "mod")
# Units of the last place that a function may be off: of those above, and of those that both printers write themselves.
BOUNDS: Mapping[str, float] = {
    **dict.fromkeys(FORMULAS, 0.51), "log": 1.0, "log1p": 1.0, "sin": 1.6, "cos": 1.6, "fmod": 0.0,
    "exp": 1.2, "tanh": 1.6, "erf": 1.6, "sigmoid": 2.0,
}  # fmt: skip


def formula(function: str) -> Lane:
    """The expression of a function's result, in ``argument(0)`` and, of two operands, ``argument(1)``."""
    return FORMULAS[function](*(argument(index) for index in range(2 if function in OF_TWO else 1)))
