"""Sizes that a file computes in its own types, as sympy functions, and the prover that an extent is never negative.

Such a function is one atom of an expression: nothing is expanded or cancelled through it. With known sizes it is a number.

Prover that an extent is never negative, whatever the sizes are: by linear bounds, in a few steps.

A whole part is at least its argument less a fraction and at most its argument; the largest of some is at least each of them.
With such bounds put in, the outermost first, a polynomial of the dimensions is left. Dimensions are at least 0, an extent
is whole: it is enough that the polynomial stays above -1.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import sympy

from haotuner.errors import UsageError
from haotuner.spec.size_arithmetic import REAL, TYPED, WHOLE, Operation

MOST_PARTS = 200  # of one expression: far more than arithmetic of sizes in real files


class Typed(sympy.Function):  # type: ignore[misc]
    """A function of ``TYPED``. Real operands that are numbers are exact doubles."""

    operation: Operation
    is_extended_real = True
    is_commutative = True

    @classmethod
    def eval(cls, *operands: Any) -> Any:
        """The number, where all operands are numbers and it is a finite one."""
        if not all(operand.is_Rational for operand in operands):
            return None
        values = [
            float(operand) if kind == REAL else int(operand)
            for operand, kind in zip(operands, cls.operation.of, strict=True)
        ]
        try:
            result = cls.operation.compute(*values)
        except (UsageError, ZeroDivisionError, OverflowError):
            return None
        return sympy.Rational(result) if abs(result) < float("inf") else None

    def _eval_is_integer(self) -> bool | None:
        return True if self.operation.gives == WHOLE else None

    def _eval_is_nonnegative(self) -> bool | None:
        """Of what never makes a negative number of others."""
        name = type(self).__name__
        if name.startswith("to_uint"):
            return True
        if name in ("real_sub", "to_int8", "to_int16", "to_int32"):
            return None
        signs = [argument.is_nonnegative for argument in self.args]
        return True if (any(signs) if name == "real_max" else all(signs)) else None


FUNCTIONS: Mapping[str, type[Typed]] = {
    name: type(name, (Typed,), {"operation": operation, "nargs": len(operation.of)}) for name, operation in TYPED.items()
}


def typed(name: str, *operands: Any) -> Any:
    """A function of ``TYPED``, or its number."""
    exact = (sympy.Rational(operand) if isinstance(operand, float) else sympy.sympify(operand) for operand in operands)
    result = FUNCTIONS[name](*exact)
    return int(result) if result.is_Integer and TYPED[name].gives == WHOLE else result


def is_real(value: Any) -> bool:
    """True if a value is a function that gives a real number: no extent."""
    return isinstance(value, Typed) and value.operation.gives == REAL


def concealed(e: Any) -> Any:
    """The expression with a dimension of its own in the place of each function, so that bounds of the rest can be shown."""
    atoms = e.atoms(Typed)
    return e.xreplace({atom: _stand_in(atom) for atom in atoms}) if atoms else e


@lru_cache(1 << 12)
def _stand_in(value: Any) -> Any:
    return sympy.Dummy(integer=value.is_integer, real=True, nonnegative=value.is_nonnegative)


@lru_cache(1 << 14)
def parts(e: Any) -> int:
    """Number of parts of an expression, shared ones as often as they stand in it."""
    return 1 + sum(map(parts, e.args)) if isinstance(e, sympy.Basic) else 1


_STEPS = 200  # bounds put in for one question: more than sizes of windows need, and some milliseconds


def never_negative(extent: Any) -> bool:
    """True where it is shown; False says nothing."""
    import sympy

    return _shown(concealed(sympy.expand(sympy.sympify(extent))), [_STEPS])


def _shown(e: Any, left: list[int]) -> bool:
    import sympy

    left[0] -= 1
    if left[0] < 0:
        return False
    inner = {function for atom in _functions(e) for argument in atom.args for function in _functions(argument)}
    outer = sorted(_functions(e) - inner, key=sympy.default_sort_key)
    if not outer:
        return _polynomial_above(e)
    atom = outer[0]
    stand_in = sympy.Dummy()
    by_degree = sympy.collect(sympy.expand(e.xreplace({atom: stand_in})), stand_in, evaluate=False)
    if set(by_degree) - {stand_in, sympy.S.One}:
        return False
    factor, rest = by_degree.get(stand_in, sympy.S.Zero), by_degree.get(sympy.S.One, sympy.S.Zero)
    sign = _sign(factor)
    if sign == 0:
        return False
    if isinstance(atom, sympy.floor):
        value = atom.args[0]
        divisor = sympy.fraction(sympy.together(value))[1]
        lost = 1 - sympy.Rational(1, divisor) if divisor.is_Integer else sympy.S.One
        return _shown(sympy.expand(factor * (value - lost if sign > 0 else value) + rest), left)
    some = isinstance(atom, sympy.Max) == (sign > 0)  # one bound is enough, or all are needed
    return (any if some else all)(_shown(sympy.expand(factor * argument + rest), left) for argument in atom.args)


def _functions(e: Any) -> set[Any]:
    import sympy

    return set(e.atoms(sympy.floor, sympy.Max, sympy.Min))


def _sign(factor: Any) -> int:
    """1 for a polynomial that is never negative, -1 for one that is never positive, 0 where neither shows."""
    for sign in (1, -1):
        if all(_is_monomial(term) and (sign * term).as_coeff_Mul()[0] >= 0 for term in factor.as_ordered_terms()):
            return sign
    return 0


def _is_monomial(term: Any) -> bool:
    return bool(term.is_polynomial(*term.free_symbols)) and all(symbol.is_nonnegative for symbol in term.free_symbols)


def _polynomial_above(e: Any) -> bool:
    """True if a polynomial of dimensions is above -1 for all of them."""
    terms = e.as_ordered_terms()
    if not all(_is_monomial(term) for term in terms):
        return False
    return all(term > -1 if term.is_number else term.as_coeff_Mul()[0] >= 0 for term in terms)
