"""C of sums and products of floats: terms side by side in memory, which functions add up in vectors written by hand.

A C compiler may not reorder sums of floats by itself. Flags that let it do so let it rewrite every other sum, too.
"""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Variable,
    arithmetic,
    free_variables,
    parts,
    sized,
    slope,
)
from haotuner.codegen.mixed_radix import merged
from haotuner.graph.extents import product, same
from haotuner.graph.graph import Graph
from haotuner.graph.types import HALVES

BLOCK_TERMS = 256  # computed terms that wait in memory before they are added: of fp32 a kilobyte
LEAST_TERMS = 8  # fewer terms, as of a small window, are added one by one: loops around them become vectors so
FEW_TERMS = 16  # up to so many, the same holds of terms that lie apart
MOST_UNROLLED = 9  # terms that a compiler writes out by itself, so that the loop around them becomes vectors
MOST_BY_PRAGMA = 32  # terms of one axis that it is told to write out: more are a loop of their own

# Vectors have 32 bytes on AVX-512, too: gcc stores terms so, and a load of two stores waits for both.
SUMS = """#ifdef __AVX__
#define VECTOR_BYTES 32
#else
#define VECTOR_BYTES 16
#endif
#define REDUCED(real, name, op, first) \\
typedef real real##_##name##_vector __attribute__((vector_size(VECTOR_BYTES), aligned(sizeof(real)), may_alias)); \\
typedef real real##_##name##_short __attribute__((vector_size(16), aligned(sizeof(real)), may_alias)); \\
INLINE real ht_##name##_##real(const real* x, int64_t n) { \\
  typedef real##_##name##_vector vector; \\
  typedef real##_##name##_short quarter; \\
  enum { WIDE = VECTOR_BYTES / sizeof(real), SHORT = 16 / sizeof(real) }; \\
  int64_t k = 0; \\
  vector a = (vector){0} + first; \\
  if (n >= 4 * WIDE) { \\
    vector b = a, c = a, d = a; \\
    for (; k + 4 * WIDE <= n; k += 4 * WIDE) { \\
      a = a op *(const vector*)(x + k); \\
      b = b op *(const vector*)(x + k + WIDE); \\
      c = c op *(const vector*)(x + k + 2 * WIDE); \\
      d = d op *(const vector*)(x + k + 3 * WIDE); \\
    } \\
    a = (a op b) op (c op d); \\
  } \\
  for (; k + WIDE <= n; k += WIDE) a = a op *(const vector*)(x + k); \\
  quarter h[VECTOR_BYTES / 16]; \\
  memcpy(h, &a, sizeof a); \\
  quarter f = h[0]; \\
  for (int i = 1; i < VECTOR_BYTES / 16; ++i) f = f op h[i]; \\
  for (; k + SHORT <= n; k += SHORT) f = f op *(const quarter*)(x + k); \\
  real result = SHORT == 4 ? (f[0] op f[2 % SHORT]) op (f[1] op f[3 % SHORT]) : f[0] op f[1]; \\
  for (; k < n; ++k) result = result op x[k]; \\
  return result; \\
}
REDUCED(float, sum, +, 0)
REDUCED(float, prod, *, 1)
REDUCED(double, sum, +, 0)
REDUCED(double, prod, *, 1)
#undef REDUCED
INLINE float ht_dot_float(const float* x, const float* y, int64_t n) {
  typedef float_sum_vector vector;
  enum { WIDE = VECTOR_BYTES / sizeof(float) };
#define TERM(at) (*(const vector*)(x + k + (at)) * *(const vector*)(y + k + (at)))
  int64_t k = 0;
  vector a = {0};
  if (n >= 4 * WIDE) {
    vector b = a, c = a, d = a;
    for (; k + 4 * WIDE <= n; k += 4 * WIDE) a += TERM(0), b += TERM(WIDE), c += TERM(2 * WIDE), d += TERM(3 * WIDE);
    a = (a + b) + (c + d);
  }
  for (; k + WIDE <= n; k += WIDE) a += TERM(0);
#undef TERM
  float_sum_short h[VECTOR_BYTES / 16];
  memcpy(h, &a, sizeof a);
  float_sum_short f = h[0];
  for (int i = 1; i < VECTOR_BYTES / 16; ++i) f += h[i];
  for (; k + 4 <= n; k += 4) f += *(const float_sum_short*)(x + k) * *(const float_sum_short*)(y + k);
  float result = (f[0] + f[2]) + (f[1] + f[3]);
  for (; k < n; ++k) result += x[k] * y[k];
  return result;
}
"""


