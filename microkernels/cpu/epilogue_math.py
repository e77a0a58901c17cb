"""Vector functions of epilogues on CPUs, in fp32: exp, sigmoid, tanh and the normal distribution, as TVM expressions.

A function takes and gives a vector (or one number) and keeps intermediate values with ``Maker.keep``, since an expression
that is used twice would be computed twice. NaN comes out as NaN. None needs an instruction beyond SSE2's. Products and sums
are rounded apart on every CPU, so these have polynomials of their own beside those of ``vector_math.py``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from haotuner.codegen.math_coefficients import (
    ERFC_UNFUSED,
    EXP_UNFUSED,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    TANH_SPLIT,
    TANH_UNFUSED,
    TO_WHOLE,
)

EXP_LOWEST, EXP_HIGHEST = -87.0, 88.0  # results are normal numbers: subnormal ones take some CPUs 100 cycles each


class Maker:
    """Makes expressions of ``lanes`` lanes inside an open TVM program."""

    def __init__(self, lanes: int) -> None:
        from tvm import tirx
        from tvm.script.ir_builder import tirx as script

        self.lanes, self._tirx, self._script = lanes, tirx, script

    def number(self, value: float) -> Any:
        """A constant in every lane."""
        return self._spread(self._tirx.FloatImm("float32", value))

    def keep(self, value: Any, element: str = "float32") -> Any:
        """The value, computed once however often it is used."""
        buffer = self._script.sblock_alloc_buffer((1,), self.dtype(element), scope="global")
        self._script.buffer_store(buffer, value, [0])
        return buffer[0]

    def dtype(self, element: str) -> str:
        """TVM's name of a vector of these lanes."""
        return element if self.lanes == 1 else f"{element}x{self.lanes}"

    def choose(self, condition: Any, value: Any, other: Any) -> Any:
        """``value`` where the condition holds; a comparison with NaN does not."""
        return self._tirx.Select(condition, value, other)

    def above(self, value: Any, least: Any) -> Any:
        """The larger one; NaN stays NaN."""
        return self.choose(value < least, least, value)

    def below(self, value: Any, most: Any) -> Any:
        """The smaller one; NaN stays NaN."""
        return self.choose(value > most, most, value)

    def magnitude(self, value: Any) -> Any:
        """The value without its sign."""
        return self._from_bits(self._bits(value) & self._whole(0x7FFFFFFF))

    def signed(self, magnitude: Any, value: Any) -> Any:
        """A magnitude with the sign of ``value``."""
        return self._from_bits(self._bits(magnitude) | (self._bits(value) & self._whole(-0x80000000)))

    def polynomial(self, terms: Sequence[float], at: Any) -> Any:
        """Horner's rule; ``terms`` from the constant one on."""
        value = self.number(terms[-1])
        for term in reversed(terms[:-1]):
            value = value * at + self.number(term)
        return value

    def exp(self, value: Any) -> Any:
        """The exponential, at most 1.5 ulp off; 0 of values under EXP_LOWEST, and over EXP_HIGHEST that of it."""
        inputs = self.keep(value)
        value = self.keep(self.below(self.above(inputs, self.number(EXP_LOWEST)), self.number(EXP_HIGHEST)))
        shifted = self.keep(value * self.number(LOG2_E) + self.number(TO_WHOLE))
        power = self.keep(self._bits(shifted) - self._bits(self.number(TO_WHOLE)), "int32")
        whole = self.keep(
            power.astype(self.dtype("float32"))
        )  # not shifted - TO_WHOLE, which TVM takes for the value itself
        rest = self.keep(value - whole * self.number(LN2_HIGH))
        rest = self.keep(rest - whole * self.number(LN2_LOW))
        result = rest * rest * self.polynomial(EXP_UNFUSED, rest) + rest + self.number(1.0)
        return self.keep(self.choose(inputs < self.number(EXP_LOWEST), self.number(0.0), result * self._two_to(power)))

    def sigmoid(self, value: Any) -> Any:
        """1 / (1 + e^-value); at most 2.5 ulp, tails included, and 0 where it is under 2^-125."""
        value = self.keep(value)
        small = self.exp(self.number(0.0) - self.magnitude(value))
        top = self.choose(value < self.number(0.0), small, self.number(1.0))
        return self.keep(top / (small + self.number(1.0)))

    def tanh(self, value: Any) -> Any:
        """At most 2 ulp: a polynomial near 0, elsewhere 1 - 2 / (e^2|value| + 1)."""
        value = self.keep(value)
        size = self.keep(self.magnitude(value))
        square = self.keep(value * value)
        near = value + value * square * self.polynomial(TANH_UNFUSED, square)
        far = self.number(1.0) - self.number(2.0) / (self.exp(size + size) + self.number(1.0))
        far = self.choose(size < self.number(TANH_SPLIT), self.number(0.0), far)
        return self.keep(self.choose(size < self.number(TANH_SPLIT), near, self.signed(far, value)))

    def normal(self, value: Any) -> Any:
        """The normal distribution, (1 + erf(value / sqrt 2)) / 2; the error is at most 2 ulp of (1 + erf)."""
        value = self.keep(value)
        size = self.keep(self.magnitude(value) * self.number(0.7071067811865476))
        tail = self.exp(size * self.polynomial(ERFC_UNFUSED, size))
        tail = self.keep(tail * self.number(0.5))
        return self.keep(self.choose(value < self.number(0.0), tail, self.number(1.0) - tail))

    def _spread(self, value: Any) -> Any:
        return value if self.lanes == 1 else self._tirx.Broadcast(value, self.lanes)

    def _whole(self, value: int) -> Any:
        return self._spread(self._tirx.IntImm("int32", value))

    def _bits(self, value: Any) -> Any:
        return self._tirx.reinterpret(self.dtype("int32"), value)

    def _from_bits(self, value: Any) -> Any:
        return self._tirx.reinterpret(self.dtype("float32"), value)

    def _two_to(self, power: Any) -> Any:
        """Two to a whole power of -126..127."""
        return self._from_bits((power + self._whole(127)) << self._whole(23))
