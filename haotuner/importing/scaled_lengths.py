"""Lengths of scaled images: a length times a scale, multiplied and cut as ONNX Runtime and torch do in floating point.

The product is rounded before it is cut: 10 x 0.7 is 7 in float32, though the float32 next to 0.7 is less than 0.7.
"""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache

import numpy as np
import sympy

from haotuner.graph.extents import Extent, floor_division
from haotuner.graph.types import numpy_dtype
from haotuner.importing.folding import Folding

LONGEST = 1 << 16  # pixels of a side for which a fraction is held against the rounded product
_DENOMINATORS = (*range(1, 129), *(1 << power for power in range(8, 25)))


def scaled_length(g: Folding, extent: Extent, scale: float, dtype: str) -> Extent:
    """The whole part of ``extent`` x ``scale`` in the arithmetic of ``dtype``, fp32 or fp64.

    Of a dimension it is an extent where one fraction has the same whole part at every length up to ``LONGEST``. Else the
    product is computed when a request runs: its length is a dimension of its own.
    """
    if isinstance(extent, int):
        kind = numpy_dtype(dtype).type
        return int(kind(extent) * kind(scale))
    ratio = fraction_of(float(scale), dtype)
    if ratio is not None:
        return floor_division(extent * sympy.Rational(ratio.numerator, ratio.denominator), 1)
    product = g.map("mul", g.plain("size", extent=extent, dtype=dtype), float(scale))
    return g.whole_numbers(g.add("cast", g.map("floor", product), dtype="int64"), "a scaled length")[0]


@lru_cache(256)
def fraction_of(scale: float, dtype: str) -> Fraction | None:
    """The simplest fraction whose multiples have the whole parts of the rounded products; None where none has all."""
    kind = numpy_dtype(dtype).type
    lengths = np.arange(1, LONGEST + 1)
    wanted = np.floor(lengths.astype(kind) * kind(scale)).astype(np.int64)
    value = Fraction(float(kind(scale)))
    near = dict.fromkeys(value.limit_denominator(most) for most in _DENOMINATORS)
    fits = (one for one in (*near, value) if one.numerator < (1 << 62) // LONGEST)
    return next((one for one in fits if np.array_equal(lengths * one.numerator // one.denominator, wanted)), None)