def summed_by_function(fold: Fold) -> bool:
    """True if a function adds the terms up: float terms, and enough of them."""
    (_, last), dtype = fold.axes[-1], fold.dtype
    if fold.how not in ("sum", "prod") or dtype not in ("fp32", "fp64", *HALVES):
        return False
    least = LEAST_TERMS if _beside(fold) else FEW_TERMS
    return not isinstance(last, int) or last >= least


def needs_unrolling(fold: Fold) -> bool:
    """True if a compiler is told to write out a reduction's terms: those of a line's window, too many to do so by itself."""
    (axis, extent), *others = fold.axes
    if others or not isinstance(extent, int) or not MOST_UNROLLED < extent <= MOST_BY_PRAGMA or summed_by_function(fold):
        return False
    return any(_slides(part, axis, extent) for part in parts(fold.value))


def _slides(e: Expression, axis: Variable, extent: int) -> bool:
    """True if an expression loads windows that overlap: a loop around them moves by less than their extent."""
    indices = [index for index in e.indices if axis.name in free_variables(index)] if isinstance(e, Load) else []
    steps = [slope(index, name) for index in indices for name in free_variables(index) - {axis.name}]
    return any(step is not None and 0 < step < extent for step in steps)


def direct(fold: Fold, graph: Graph) -> tuple[Load, ...]:
    """Loads of the terms, side by side: one, or two whose products they are; none where they are computed."""
    e, axis = fold.value, fold.axes[-1][0]
    product_of = isinstance(e, Apply) and e.function == "mul" and fold.how == "sum" and fold.dtype == "fp32"
    factors = e.arguments if isinstance(e, Apply) and product_of else (e,)
    if fold.dtype in HALVES:
        return ()
    loads = tuple(factor for factor in factors if isinstance(factor, Load) and _along(factor, axis, graph))
    plain = all(load.dtype == fold.dtype and not load.nonempty for load in loads)
    return loads if plain and len(loads) == len(factors) else ()


def one_axis(fold: Fold, graph: Graph) -> Fold:
    """The fold with its last axes as one, where all that it reads of them lies side by side along both."""
    while len(fold.axes) > 1 and (merged_fold := _last_two_merged(fold, graph)) is not None:
        fold = merged_fold
    return fold


def _last_two_merged(fold: Fold, graph: Graph) -> Fold | None:
    *outer, (high, wide), (low, narrow) = fold.axes
    both = Variable(f"{high.name}_{low.name}")

    def renamed(e: Expression) -> Expression | None:
        if not {high.name, low.name} & free_variables(e):
            return e
        if isinstance(e, Apply):
            arguments = tuple(argument for argument in map(renamed, e.arguments) if argument is not None)
            return Apply(e.function, arguments, e.dtype) if len(arguments) == len(e.arguments) else None
        if not isinstance(e, Load) or e.indices[-2:] != (high, low):
            return None
        last = graph.types[e.tensor].shape[-2:]
        if not (same(last[0], wide) and same(last[1], narrow)) or {high.name, low.name} & _names(e.indices[:-2]):
            return None
        digits = arithmetic("floordiv", both, sized(last[1])), arithmetic("mod", both, sized(last[1]))
        return Load(e.tensor, (*e.indices[:-2], *digits), e.dtype, e.nonempty)

    value = renamed(fold.value)
    if value is None:
        return None
    return Fold(fold.how, (*outer, (both, product((wide, narrow)))), value, fold.dtype, fold.tensor)


def _names(indices: Sequence[Expression]) -> frozenset[str]:
    return frozenset[str]().union(*map(free_variables, indices))


def _along(load: Load, axis: Variable, graph: Graph) -> bool:
    """True if an axis is the last index of a load, and no other."""
    digits = [digit for digit, _ in merged(list(zip(load.indices, graph.types[load.tensor].shape, strict=True)))]
    return bool(digits) and digits[-1] == axis and axis.name not in _names(digits[:-1])


def _beside(fold: Fold) -> bool:
    """True if neighbours along the innermost axis lie side by side in something that is read."""
    axis = fold.axes[-1][0]
    loads = [part for part in parts(fold.value) if isinstance(part, Load) and part.indices]
    return any(load.indices[-1] == axis for load in loads)
