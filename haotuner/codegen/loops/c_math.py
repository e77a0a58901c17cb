"""C preamble of generated loops: element types and element-wise functions that a compiler turns into vectors."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from haotuner.codegen.loops.c_functions import c_functions
from haotuner.codegen.loops.c_sums import SUMS
from haotuner.codegen.loops.strided_reads import BLOCK
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
from haotuner.codegen.vector_functions import FORMULAS
from haotuner.graph.types import HALVES

# What a value is computed in. Halves are floats, rounded after every step; in memory they are their bits.
C_TYPES: Mapping[str, str] = {
    "fp16": "float", "bf16": "float",
    "fp32": "float", "fp64": "double", "int64": "int64_t", "int32": "int32_t", "int16": "int16_t", "int8": "int8_t",
    "uint64": "uint64_t", "uint32": "uint32_t", "uint16": "uint16_t", "uint8": "uint8_t", "bool": "uint8_t",
}  # fmt: skip
_LITERAL = re.compile(r"-?[0-9][0-9.e+-]*f?")
REALS = ("fp32", "fp64", *HALVES)
MEMORY_TYPES: Mapping[str, str] = {**C_TYPES, **dict.fromkeys(HALVES, "uint16_t")}


def _polynomial(coefficients: Sequence[float], x: str) -> str:
    result = f"{coefficients[-1]!r}f"
    for coefficient in reversed(coefficients[:-1]):
        result = f"ht_fused({result}, {x}, {coefficient!r}f)"
    return result


# Behind a head that has INLINE, and the bits of a float as a whole number and back, as C or CUDA C++ has them.
FUNCTIONS = f"""INLINE int64_t ht_quotient(int64_t a, int64_t b) {{ /* by 0, and the least by -1, a processor stops */
  return (uint64_t)b + 1 > 1 ? a / b : b ? (int64_t)(0 - (uint64_t)a) : 0;
}}
INLINE int64_t ht_rest(int64_t a, int64_t b) {{ return (uint64_t)b + 1 > 1 ? a % b : 0; }}
INLINE int64_t floordiv(int64_t a, int64_t b) {{
  return ht_quotient(a, b) - ((ht_rest(a, b) != 0) & ((a < 0) != (b < 0)));
}}
INLINE int64_t floormod(int64_t a, int64_t b) {{
  int64_t r = ht_rest(a, b);
  return r + ((r != 0) & ((r < 0) != (b < 0)) ? b : 0);
}}
INLINE int64_t ht_ipow(int64_t a, int64_t n) {{ /* of whole numbers; 1 over one of them is 0, but for 1 and -1 */
  if (n < 0) return a == 1 ? 1 : a == -1 ? (n & 1 ? -1 : 1) : 0;
  uint64_t found = 1, base = (uint64_t)a;
  for (; n > 0; n >>= 1, base *= base)
    if (n & 1) found *= base;
  return (int64_t)found;
}}
INLINE double ht_mod_double(double a, double b) {{ /* with the sign of b; numbers are their own rest of infinity */
  double r = fmod(a, b);
  return r == 0 ? copysign(0.0, b) : (r < 0) != (b < 0) ? r + b : r;
}}
#if defined __FMA__ || defined __CUDACC__ || defined __CUDACC_RTC__
#define FUSED
#endif
#ifdef FUSED
#define FUSED_OR(one, other) one
#else
#define FUSED_OR(one, other) other
#endif
/* a b + c, rounded once where the processor does it */
INLINE float ht_fused(float a, float b, float c) {{ return FUSED_OR(fmaf(a, b, c), a * b + c); }}
INLINE double ht_fused_double(double a, double b, double c) {{ return FUSED_OR(fma(a, b, c), a * b + c); }}
INLINE int32_t ht_reduced(float x, float bias, float* r) {{ /* x = n ln 2 + r; the result's lowest bits are n + bias */
  float whole_bias = {TO_WHOLE!r}f + bias, t = ht_fused(x, {LOG2_E!r}f, whole_bias), n = t - whole_bias;
  *r = ht_fused(n, {-LN2_LOW!r}f, ht_fused(n, {-LN2_HIGH!r}f, x));
  return whole(t);
}}
INLINE float ht_power(int32_t i) {{ return bits((int32_t)((uint32_t)i << 23)); }} /* 2^(i - 127), of the lowest bits */
INLINE float ht_exp_inside(float x) {{ /* of -87 to 87; of NaN any number */
  float r;
  int32_t i = ht_reduced(x, 0.0f, &r);
  return bits((int32_t)((uint32_t)whole({_polynomial((1.0, 1.0, *EXP), "r")}) + ((uint32_t)i << 23)));
}}
INLINE float ht_exp(float x) {{ /* e^r times two powers of 2, as one has too few exponents; NaN and overflow come out */
  /* what masks leave is times 0, not a product that underflows: it costs a vector of Intel's 150 cycles */
  float c = x > 89.0f ? 89.0f : x, r;
  int32_t i = ht_reduced(c < -104.0f ? -104.0f : c, 254.0f, &r), half = i >> 1;
  return {_polynomial((1.0, 1.0, *EXP), "r")} * ht_power(half) * (x < {EXP_ZERO!r}f ? 0.0f : ht_power(i - half));
}}
INLINE int32_t ordered_numbers(float f) {{ /* whole numbers in the order of the floats; a NaN is at one of the ends */
  int32_t i = whole(f);
  return i ^ ((i >> 31) & INT32_MAX);
}}
INLINE int32_t ordered(float f, int32_t of_nan) {{ return f == f ? ordered_numbers(f) : of_nan; }}
INLINE float unordered(int32_t i) {{ return bits(i ^ ((i >> 31) & INT32_MAX)); }}
INLINE float signed_as(float v, float x) {{ return bits(whole(v) | (whole(x) & INT32_MIN)); }}
INLINE float from_bf16(uint16_t h) {{ return bits((int32_t)((uint32_t)h << 16)); }}
INLINE uint16_t to_bf16(float f) {{ /* to the nearest, of two the even one */
  uint32_t i = (uint32_t)whole(f);
  return f == f ? (uint16_t)((i + 0x7fff + ((i >> 16) & 1)) >> 16) : (uint16_t)(i >> 16 | 0x40);
}}
INLINE float from_fp16(uint16_t h) {{
  uint32_t exponent = h >> 10 & 31, rest = h & 1023;
  float v = bits((int32_t)((exponent == 31 ? 255 : exponent + 112) << 23 | rest << 13));
  v = exponent ? v : (float)rest * 0x1p-24f;
  return h & 0x8000 ? -v : v;
}}
INLINE uint16_t to_fp16(float f) {{
  uint32_t i = (uint32_t)whole(f), sign = i >> 16 & 0x8000, a = i & 0x7fffffff, found;
  if (a > 0x7f800000) found = 0x7e00;
  else if (a >= 0x477ff000) found = 0x7c00;                                    /* from 65520 on */
  else if (a < 0x38800000) found = (uint32_t)rintf(bits((int32_t)a) * 0x1p24f); /* steps of 2^-24 */
  else found = (a + 0xfff + ((a >> 13) & 1) - 0x38000000) >> 13;
  return (uint16_t)(sign | found);
}}
INLINE float ht_tanh(float x) {{
  float s = fabsf(x), q = x * x, t = s > {TANH_END!r}f ? {TANH_END!r}f : s;
  float near = ht_fused({_polynomial(TANH, "q")} * q, x, x);
  float far = 1.0f - 2.0f / (ht_exp_inside(t + t) + 1.0f);
  float y = signed_as(s < {TANH_SPLIT!r}f ? near : far, x);
  return x == x ? y : x;
}}
INLINE float ht_erf(float x) {{
  float s = fabsf(x), t = s > {ERF_END!r}f ? {ERF_END!r}f : s, q = x * x;
  float near = ht_fused({_polynomial(ERF_SMALL, "q")}, x, x);
  float far = signed_as(1.0f - ht_exp_inside(ht_fused({_polynomial(ERF_LARGE, "t")}, t, -t)), x);
  float y = t < {ERF_SPLIT!r}f ? near : far;
  return x == x ? y : x;
}}
INLINE float ht_sigmoid(float x) {{ /* 2^n / (2^n + e^-r), which overflows nowhere; 1 is added last, to what is small */
  float c = x > 30.0f ? 30.0f : x, r;
  int32_t i = ht_reduced(c < -104.0f ? -104.0f : c, 191.0f, &r);
  float power = ht_power(i) * (x < {EXP_ZERO!r}f ? 0.0f : 0x1p-64f);
  return power / (ht_fused({_polynomial((-1.0, *EXP_OF_LESS), "r")}, r, power) + 1.0f);
}}
"""
PRELUDE = f"""#include <math.h>
#include <stdint.h>
#include <string.h>
#define INLINE static inline __attribute__((always_inline))
INLINE float bits(int32_t i) {{ float f; memcpy(&f, &i, 4); return f; }}
INLINE int32_t whole(float f) {{ int32_t i; memcpy(&i, &f, 4); return i; }}
{FUNCTIONS}{SUMS}"""

# Behind it, where a group takes the bits of doubles.
DOUBLE_BITS = """INLINE double bits64(int64_t i) { double f; memcpy(&f, &i, 8); return f; }
INLINE int64_t whole64(double f) { int64_t i; memcpy(&i, &f, 8); return i; }
"""

# Behind it, where a group turns what it reads.
TURNING = f"""#include "kinds/turn.h"
#if defined __AVX512F__ && defined __AVX512VL__
#define TURNED 16
#elif defined __AVX__
#define TURNED 8
#else
#define TURNED 4
#endif
INLINE void ht_turned(const float* from, int64_t right, int64_t columns, int64_t rows, float* to) {{
  for (int64_t j = 0; j < columns; j += TURNED) {{ /* to[i * {BLOCK} + j] = from[j * right + i] */
    int64_t left = columns - j < TURNED ? columns - j : TURNED;
    ht_square(TURNED, from + j * right, right, left, rows, to + j, {BLOCK}, TURNED);
  }}
}}
"""


def takes_double_bits(sources: Iterable[str]) -> bool:
    """True if a group reads or makes the bits of an fp64."""
    return any("bits64(" in item or "whole64(" in item for item in sources)


def head_of(sources: Iterable[str]) -> str:
    """Beginning of the C of these groups."""
    every = list(sources)
    bytes_of = '#include "kinds/byte_sums.h"\n' if any("ht_byte_sums(" in item for item in every) else ""
    functions = c_functions(every)
    doubles = DOUBLE_BITS if takes_double_bits([*every, functions]) else ""
    return PRELUDE + doubles + functions + bytes_of + (TURNING if any("ht_turned(" in item for item in every) else "")


_BINARY = {"add": "+", "sub": "-", "mul": "*", "equal": "==", "less": "<", "less_equal": "<=", "greater": ">",
           "greater_equal": ">=", "and": "&&", "or": "||", "bitand": "&", "bitor": "|", "bitxor": "^"}  # fmt: skip
_EXACT = ("neg", "abs", "max", "min", "select", "sign", "floor", "ceil", "round")  # of halves: their results are halves
# Of fp64 the C library's, one number at a time: few models have it, where speed does not matter.
_DOUBLE = {"exp": "exp", "tanh": "tanh", "erf": "erf", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "round": "rint",
           "abs": "fabs", **{name: name for name in FORMULAS}, "mod": "ht_mod_double"}  # fmt: skip
_SINGLE = {**{name: f"ht_{name}" for name in ("exp", "tanh", "erf", "sigmoid", *FORMULAS)}, "sqrt": "sqrtf",
           "floor": "floorf", "ceil": "ceilf", "round": "rintf", "abs": "fabsf"}  # fmt: skip


def loaded(text: str, dtype: str) -> str:
    """The value of an element in memory."""
    return f"from_{dtype}({text})" if dtype in HALVES else text


def stored(text: str, dtype: str) -> str:
    """A value as memory holds it."""
    return f"to_{dtype}({text})" if dtype in HALVES else text


def rounded(text: str, dtype: str) -> str:
    """A value that an element type has."""
    return loaded(stored(text, dtype), dtype)


_BITS: Mapping[str, str] = {"fp32": "whole", "fp64": "whole64", "fp16": "to_fp16", "bf16": "to_bf16"}  # of real numbers
_OF_BITS: Mapping[str, tuple[str, str]] = {  # the integer that each function takes
    "fp32": ("bits", "int32_t"), "fp64": ("bits64", "int64_t"), "fp16": ("from_fp16", "uint16_t"),
    "bf16": ("from_bf16", "uint16_t"),
}  # fmt: skip


def _bitcast(text: str, source: str, target: str) -> str:
    """The bits of a value of one element type as a value of another."""
    whole = f"{_BITS[source]}({text})" if source in _BITS else text
    if target not in _OF_BITS:
        return f"(({C_TYPES[target]}){whole})"
    function, kind = _OF_BITS[target]
    return f"{function}(({kind}){whole})"


def applied(function: str, a: Sequence[str], dtype: str, argument: str) -> str:
    """A function of C expressions. ``dtype``: the result's type; ``argument``: the last operand's. KeyError: it has no C."""
    if function.startswith("bitcast "):
        return _bitcast(a[0], *function.split()[1:])
    if dtype in HALVES and function not in _EXACT:
        return rounded(applied(function, a, "fp32", "fp32" if argument in HALVES else argument), dtype)
    if argument in HALVES:
        return applied(function, a, "fp32" if dtype in HALVES else dtype, "fp32")
    kind, real = C_TYPES[dtype], argument in ("fp32", "fp64")
    if function == "cast":
        if dtype == "bool":
            return f"({a[0]} != 0)"
        return f"({kind})({a[0]})"
    if function in _BINARY:
        return f"({a[0]} {_BINARY[function]} {a[1]})"
    if function == "select":
        return f"({a[0]} ? {a[1]} : {a[2]})"
    if function in ("max", "min"):
        sign = ">" if function == "max" else "<"
        if real and _LITERAL.fullmatch(a[1]):  # the same by one comparison: gcc makes no vectors of many of the other
            return f"(!({a[0]} {'<=' if function == 'max' else '>='} {a[1]}) ? {a[0]} : {a[1]})"
        if real:  # NaN wins, as in numpy
            return f"(({a[0]} {sign} {a[1]}) | ({a[0]} != {a[0]}) ? {a[0]} : {a[1]})"
        return f"({a[0]} {sign} {a[1]} ? {a[0]} : {a[1]})"
    simple = {
        "neg": "(-{0})",
        "not": "(!{0})",
        "xor": "(!{0} != !{1})",
        "isnan": "({0} != {0})",
        "isinf": "(({0} == INFINITY) | ({0} == -INFINITY))",
        "sign": "({0} != {0} ? {0} : ({0} > 0) - ({0} < 0))" if real else "(({0} > 0) - ({0} < 0))",
    }
    if function in simple:
        return simple[function].format(*a)
    if real:
        item = "1.0f" if argument == "fp32" else "1.0"
        reals = {"div": "({0} / {1})", "reciprocal": f"({item} / {{0}})"}
        if function in reals:
            return reals[function].format(*a)
        if function == "rsqrt":
            return f"({item} / {(_SINGLE if argument == 'fp32' else _DOUBLE)['sqrt']}({a[0]}))"
        if function == "sigmoid" and argument == "fp64":
            return f"(1.0 / (1.0 + exp(-{a[0]})))"
        return f"{(_SINGLE if argument == 'fp32' else _DOUBLE)[function]}({', '.join(a)})"
    whole = {"div": "ht_quotient({0}, {1})", "floordiv": "floordiv({0}, {1})", "mod": "floormod({0}, {1})",
             "pow": "ht_ipow({0}, {1})", "fmod": "ht_rest({0}, {1})", "abs": "({0} < 0 ? -{0} : {0})"}  # fmt: skip
    if argument.startswith("uint"):
        whole |= {"div": "({1} ? {0} / {1} : 0)", "fmod": "({1} ? {0} % {1} : 0)"}
        whole |= {"floordiv": whole["div"], "mod": whole["fmod"]}
    return f"({kind}){whole[function].format(*a)}"


def fused(real: str) -> str:
    """The function of a sum's next product, which is rounded with the sum where the processor does it."""
    return "ht_fused" if real == "float" else "ht_fused_double"


def joined(how: str, name: str, other: str, dtype: str) -> str:
    """Two partial results of a reduction."""
    return applied({"sum": "add", "prod": "mul"}.get(how, how), [name, other], dtype, dtype)


def neutral(how: str, dtype: str) -> str:
    """Neutral element of a reduction, in C."""
    if how in ("sum", "prod"):
        return "1" if how == "prod" else "0"
    if dtype in REALS:
        return "-INFINITY" if how == "max" else "INFINITY"
    signed = {"int64": "INT64", "int32": "INT32", "int16": "INT16", "int8": "INT8"}
    if dtype in signed:
        return f"{signed[dtype]}_{'MIN' if how == 'max' else 'MAX'}"
    return "0" if how == "max" else f"({C_TYPES[dtype]})-1"


def number(value: float, dtype: str) -> str:
    """A constant."""
    if dtype == "bool":
        return str(int(bool(value)))
    if dtype not in REALS:
        return "INT64_MIN" if int(value) == -(2**63) else f"{int(value)}LL"
    value = float(value)
    if value != value:
        return "NAN"
    if value in (float("inf"), float("-inf")):
        return "INFINITY" if value > 0 else "-INFINITY"
    return f"{value!r}{'' if dtype == 'fp64' else 'f'}"
