"""Affine: indices of tensors as sums of iterators, of whole parts and of remainders, with exact division and bounds.

Coefficients and divisors are whole numbers; the summand without an iterator is an extent. Sums are normal: terms are
sorted, and ``k*(x // k) + x % k`` is ``x``. Proofs hold for all dimensions of at least 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import TypeAlias

from haotuner.graph.extents import Extent, canonical, dimension, dimensions, floor_division, quotient, text
from haotuner.graph.typed_extents import never_negative


@dataclass(frozen=True, slots=True)
class Quotient:
    """``dividend // divisor``, rounded down; the divisor at least 2."""

    dividend: Affine
    divisor: int


@dataclass(frozen=True, slots=True)
class Remainder:
    """``dividend % divisor``, at least 0; the divisor at least 2."""

    dividend: Affine
    divisor: int


Atom: TypeAlias = str | Quotient | Remainder
Bounds: TypeAlias = tuple[Extent, Extent]  # the least value and the one behind the largest


@dataclass(frozen=True, slots=True)
class Affine:
    """``terms``: atoms with their coefficients, none 0, sorted; ``const``: an extent."""

    terms: tuple[tuple[Atom, int], ...] = ()
    const: Extent = 0

    def __add__(self, other: Affine) -> Affine:
        return _normal({**dict(self.terms)}, other.terms, plus(self.const, other.const))

    def __sub__(self, other: Affine) -> Affine:
        return self + other * -1

    def __mul__(self, factor: int) -> Affine:
        if factor == 0:
            return Affine()
        return Affine(tuple((atom, item * factor) for atom, item in self.terms), plus(0, self.const, factor))

    def coefficient(self, atom: Atom) -> int:
        """The coefficient of an atom."""
        return dict(self.terms).get(atom, 0)

    def without(self, name: str) -> Affine:
        """The sum less the iterator's own term."""
        return Affine(tuple(item for item in self.terms if item[0] != name), self.const)

    @property
    def names(self) -> frozenset[str]:
        """Iterators in it."""
        return _names(self)

    def __str__(self) -> str:
        result = ""
        for atom, factor in self.terms:
            size = f"{abs(factor)}*" if abs(factor) != 1 else ""
            sign = ("-" if factor < 0 else "") if not result else (" - " if factor < 0 else " + ")
            result += f"{sign}{size}{atom_text(atom)}"
        if not result:
            return text(self.const)
        if self.const == 0:
            return result
        if isinstance(self.const, int):
            return f"{result} {'-' if self.const < 0 else '+'} {abs(self.const)}"
        return f"{result} + {text(self.const)}"


def atom_text(atom: Atom) -> str:
    """The atom as ``text.py`` reads it."""
    if isinstance(atom, str):
        return atom
    return f"(({atom.dividend}) {'//' if isinstance(atom, Quotient) else '%'} {atom.divisor})"


@lru_cache(1 << 14)
def _names(e: Affine) -> frozenset[str]:
    parts = (frozenset({atom}) if isinstance(atom, str) else atom.dividend.names for atom, _ in e.terms)
    return frozenset().union(*parts)


def iterator(name: str) -> Affine:
    """An iterator alone."""
    return Affine(((name, 1),))


def number(value: Extent) -> Affine:
    """An extent alone."""
    return Affine((), value)


def _normal(terms: dict[Atom, int], others: tuple[tuple[Atom, int], ...], const: Extent) -> Affine:
    for atom, factor in others:
        terms[atom] = terms.get(atom, 0) + factor
    result = Affine(tuple(sorted(((a, f) for a, f in terms.items() if f), key=_order)), const)
    for atom, factor in result.terms:
        if isinstance(atom, str):
            continue
        dividend, divisor = atom.dividend, atom.divisor
        same_quotient = Quotient(dividend, divisor)
        if isinstance(atom, Remainder) and terms.get(same_quotient, 0) == factor * divisor:  # k * (x // k) + x % k is x
            return _less(result, {atom: factor, same_quotient: factor * divisor}) + dividend * factor
        if isinstance(atom, Quotient) and factor % divisor == 0:  # x - k * (x // k) is x % k
            size = -factor // divisor
            if all(terms.get(part, 0) == size * coefficient for part, coefficient in dividend.terms):
                return _less(result, {atom: factor}) - dividend * size + Affine(((Remainder(dividend, divisor), size),))
    return result


def _less(e: Affine, terms: Mapping[Atom, int]) -> Affine:
    """The sum without some of its terms."""
    return Affine(tuple((atom, factor) for atom, factor in e.terms if atom not in terms), e.const)


def _order(item: tuple[Atom, int]) -> tuple[bool, str]:
    return not isinstance(item[0], str), atom_text(item[0])


Ranges: TypeAlias = Mapping[str, Bounds]


