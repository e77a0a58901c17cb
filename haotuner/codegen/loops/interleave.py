"""Interleaved rows of several tensors, as a transposed convolution's: element q j + r is strand r's element j.

Written element by element, each asks for its quotient and rest and reads alone. Written a group of q at a time, every strand
is read as it lies, and a compiler weaves vectors.
"""

from __future__ import annotations

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

MOST = 8  # strands: vectors are woven of few


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
    return counts.pop() if len(counts) == 1 and 2 <= max(counts) <= MOST else None


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
            return Load(e.tensor, tuple(map(of, e.indices)), e.dtype, e.held)
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
