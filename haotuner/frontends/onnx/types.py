"""Element types of ONNX as graphs name them; narrow ones are read as wider types that hold each of their numbers.

Whole numbers are held as bytes, floats as fp32. A graph has no such tensors: what rounds to one of these types
(QuantizeLinear, Cast) makes its numbers in the wider type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.errors import UsageError

if TYPE_CHECKING:
    from haotuner.frontends.onnx.constant_folding import ConstantFolding


@dataclass(frozen=True, slots=True)
class Narrow:
    """``name``: numpy's, with ml_dtypes; ``stored``: the graph's type; ``low``, ``high``: the least and largest number.

    Of floats: ``digits`` behind the point of a normal number, ``least`` exponent of these; ``beyond``: what overflows to.
    """

    name: str
    stored: str
    bits: int
    low: float
    high: float
    digits: int = 0
    least: int = 0
    beyond: float = math.nan

    @property
    def whole(self) -> bool:
        """True if its numbers are whole."""
        return self.stored != "fp32"


def _float(name: str, high: float, digits: int, least: int, beyond: float = math.nan, bits: int = 8) -> Narrow:
    return Narrow(name, "fp32", bits, -high, high, digits, least, beyond)


# By the numbers of TensorProto.DataType; ranges as onnx's technical notes on float8, float4 and int4 have them.
NARROW: Mapping[int, Narrow] = {
    17: _float("float8_e4m3fn", 448, 3, -6),
    18: _float("float8_e4m3fnuz", 240, 3, -7),
    19: _float("float8_e5m2", 57344, 2, -14, math.inf),
    20: _float("float8_e5m2fnuz", 57344, 2, -15),
    21: Narrow("uint4", "uint8", 4, 0, 15),
    22: Narrow("int4", "int8", 4, -8, 7),
    23: _float("float4_e2m1fn", 6, 1, 0, 6, bits=4),
    25: Narrow("uint2", "uint8", 2, 0, 3),
    26: Narrow("int2", "int8", 2, -2, 1),
}


def numbers_of(kind: Narrow) -> Any:
    """The number of each pattern of bits, in the order of these."""
    patterns = np.arange(1 << kind.bits)
    if kind.whole:
        return np.where(patterns > kind.high, patterns - (1 << kind.bits), patterns)
    sign, rest = patterns >> (kind.bits - 1), patterns & ((1 << (kind.bits - 1)) - 1)
    power, fraction = rest >> kind.digits, rest & ((1 << kind.digits) - 1)
    result = np.ldexp(
        fraction + np.where(power > 0, 1 << kind.digits, 0.0), np.maximum(power, 1) - 1 + kind.least - kind.digits
    )
    beyond = np.where(fraction == 0, kind.beyond, math.nan) if math.isinf(kind.beyond) else math.nan
    result = np.where(result > kind.high, beyond, result) * np.where(sign == 1, -1.0, 1.0)
    if kind.name.endswith("fnuz"):  # what would be -0 is NaN
        result[1 << (kind.bits - 1)] = math.nan
    return result.astype(np.float32)


def nearest(g: ConstantFolding, x: str, kind: Narrow, *, saturate: bool = True) -> str:
    """Numbers of a narrow float type nearest to those of an fp32 tensor, to even where two are as near.

    A step between neighbours is a power of two, chosen by the magnitude. Logarithms may be off by a rounding at a power
    of two, where both steps give the same number.
    """
    most = math.floor(math.log2(kind.high))
    steps = g.constant(np.ldexp(np.float32(1), np.arange(kind.least, most + 1) - kind.digits), "fp32")
    power = g.map("floor", g.map("mul", g.map("log", g.map("abs", x)), 1 / math.log(2)))
    power = g.map("min", g.map("max", power, float(kind.least)), float(most))
    power = g.map("select", g.map("isnan", x), 0.0, g.map("sub", power, float(kind.least)))
    step = g.add("gather", steps, g.add("cast", power, dtype="int64"), axis=0)
    result = g.map("mul", g.map("round", g.map("div", x, step)), step)
    if saturate or kind.beyond == kind.high:
        return g.map("min", g.map("max", result, kind.low), kind.high)
    beyond = g.map("mul", g.map("sign", x), kind.beyond)
    return g.map("select", g.map("greater", g.map("abs", result), kind.high), beyond, result)


def wrapped(g: ConstantFolding, x: str, kind: Narrow) -> str:
    """The low bits of a tensor's whole numbers, floats cut towards zero, as a narrow type of whole numbers has them."""
    wide, count = g.cast(g.cast(x, "int32"), "int32"), 1 << kind.bits
    moved = g.map("sub", wide, int(kind.low))
    return g.add("cast", g.map("add", g.map("bitand", moved, count - 1), int(kind.low)), dtype=kind.stored)


# The numbers of TensorProto.DataType (onnx.proto).
DTYPES = {
    1: "fp32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "fp16", 11: "fp64",
    12: "uint32", 13: "uint64", 16: "bf16",
}  # fmt: skip
OTHERS = {8: "text", 14: "complex64", 15: "complex128", 24: "float8_e8m0fnu"} | {
    at: item.name for at, item in NARROW.items()
}


def dtype_of_onnx(number: int, what: str) -> str:
    """The element type. UsageError for text, complex numbers and numbers of less than a byte."""
    if number not in DTYPES:
        raise UsageError(
            f"{what}: elements of type {OTHERS.get(number, number)} are not supported; known: {', '.join(DTYPES.values())}"
        )
    return DTYPES[number]
