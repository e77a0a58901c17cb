"""Vector functions of epilogues on CPUs, in fp32: exp, sigmoid, tanh and the normal distribution, as TVM expressions.

A function takes and gives a vector (or one number) and keeps intermediate values with ``Maker.keep``, since an expression
that is used twice would be computed twice. Polynomials are near-minimax fits of our own (Lawson's weighting, float64); their
errors below are in units of 2^-24, half an ulp of 1. NaN comes out as NaN. None needs an instruction beyond SSE2's.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LOG2_E = 1.4426950408889634
# ln 2 in two floats: the first has 9 bits, so that its product with a whole number under 2^15 is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4
EXP_LOWEST, EXP_HIGHEST = -87.0, 88.0  # results are normal numbers: subnormal ones take some CPUs 100 cycles each
ROUND = 12582912.0  # 1.5 * 2^23: added and taken away it rounds to a whole number, which then lies in the lowest bits
EXP_TERMS = (0.4999999403953552, 0.1666652113199234, 0.04166838899254799, 0.00836874544620514, 0.0013814540579915047)  # 0.05
TANH_SMALL = 0.625
TANH_TERMS = (
    -0.3333333134651184,
    0.1333320587873459,
    -0.05394676327705383,
    0.021700702607631683,
    -0.008177394978702068,
    0.002142958575859666,
)  # 0.003, of tanh below TANH_SMALL
# log(erfc(t)) / t for t >= 0; the error of erfc is under 0.5.
ERFC_TERMS = (-1.128380298614502, -0.636597752571106, -0.10291961580514908, 0.019583959132432938, -0.0005369319696910679,
              -0.0010324025060981512, 0.0003088024095632136, -3.1440187740372494e-05)  # fmt: skip


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
        shifted = self.keep(value * self.number(LOG2_E) + self.number(ROUND))
        power = self.keep(self._bits(shifted) - self._bits(self.number(ROUND)), "int32")
        whole = self.keep(power.astype(self.dtype("float32")))  # not shifted - ROUND, which TVM takes for the value itself
        rest = self.keep(value - whole * self.number(LN2_HIGH))
        rest = self.keep(rest - whole * self.number(LN2_LOW))
        result = rest * rest * self.polynomial(EXP_TERMS, rest) + rest + self.number(1.0)
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
        near = value + value * square * self.polynomial(TANH_TERMS, square)
        far = self.number(1.0) - self.number(2.0) / (self.exp(size + size) + self.number(1.0))
        far = self.choose(size < self.number(TANH_SMALL), self.number(0.0), far)
        return self.keep(self.choose(size < self.number(TANH_SMALL), near, self.signed(far, value)))

    def normal(self, value: Any) -> Any:
        """The normal distribution, (1 + erf(value / sqrt 2)) / 2; the error is at most 2 ulp of (1 + erf)."""
        value = self.keep(value)
        size = self.keep(self.magnitude(value) * self.number(0.7071067811865476))
        tail = self.exp(size * self.polynomial(ERFC_TERMS, size))
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
