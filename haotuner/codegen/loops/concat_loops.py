"""Loops over rows that several tensors make: concatenated pieces, or interleaved elements.

Interleaved rows of several tensors, as a transposed convolution's: element q j + r is strand r's element j.

Written element by element, each asks for its quotient and rest and reads alone. Written a group of q at a time, every strand
is read as it lies, and a compiler weaves vectors.

Element by element, each asks of which tensor it is and reads of all of them, at places that no vector has side by side.
"""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.codegen.expressions import (
    Apply,
    Expression,
    Fold,
    Load,
    Number,
    Variable,
    arithmetic,
    free_variables,
    index,
    parts,
)
from haotuner.graph.extents import Extent

MOST_STRANDS = 8  # strands: vectors are woven of few


def interleaved_parts(value: Expression, last: Variable) -> int | None:
    """Number of strands that the rows of a value have along its last variable; None where none show."""
    counts = set()
    for load in parts(value):
        if isinstance(load, Load) and last.name in free_variables(load):
            for part in (part for index in load.indices for part in parts(index)):
                if isinstance(part, Apply) and part.function in ("floordiv", "mod") and last.name in free_variables(part):
                    count = part.arguments[1]
                    known = isinstance(count, Number) and _offset(part.arguments[0], last) is not None
                    counts.add(int(count.value) if isinstance(count, Number) and known else 0)
    return counts.pop() if len(counts) == 1 and 2 <= max(counts) <= MOST_STRANDS else None


def interleaved_part(value: Expression, last: Variable, count: int, rest: int, along: Variable) -> Expression:
    """The value at ``count along + rest`` of the last variable."""
    here = arithmetic("add", arithmetic("mul", along, index(count)), index(rest))
    known: dict[int, Expression] = {}

    def of(e: Expression) -> Expression:
        if e == last:
            return here
        if last.name not in free_variables(e):
            return e
        if id(e) not in known:
            known[id(e)] = made(e)
        return known[id(e)]

    def made(e: Expression) -> Expression:
        if isinstance(e, Load):
            return Load(e.tensor, tuple(map(of, e.indices)), e.dtype, e.nonempty)
        if isinstance(e, Fold):
            return Fold(e.how, e.axes, of(e.value), e.dtype, e.tensor)
        assert isinstance(e, Apply)
        behind = _offset(e.arguments[0], last)
        if behind is not None and e.function in ("floordiv", "mod") and e.arguments[1] == index(count):
            whole, left = divmod(rest + behind, count)
            return index(left) if e.function == "mod" else arithmetic("add", along, index(whole))
        return Apply(e.function, tuple(map(of, e.arguments)), e.dtype)

    return of(value)


def _offset(e: Expression, last: Variable) -> int | None:
    """Offset of an index behind the last variable; None if it is not one."""
    if e == last:
        return 0
    if isinstance(e, Apply) and e.function in ("add", "sub") and e.arguments[0] == last:
        behind = e.arguments[1]
        if isinstance(behind, Number):
            return int(behind.value) if e.function == "add" else -int(behind.value)
    return None


MOST_PIECES = 16  # pieces: each is a loop of its own


@dataclass(frozen=True, slots=True)
class Piece:
    """``value`` of the last variable from ``first`` up to ``end``."""

    first: int
    end: int
    value: Expression

    def bounds(self, low: str, high: str) -> tuple[str, str]:
        """In C, where it begins and ends among elements from ``low`` to ``high``."""
        return f"{low} > {self.first} ? {low} : {self.first}", f"({high} < {self.end} ? {high} : {self.end})"


def pieces(value: Expression, last: Variable, extent: Extent) -> list[Piece]:
    """The pieces of a row of fixed extent in order; none where it is whole, or of too many."""
    if not isinstance(extent, int):
        return []
    cuts = {cut for part in parts(value) if (cut := _cut(part, last)) is not None and 0 < cut < extent}
    if not 0 < len(cuts) < MOST_PIECES:
        return []
    ends = [0, *sorted(cuts), extent]
    return [Piece(a, b, _Within(last, a, b).of(value)) for a, b in zip(ends[:-1], ends[1:], strict=True)]


def _cut(e: Expression, last: Variable) -> int | None:
    """Index along the last variable at which a choice between two tensors changes, or None."""
    if isinstance(e, Apply) and e.function == "select" and isinstance(e.arguments[0], Apply):
        condition = e.arguments[0]
        if condition.function == "less" and condition.arguments[0] == last and isinstance(condition.arguments[1], Number):
            return int(condition.arguments[1].value)
    return None


class _Within:
    """Rewrites what depends on the last variable, which is at least ``first`` and less than ``end``."""

    def __init__(self, last: Variable, first: int, end: int) -> None:
        self.last, self.first, self.end = last, first, end
        self.known: dict[int, Expression] = {}

    def of(self, e: Expression) -> Expression:
        """Expression of the same value there."""
        if isinstance(e, Variable) or self.last.name not in free_variables(e):
            return e
        if id(e) not in self.known:
            self.known[id(e)] = self._made(e)
        return self.known[id(e)]

    def _made(self, e: Expression) -> Expression:
        if isinstance(e, Load):
            return Load(e.tensor, tuple(map(self.of, e.indices)), e.dtype, e.nonempty)
        if isinstance(e, Fold):
            return Fold(e.how, e.axes, self.of(e.value), e.dtype, e.tensor)
        assert isinstance(e, Apply)
        cut = _cut(e, self.last)
        if cut is not None and (cut >= self.end or cut <= self.first):
            return self.of(e.arguments[1] if cut >= self.end else e.arguments[2])
        arguments = tuple(map(self.of, e.arguments))
        ends = self._ends(arguments[0])
        if ends is not None and e.function in ("min", "max"):  # a place is kept inside of a tensor: here it is
            bound = arguments[1]
            if isinstance(bound, Number) and (ends[1] <= bound.value if e.function == "min" else ends[0] >= bound.value):
                return arguments[0]
        return Apply(e.function, arguments, e.dtype)

    def _ends(self, e: Expression) -> tuple[int, int] | None:
        """The least and the largest of an index that is the last variable, or lies before it."""
        if e == self.last:
            return self.first, self.end - 1
        if isinstance(e, Apply) and e.function == "sub" and e.arguments[0] == self.last:
            behind = e.arguments[1]
            if isinstance(behind, Number):
                return self.first - int(behind.value), self.end - 1 - int(behind.value)
        return None