def substituted(e: Affine, values: Mapping[str, Affine], ranges: Ranges) -> Affine:
    """The index with sums for some iterators; ``ranges``: of the iterators in these sums, to simplify quotients."""
    if not e.names & values.keys():
        return e
    result = number(e.const)
    for atom, factor in e.terms:
        if isinstance(atom, str):
            result += values.get(atom, iterator(atom)) * factor
        else:
            make = divided if isinstance(atom, Quotient) else remainder
            result += make(substituted(atom.dividend, values, ranges), atom.divisor, ranges) * factor
    return result


def divided(e: Affine, divisor: int, ranges: Ranges) -> Affine:
    """``e // divisor``: terms that the divisor divides stand outside; a rest between 0 and the divisor is dropped."""
    if divisor == 1:
        return e
    quotients, rest = parted(e, divisor)
    extent = bounds(rest, ranges)
    if extent is not None and at_most(0, extent[0]) and at_most(extent[1], divisor):
        return quotients
    return quotients + Affine(((Quotient(rest, divisor), 1),))


def remainder(e: Affine, divisor: int, ranges: Ranges) -> Affine:
    """``e % divisor``, simpler where ranges show it."""
    if divisor == 1:
        return Affine()
    _, rest = parted(e, divisor)
    extent = bounds(rest, ranges)
    if extent is not None and at_most(0, extent[0]) and at_most(extent[1], divisor):
        return rest
    return Affine(((Remainder(rest, divisor), 1),))


def parted(e: Affine, divisor: int) -> tuple[Affine, Affine]:
    """``quotients`` and ``rest`` of ``divisor * quotients + rest``."""
    outside = tuple((atom, factor // divisor) for atom, factor in e.terms if factor % divisor == 0)
    inside = tuple((atom, factor) for atom, factor in e.terms if factor % divisor)
    if isinstance(e.const, int):
        return Affine(outside, e.const // divisor), Affine(inside, e.const % divisor)
    exact = quotient(e.const, divisor)
    return (Affine(outside, exact), Affine(inside, 0)) if exact is not None else (Affine(outside), Affine(inside, e.const))


@lru_cache(1 << 16)  # sympy's sums take tens of microseconds, and a search asks for few different ones
def plus(extent: Extent, other: Extent, factor: int = 1) -> Extent:
    """``extent + factor * other``."""
    return (
        extent + factor * other if isinstance(extent, int) and isinstance(other, int) else canonical(extent + factor * other)
    )


def bounds(e: Affine, ranges: Ranges) -> Bounds | None:
    """The least value and the one behind the largest; None where a range is not known."""
    low = high = e.const
    for atom, factor in e.terms:
        if isinstance(atom, str):
            if atom not in ranges:
                return None
            first, behind = ranges[atom]
        elif isinstance(atom, Remainder):
            first, behind = 0, atom.divisor
        else:
            inner = bounds(atom.dividend, ranges)
            if inner is None:
                return None
            first, behind = floor_division(inner[0], atom.divisor), plus(floor_division(plus(inner[1], -1), atom.divisor), 1)
        last = plus(behind, -1)
        low = plus(low, first if factor > 0 else last, factor)
        high = plus(high, last if factor > 0 else first, factor)
    return low, plus(high, 1)


@lru_cache(1 << 16)
def at_most(extent: Extent, other: Extent) -> bool:
    """True where ``extent <= other`` is shown for all dimensions of at least 1."""
    if isinstance(extent, int) and isinstance(other, int):
        return extent <= other
    gap = plus(other, extent, -1)
    if isinstance(gap, int):
        return gap >= 0
    symbols = {dimension(name): dimension(name) + 1 for name in dimensions(gap)}
    return never_negative(gap.subs(symbols, simultaneous=True))


def inside(e: Affine, low: Extent, high: Extent, ranges: Ranges) -> bool:
    """True where the index is shown to lie in ``low <= e < high``."""
    extent = bounds(e, ranges)
    return extent is not None and at_most(low, extent[0]) and at_most(extent[1], high)


def least(first: Extent, other: Extent) -> Extent | None:
    """The smaller of two extents; None where neither is shown to be."""
    return first if at_most(first, other) else other if at_most(other, first) else None


def most(first: Extent, other: Extent) -> Extent | None:
    """The larger of two extents; None where neither is shown to be."""
    return other if at_most(first, other) else first if at_most(other, first) else None


def mapped(e: Affine, rename: Callable[[str], str]) -> Affine:
    """Copy with other names of iterators."""

    def named(atom: Atom) -> Atom:
        return rename(atom) if isinstance(atom, str) else type(atom)(mapped(atom.dividend, rename), atom.divisor)

    return _normal({}, tuple((named(atom), factor) for atom, factor in e.terms), e.const)


def mapped_extents(e: Affine, change: Callable[[Extent], Extent]) -> Affine:
    """Copy with other extents as summands."""

    def inner(atom: Atom) -> Atom:
        return atom if isinstance(atom, str) else type(atom)(mapped_extents(atom.dividend, change), atom.divisor)

    return _normal({}, tuple((inner(atom), factor) for atom, factor in e.terms), change(e.const))
