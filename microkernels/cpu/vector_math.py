"""Vector math of programs that LLVM has better instructions for than C has: exp, tanh, erf and sigmoid of float32 lanes.

AVX-512 scales by a power of two and masks lanes in one instruction each, which no C compiler finds in the arithmetic of
``codegen/loops/c_math.py``. All other functions are written once, in ``codegen/vector_functions.py``.
NaN and infinity come out as numpy has them. Every function takes and gives a TVM expression of ``lanes`` lanes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.codegen.math_coefficients import (
    ERF_END,
    ERF_LARGE,
    ERF_SMALL,
    ERF_SPLIT,
    EXP,
    EXP_OF_LESS,
    EXP_ZERO,
    LN2_HIGH,
    LN2_LOW,
    LOG2_E,
    TANH,
    TANH_END,
    TANH_SPLIT,
    TO_WHOLE,
)

AVX512_LANES, SCALE = 16, "llvm.x86.avx512.mask.scalef.ps.512"


@dataclass(frozen=True, slots=True)
class VectorMath:
    """Functions over ``lanes`` float32 numbers. ``once`` binds an expression to a variable, so that it is computed once."""

    lanes: int
    once: Any  # Callable[[expression], expression]

    def exp(self, x: Any) -> Any:
        """e^x: 2^n * e^r with |r| <= ln 2 / 2; subnormal results come out."""
        from tvm import tirx

        x = self.once(x)
        if self._scales:  # LLVM masks the scaling itself: what is hidden neither underflows nor waits for the comparison
            hidden = tirx.Select(x < self._number(0.0), self._number(0.0), x)  # 0 or NaN
            scaled = self._scaled(*self._reduced(self._under(x, 89.0)))
            return self.once(tirx.Select(x >= self._number(EXP_ZERO), scaled, hidden))
        x, nothing = self._not_nothing(x)
        e, n = self._reduced(self.once(self._least(x, 89.0)))
        whole = self.once(tirx.Cast(self._type("int32"), n))
        half = self.once(whole >> self._int(1))  # the power in two factors
        result = tirx.Select(nothing, self._number(0.0), e * self._power(half) * self._power(whole - half))
        return self.once(tirx.Select(tirx.Not(tirx.isnan(x)), result, x))

    def _not_nothing(self, x: Any) -> tuple[Any, Any]:
        """X, but a number of no account where e^x rounds to 0, and where that is.

        What masks hide is such: multiplied out, a result that underflows costs a vector 150 cycles on Intel's cores.
        """
        from tvm import tirx

        nothing = x < self._number(EXP_ZERO)  # twice: a vector of truths is no variable
        return self.once(tirx.Select(nothing, self._number(-87.0), x)), nothing

    def _exp_inside(self, x: Any, times: int = 1) -> Any:
        """e^x, or that of x ``times`` a power of 2, for exponents in -87..87: neither subnormal nor infinite."""
        return self._scaled(*self._reduced(self.once(x), times))

    def _reduced(self, x: Any, times: int = 1) -> tuple[Any, Any]:
        """e^r and n of x ``times`` a power of 2 = n ln 2 + r, both float32; the bits are those of the product."""
        n, r = self._parts(x, times)
        coefficients = [item * times**index for index, item in enumerate((1.0, 1.0, *EXP))]
        return self.once(self._polynomial(coefficients, r)), n

    def _parts(self, x: Any, times: int = 1) -> tuple[Any, Any]:
        """N and r / ``times`` of x ``times`` = n ln 2 + r."""
        x = self.once(x)
        n = self.once(self._fma(x, LOG2_E * times, TO_WHOLE) - self._number(TO_WHOLE))
        return n, self.once(self._fma(n, -LN2_LOW / times, self._fma(n, -LN2_HIGH / times, x)))

    @property
    def _scales(self) -> bool:
        """True if the vectors are those of AVX-512, which multiplies by a power of two, rounded once, in one instruction."""
        return self.lanes == AVX512_LANES

    def _scaled(self, e: Any, n: Any) -> Any:
        """E * 2^n. Where no instruction does it: for n in -126..127."""
        from tvm import tirx

        if not self._scales:
            return self.once(e * self._power(self.once(tirx.Cast(self._type("int32"), n))))
        every, current = tirx.IntImm("int16", -1), tirx.IntImm("int32", 4)  # all lanes; rounding as it is set
        return self.once(tirx.call_llvm_pure_intrin(self._type("float32"), SCALE, e, n, e, every, current))

    def tanh(self, x: Any) -> Any:
        """An odd polynomial near 0, else 1 - 2 / (e^2x + 1)."""
        from tvm import tirx

        x = self.once(x)
        size = self.once(tirx.abs(x))
        square = self.once(x * x)
        near = self._fma(self.once(self._polynomial(TANH, square) * square), x, x)
        e = self._exp_inside(self._bounded(size, TANH_END), 2)
        far = self._number(1.0) - self._number(2.0) / (e + self._number(1.0))
        return self._or_nan(self._signed(tirx.Select(size < self._number(TANH_SPLIT), near, far), x), x)  # -0 stays

    def erf(self, x: Any) -> Any:
        """An odd polynomial near 0, else 1 - e^(-t + t P(t))."""
        from tvm import tirx

        x = self.once(x)
        t = self.once(self._bounded(tirx.abs(x), ERF_END))
        square = self.once(x * x)
        near = self._fma(self._polynomial(ERF_SMALL, square), x, x)
        exponent = self._fma(self._polynomial(ERF_LARGE, t), t, self._number(0.0) - t)
        far = self._signed(self._number(1.0) - self._exp_inside(exponent), x)
        return self._or_nan(tirx.Select(t < self._number(ERF_SPLIT), near, far), x)

    def _bounded(self, x: Any, bound: float) -> Any:
        """The smaller of x and a bound. A NaN stays one where nothing makes a whole number of it (``_or_nan``)."""
        return self._under(x, bound) if self._scales else self._least(x, bound)

    def _or_nan(self, value: Any, x: Any) -> Any:
        """A value that was made of ``_bounded`` x, and NaN where x is; there all lanes have it where vectors are scaled."""
        from tvm import tirx

        return self.once(value if self._scales else tirx.Select(tirx.Not(tirx.isnan(x)), value, x))

    def sigmoid(self, x: Any) -> Any:
        """2^n / (2^n + e^-r) of x = n ln 2 + r: neither overflows, and nothing is asked of x's sign.

        Of the sum 1 is added last, to what is small where digits matter.
        """
        from tvm import tirx

        x, nothing = self._not_nothing(x)
        n, r = self._parts(self._under(x, 30.0))
        power = self._power_of_two(n)
        rest = self._fma(self.once(self._polynomial((-1.0, *EXP_OF_LESS), r)), r, power)
        return self.once(tirx.Select(nothing, self._number(0.0), power / (rest + self._number(1.0))))

    def _power_of_two(self, n: Any) -> Any:
        """2^n, subnormal numbers too."""
        from tvm import tirx

        if self._scales:
            return self._scaled(self._number(1.0), n)
        raised = self.once(tirx.Cast(self._type("int32"), n) + self._int(64))
        return self.once(self._power(raised) * self._number(2.0**-64))

    def _polynomial(self, coefficients: Sequence[float], x: Any) -> Any:
        result = self._number(coefficients[-1])
        for coefficient in reversed(coefficients[:-1]):
            result = self._fma(result, x, coefficient)
        return result

    def _fma(self, a: Any, b: Any, c: Any) -> Any:
        """A * b + c, in one instruction where the CPU has one."""
        from tvm import tirx

        inputs = [item if not isinstance(item, float) else self._number(item) for item in (a, b, c)]
        return tirx.call_llvm_pure_intrin(self._type("float32"), "llvm.fmuladd", *inputs)

    def _power(self, n: Any) -> Any:
        """2^n as bits."""
        from tvm import tirx

        return tirx.reinterpret(self._type("float32"), (n + self._int(127)) << self._int(23))

    def _signed(self, value: Any, x: Any) -> Any:
        from tvm import tirx

        sign = tirx.reinterpret(self._type("int32"), x) & self._int(-(2**31))
        return tirx.reinterpret(self._type("float32"), tirx.reinterpret(self._type("int32"), value) | sign)

    def _least(self, x: Any, bound: float) -> Any:
        from tvm import tirx

        return tirx.Select(x < self._number(bound), x, self._number(bound))

    def _under(self, x: Any, bound: float) -> Any:
        """Smaller of x and a bound, and a NaN as it is."""
        from tvm import tirx

        return tirx.Select(x > self._number(bound), self._number(bound), x)

    def _type(self, name: str) -> str:
        return name if self.lanes == 1 else f"{name}x{self.lanes}"

    def _number(self, value: float) -> Any:
        from tvm import tirx

        item = tirx.FloatImm("float32", value)
        return item if self.lanes == 1 else tirx.Broadcast(item, self.lanes)

    def _int(self, value: int) -> Any:
        from tvm import tirx

        item = tirx.IntImm("int32", value)
        return item if self.lanes == 1 else tirx.Broadcast(item, self.lanes)
