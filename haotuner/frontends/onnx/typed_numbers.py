"""Arithmetic of known numbers in their element types, where some depend on the sizes of a request.

A whole number is an extent. A real number is an exact value, an extent over a power of 2, where its type is shown to hold
it; else it is a function of ``graph/typed_extents.py``, which rounds when a request runs.

Nodes that compute a real number of sizes: each function of ``typed_extents.py`` by the primitive that it stands for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import sympy

from haotuner.errors import UsageError
from haotuner.frontends.onnx.proofs import Proof, limits
from haotuner.graph.extents import Extent, canonical, ceiling_division, floor_division, largest, quotient, smallest
from haotuner.graph.graph import GraphBuilder
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.typed_extents import FUNCTIONS, MOST_PARTS, Typed, is_real, parts, typed
from haotuner.graph.types import FLOATS, numpy_dtype

BITS = {"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8}  # of whole numbers that a float type holds, and each below
_MOST_SHIFTED = 1 << 14  # the least power of 2 that is a normal number of every float type
_MOST_FACTORS = 16  # of a power that is multiplied out
_WIDER = {("fp16", "fp32"), ("fp16", "fp64"), ("bf16", "fp32"), ("bf16", "fp64"), ("fp32", "fp64")}


class DataDependentError(Exception):
    """It depends on the request; the tensor is computed when it runs."""


def exact(value: Any) -> Extent:
    """A number of an array as an extent; fractions stay exact."""
    if isinstance(value, (sympy.Basic, int)) and not isinstance(value, bool):
        return value
    if isinstance(value, (bool, np.bool_)):
        return int(value)
    if isinstance(value, np.integer):
        return int(value)
    number = float(value)
    if not np.isfinite(number):
        raise DataDependentError
    return int(number) if number.is_integer() else sympy.Rational(number)


def is_number(value: Any) -> bool:
    """True if a value depends on no size."""
    return isinstance(value, int) or bool(value.is_Rational)


def is_whole(value: Any) -> bool:
    """True if a value is a whole number at every request: one that an extent may be."""
    return isinstance(value, int) or bool(value.is_integer)


def mapped(function: str, values: Sequence[Any], dtype: str, proof: Proof) -> Any:
    """An element-wise function of numbers of one element type. Undecided where no arithmetic of sizes has it."""
    if all(map(is_number, values)):
        return _of_numbers(function, values, dtype)
    if dtype in FLOATS:
        if function not in _FLOATS:
            raise DataDependentError
        return _FLOATS[function](dtype, proof, *values)
    if function not in _WHOLE or "int" not in dtype:
        raise DataDependentError
    return _wrapped(_WHOLE[function](dtype, proof, *values), dtype, proof)


def _of_numbers(function: str, values: Sequence[Any], dtype: str) -> Any:
    try:
        kind = numpy_dtype(dtype)
        arrays = [np.asarray(float(value) if dtype in FLOATS else int(value)).astype(kind) for value in values]
        return exact(PRIMITIVES["map"].compute(arrays, {"function": function}, int)[()])
    except (UsageError, OverflowError) as error:
        raise DataDependentError from error


def _limited(name: str, *operands: Any) -> Any:
    result = typed(name, *operands)
    if parts(result) > MOST_PARTS:
        raise DataDependentError
    return result


def _wrapped(value: Extent, dtype: str, proof: Proof) -> Extent:
    """A whole number in an element type, which keeps its last bits. Sizes beyond 64 bits are refused when they are met."""
    if dtype == "int64" or proof.within(value, *limits(dtype)):
        return value
    if dtype == "uint64":
        raise DataDependentError
    return _limited(f"to_{dtype}", value)


def divided(dtype: str, proof: Proof, item: Extent, other: Extent) -> Extent:
    """Towards zero, as ONNX divides whole numbers."""
    if other == 0:
        raise DataDependentError
    whole = quotient(item, other)  # where the divisor may be 0 the request has no answer
    if whole is not None:
        return whole
    if isinstance(other, int) and other < 0:
        item, other = canonical(-item), -other
    if proof.at_least((other, 1), (item, 0)):
        return floor_division(item, other)
    if proof.at_least((other, 1), (-item, 0)):
        return canonical(-floor_division(canonical(-item), other))
    return _limited("quotient", item, other)


def _floor_by(extent: Extent, other: Extent) -> Extent:
    if other == 0:
        raise DataDependentError
    return floor_division(extent, other)


def _absolute(value: Extent) -> Extent:
    return largest([value, canonical(-value)])


def _power(dtype: str, proof: Proof, extent: Extent, exponent: Extent) -> Extent:
    if not isinstance(exponent, int) or not 0 <= exponent <= _MOST_FACTORS:
        raise DataDependentError
    result: Extent = 1
    for _ in range(exponent):
        result = _wrapped(canonical(result * extent), dtype, proof)
    return result


def _remainder(dtype: str, proof: Proof, extent: Extent, other: Extent) -> Extent:
    """With the sign of the dividend."""
    return canonical(extent - other * divided(dtype, proof, extent, other))


_WHOLE: Mapping[str, Callable[..., Extent]] = {
    "add": lambda dtype, proof, a, b: canonical(a + b),
    "sub": lambda dtype, proof, a, b: canonical(a - b),
    "mul": lambda dtype, proof, a, b: canonical(a * b),
    "div": divided,
    "floordiv": lambda dtype, proof, a, b: _floor_by(a, b),
    "mod": lambda dtype, proof, a, b: canonical(a - b * _floor_by(a, b)),
    "fmod": _remainder,
    "max": lambda dtype, proof, a, b: largest([a, b]),
    "min": lambda dtype, proof, a, b: smallest([a, b]),
    "neg": lambda dtype, proof, a: canonical(-a),
    "abs": lambda dtype, proof, a: _absolute(a),
    "sign": lambda dtype, proof, a: smallest([1, largest([-1, a])]),
    "pow": _power,
}


def _fraction(value: Any) -> tuple[Extent, int]:
    """Numerator and denominator, a power of 2, of an exact value."""
    if isinstance(value, int):
        return value, 1
    if value.is_integer:
        return value, 1
    numerator, denominator = sympy.fraction(sympy.together(value))
    return canonical(numerator), int(denominator)


def _over(numerator: Extent, denominator: int) -> Any:
    if denominator == 1:
        return numerator
    result = sympy.sympify(numerator) / denominator
    return int(result) if result.is_Integer else result if result.is_Rational else sympy.expand(result)


def _real(value: Any) -> Any:
    """An operand of functions of real numbers."""
    if is_real(value):
        return value
    numerator, denominator = _fraction(value)
    if isinstance(numerator, int):
        return sympy.Rational(numerator, denominator)
    result = typed("real", numerator)
    return result if denominator == 1 else typed("real_div", result, denominator)


def _representable(numerator: Extent, denominator: int, dtype: str, proof: Proof) -> bool:
    """True if a float type is shown to hold the value at every request."""
    most = (1 << BITS[dtype]) - 1
    power = denominator & (denominator - 1) == 0
    return power and denominator <= _MOST_SHIFTED and proof.within(numerator, -most, most)


def rounded(value: Any, dtype: str, proof: Proof) -> Any:
    """A real number in a float type."""
    if not is_real(value) and not is_number(value) and _representable(*_fraction(value), dtype, proof):
        return value
    return _limited(f"to_{dtype}", _real(value)) if dtype != "fp64" else _real(value)


def _joined(
    name: str, exactly: Callable[[Extent, int, Extent, int], tuple[Extent, int] | None]
) -> Callable[[str, Proof, Any, Any], Any]:
    """An operation of two real numbers: exact where its value is held, else computed and rounded at each request."""

    def operation(dtype: str, proof: Proof, number: Any, other: Any) -> Any:
        if not is_real(number) and not is_real(other):
            value = exactly(*_fraction(number), *_fraction(other))
            if value is not None and _representable(*value, dtype, proof):
                return _over(*value)
        result = _limited(name, _real(number), _real(other))
        return result if dtype == "fp64" else _limited(f"to_{dtype}", result)

    return operation


def _sum(sign: int) -> Callable[[Extent, int, Extent, int], tuple[Extent, int]]:
    def exactly(a: Extent, b: int, c: Extent, d: int) -> tuple[Extent, int]:
        whole = max(b, d)
        return canonical(a * (whole // b) + sign * c * (whole // d)), whole

    return exactly


def _ratio(a: Extent, b: int, c: Extent, d: int) -> tuple[Extent, int] | None:
    whole = quotient(canonical(a * d), canonical(b * c))
    if whole is not None:
        return whole, 1
    if isinstance(c, int) and c != 0 and abs(c) & (abs(c) - 1) == 0:
        return canonical(a * d * (1 if c > 0 else -1)), b * abs(c)
    return None


def _extreme(name: str, choose: Callable[[Sequence[Extent]], Extent]) -> Callable[[str, Proof, Any, Any], Any]:
    def operation(dtype: str, proof: Proof, value: Any, other: Any) -> Any:
        if is_real(value) or is_real(other):
            return _limited(name, _real(value), _real(other))
        (a, b), (c, d) = _fraction(value), _fraction(other)
        whole = max(b, d)
        return _over(choose([canonical(a * (whole // b)), canonical(c * (whole // d))]), whole)

    return operation


def _negative(dtype: str, proof: Proof, value: Any) -> Any:
    return _limited("real_mul", value, -1) if is_real(value) else _over(canonical(-_fraction(value)[0]), _fraction(value)[1])


def _magnitude(dtype: str, proof: Proof, value: Any) -> Any:
    if is_real(value):
        return _limited("real_max", value, _negative(dtype, proof, value))
    numerator, denominator = _fraction(value)
    return _over(_absolute(numerator), denominator)


def whole_division(value: Any, dtype: str, proof: Proof) -> tuple[Extent, Extent] | None:
    """Dividend and divisor, above 0, of a rounded quotient whose whole part is that of the exact one; else None.

    The exact quotient lies 1 / divisor or more from a whole number that it is not. That is more than a rounding moves it
    where the type holds the dividend's multiples.
    """
    if dtype != "fp64" and isinstance(value, FUNCTIONS[f"to_{dtype}"]):
        value = value.args[0]
    if not isinstance(value, FUNCTIONS["real_div"]):
        return None
    top, bottom = (_plain(argument) for argument in value.args)
    if top is None or bottom is None:
        return None
    dividend, divisor = canonical(top[0] * bottom[1]), canonical(bottom[0] * top[1])
    most = (1 << BITS[dtype]) - 1
    shown = proof.holds((divisor, ">=", 1), (dividend, "<=", most), (dividend, ">=", -most))
    return (dividend, divisor) if shown else None


def _plain(operand: Any) -> tuple[Extent, int] | None:
    if operand.is_Rational:
        return int(operand.p), int(operand.q)
    return (operand.args[0], 1) if isinstance(operand, FUNCTIONS["real"]) else None


def _stepped(name: str, whole_of: Callable[[Extent, Extent], Extent] | None) -> Callable[[str, Proof, Any], Any]:
    """Rounding to a whole number; ``whole_of``: of a quotient."""

    def operation(dtype: str, proof: Proof, value: Any) -> Any:
        if not is_real(value):
            numerator, denominator = _fraction(value)
            if denominator == 1:
                return numerator
            if whole_of is not None:
                return whole_of(numerator, denominator)
        elif whole_of is not None and (both := whole_division(value, dtype, proof)) is not None:
            return whole_of(*both)
        return _limited(name, _real(value))

    return operation


def _root(dtype: str, proof: Proof, value: Any) -> Any:
    result = _limited("real_sqrt", _real(value))
    return result if dtype == "fp64" else _limited(f"to_{dtype}", result)


def _real_power(dtype: str, proof: Proof, value: Any, exponent: Any) -> Any:
    """A product, where each factor more gives an exact value: libraries round powers in their own ways."""
    if not isinstance(exponent, int) or not 0 <= exponent <= _MOST_FACTORS:
        raise DataDependentError
    result: Any = 1
    for _ in range(exponent):
        result = _FLOATS["mul"](dtype, proof, result, value)
        if is_real(result):
            raise DataDependentError
    return result


_DIVIDED = _joined("real_div", _ratio)
_FLOATS: Mapping[str, Callable[..., Any]] = {
    "add": _joined("real_add", _sum(1)),
    "sub": _joined("real_sub", _sum(-1)),
    "mul": _joined("real_mul", lambda a, b, c, d: (canonical(a * c), b * d)),
    "div": _DIVIDED,
    "reciprocal": lambda dtype, proof, a: _DIVIDED(dtype, proof, 1, a),
    "max": _extreme("real_max", largest),
    "min": _extreme("real_min", smallest),
    "neg": _negative,
    "abs": _magnitude,
    "floor": _stepped("real_floor", floor_division),
    "ceil": _stepped("real_ceil", ceiling_division),
    "round": _stepped("real_round", None),
    "sqrt": _root,
    "pow": _real_power,
}


def cast(value: Any, source: str, dtype: str, proof: Proof) -> Any:
    """A number of one element type in another one. Undecided where no arithmetic of sizes has it."""
    if is_number(value):
        return _number_cast(value, source, dtype)
    if dtype in FLOATS:
        return value if (source, dtype) in _WIDER or source == dtype else rounded(value, dtype, proof)
    if "int" not in dtype:
        raise DataDependentError
    if source in FLOATS:
        return _truncated(value, source, dtype, proof)
    return _wrapped(value, dtype, proof)


def _number_cast(value: Any, source: str, dtype: str) -> Any:
    try:
        array = np.asarray(float(value) if source in FLOATS else int(value)).astype(numpy_dtype(source))
        return exact(PRIMITIVES["cast"].compute([array], {"dtype": dtype}, int)[()])
    except (UsageError, OverflowError) as error:
        raise DataDependentError from error


def _truncated(value: Any, source: str, dtype: str, proof: Proof) -> Extent:
    """A real number without its fraction, as a whole number."""
    if is_real(value):
        both = whole_division(value, source, proof)
        result = _limited("whole", value) if both is None else divided("int64", proof, *both)
    else:
        result = divided("int64", proof, *_fraction(value))
    if dtype in ("int32", "uint32", "uint64") and not proof.within(result, *limits(dtype)):
        raise DataDependentError  # machines differ in what becomes of others
    return _wrapped(result, dtype, proof)


WIDE = "fp64"  # of steps: functions that round to a narrower type are casts


def real_scalar(g: GraphBuilder, value: Any, dtype: str) -> str:
    """A scalar of a float type: an extent, an exact fraction, or a function of real numbers."""
    if is_whole(value):
        return GraphBuilder.add(g, "size", extent=canonical(value), dtype=dtype)
    if is_number(value):
        return g.constant(float(value), dtype)
    if not isinstance(value, Typed):
        above, below = sympy.fraction(sympy.together(value))
        if below == 1:  # sympy cannot show of every extent that it is whole, such as what a long floor division leaves
            return GraphBuilder.add(g, "size", extent=canonical(value), dtype=dtype)
        parts = [real_scalar(g, item, dtype) for item in (above, below)]
        return GraphBuilder.add(g, "map", *parts, function="div")
    return _cast(g, _step(g, value), dtype)


def _step(g: GraphBuilder, value: Typed) -> str:
    function = type(value).__name__
    if function == "real":
        return real_scalar(g, value.args[0], WIDE)
    parts = [real_scalar(g, argument, WIDE) for argument in value.args]
    if function.startswith("to_"):
        return _cast(g, _cast(g, parts[0], function.removeprefix("to_")), WIDE)
    return GraphBuilder.add(g, "map", *parts, function=function.removeprefix("real_"))


def _cast(g: GraphBuilder, tensor: str, dtype: str) -> str:
    return tensor if g.types[tensor].dtype == dtype else GraphBuilder.add(g, "cast", tensor, dtype=dtype)
