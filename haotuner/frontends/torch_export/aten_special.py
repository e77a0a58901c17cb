"""Rules of ATen functions of one element that ONNX has not: error functions, signs, powers of 2, whole decimals."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from haotuner.frontends.onnx import special_functions
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.types import FLOATS

_LARGEST = 62  # the largest power of 2 that int64 holds


def _copied_sign(a: AtenContext) -> str:
    """A zero has a sign, too, which its reciprocal tells."""
    size, like = a.g.map("abs", a.cast(a.at(0), a.dtype)), a.cast(a.at(1), a.dtype)
    sign = a.g.map("select", a.g.map("equal", like, 0), a.g.map("reciprocal", like), like)
    return a.g.map("select", a.g.map("less", sign, 0), a.g.map("neg", size), size)


def _numbers_only(how: str) -> Rule:
    """Fmax and fmin: of a number and NaN the number."""

    def rule(a: AtenContext) -> str:
        first, other = (a.cast(a.at(index), a.dtype) for index in (0, 1))
        result = a.g.map(how, first, other)
        if a.dtype not in FLOATS:
            return result
        result = a.g.map("select", a.g.map("isnan", other), first, result)
        return a.g.map("select", a.g.map("isnan", first), other, result)

    return rule


def _shifted(a: AtenContext) -> str:
    """Times a power of 2, or over it and rounded down, which is what a shift of signed bits does."""
    count = a.cast(a.at(1), "int64")
    powers = a.g.constant(np.left_shift(1, np.arange(_LARGEST + 1)), "int64")
    power = a.onnx("Gather", powers, a.g.map("min", a.g.map("max", count, 0), _LARGEST), axis=0)
    left = "left" in a.op or "lshift" in a.op
    result = a.g.map("mul" if left else "floordiv", a.cast(a.at(0), "int64"), power)
    return a.cast(result, a.dtype)


def _scaled_by_two(a: AtenContext) -> str:
    """Ldexp."""
    return a.g.map("mul", a.cast(a.at(0), a.dtype), a.g.map("pow", a.g.constant(2, a.dtype), a.cast(a.at(1), a.dtype)))


def _to_decimals(a: AtenContext) -> str:
    """As torch does it: times a power of 10, rounded, and back."""
    places, x = int(a.named["decimals"]), a.at(0)
    power = float(10 ** abs(places))
    there, back = ("mul", "div") if places >= 0 else ("div", "mul")
    return a.g.map(back, a.g.map("round", a.g.map(there, x, power)), power)


def _real(curve: special_functions.Curve) -> Rule:
    return lambda a: curve(a.g, a.cast(a.at(0), a.dtype))


SPECIAL: Mapping[str, Rule] = {
    "erfinv.default": _real(special_functions.erfinv), "erfc.default": _real(special_functions.erfc),
    "copysign.Tensor": _copied_sign, "copysign.Scalar": _copied_sign,
    "fmax.default": _numbers_only("max"), "fmin.default": _numbers_only("min"),
    **{f"{name}.{kind}": _shifted for name in ("bitwise_left_shift", "bitwise_right_shift", "__lshift__", "__rshift__")
       for kind in ("Tensor", "Scalar", "Tensor_Scalar")},
    "ldexp.Tensor": _scaled_by_two, "round.decimals": _to_decimals,
}  # fmt: skip
