"""Prover that an extent is never negative, whatever the sizes are: by linear bounds, in a few steps.

A whole part is at least its argument less a fraction and at most its argument; the largest of some is at least each of them.
With such bounds put in, the outermost first, a polynomial of the dimensions is left. Dimensions are at least 0, an extent
is whole: it is enough that the polynomial stays above -1.
"""

from __future__ import annotations

from typing import Any

_STEPS = 200  # bounds put in for one question: more than sizes of windows need, and some milliseconds


def never_negative(extent: Any) -> bool:
    """True where it is shown; False says nothing."""
    import sympy

    from haotuner.graph.typed_extents import concealed

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
