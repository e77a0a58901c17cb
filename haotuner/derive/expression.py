"""Expressions: loop nests over tensors, ``L[spatial] S[summation] body``, in the manner of OLLIE (arXiv 2208.02025).

A tensor, or a nest that another one reads, is 0 outside of its ranges. So padding, zeros between elements and concatenation
are ranges, and every rule about them is one about ranges. Names of iterators are unique in a whole expression.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TypeAlias

from haotuner.derive.affine import Affine, Bounds, Ranges, bounds, iterator, least, mapped, most, plus, substituted
from haotuner.graph.extents import Extent, ceiling_division, floor_division


@dataclass(frozen=True, slots=True)
class Loop:
    """An iterator over ``low <= name < high``."""

    name: str
    low: Extent
    high: Extent

    @property
    def extent(self) -> Extent:
        """Number of its values."""
        return plus(self.high, self.low, -1)


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor in memory; ``shape``: extents, outermost first. ``constant``: its numbers are known before a request."""

    name: str
    shape: tuple[Extent, ...]
    constant: bool = False


@dataclass(frozen=True, slots=True)
class Number:
    """A number."""

    value: float


@dataclass(frozen=True, slots=True)
class Read:
    """An element of a tensor or of a nest; 0 where an index is outside."""

    source: Tensor | Scope
    index: tuple[Affine, ...]


@dataclass(frozen=True, slots=True)
class Apply:
    """A function of ``ops/formula.py`` of some operands; ``mul`` and ``add`` have two or more."""

    function: str
    operands: tuple[Body, ...]


@dataclass(frozen=True, slots=True)
class Scope:
    """A nest: for all ``spatial`` iterators the sum over all ``sums`` of the body."""

    spatial: tuple[Loop, ...]
    sums: tuple[Loop, ...]
    body: Body

    @property
    def ranges(self) -> dict[str, Bounds]:
        """Ranges of its own iterators."""
        return {loop.name: (loop.low, loop.high) for loop in (*self.spatial, *self.sums)}

    @property
    def box(self) -> tuple[Bounds, ...]:
        """Ranges of its axes."""
        return tuple((loop.low, loop.high) for loop in self.spatial)


Body: TypeAlias = Number | Read | Apply


def box_of(source: Tensor | Scope) -> tuple[Bounds, ...]:
    """Ranges of the axes of a source."""
    return source.box if isinstance(source, Scope) else tuple((0, extent) for extent in source.shape)


def reads(body: Body) -> Iterator[Read]:
    """The reads of a body, those inside of nests that it reads left out."""
    if isinstance(body, Read):
        yield body
    elif isinstance(body, Apply):
        for operand in body.operands:
            yield from reads(operand)


def scopes(scope: Scope) -> Iterator[Scope]:
    """A nest and all nests in it."""
    yield scope
    for read in reads(scope.body):
        if isinstance(read.source, Scope):
            yield from scopes(read.source)


def tensors(scope: Scope) -> dict[str, Tensor]:
    """All tensors by name."""
    return {
        read.source.name: read.source
        for inner in scopes(scope)
        for read in reads(inner.body)
        if isinstance(read.source, Tensor)
    }


def names(scope: Scope) -> set[str]:
    """Names of all iterators."""
    return {loop.name for inner in scopes(scope) for loop in (*inner.spatial, *inner.sums)}


def with_reads(body: Body, replacement: Callable[[Read], Body]) -> Body:
    """The body with something else for each read."""
    if isinstance(body, Read):
        return replacement(body)
    if isinstance(body, Apply):
        return apply(body.function, *(with_reads(operand, replacement) for operand in body.operands))
    return body


def apply(function: str, *operands: Body) -> Body:
    """A function; products in products and sums in sums are flat, and a single operand of these is itself."""
    if function not in ("mul", "add"):
        return Apply(function, operands)
    flat = [
        part
        for item in operands
        for part in (item.operands if isinstance(item, Apply) and item.function == function else (item,))
    ]
    neutral = Number(1.0 if function == "mul" else 0.0)
    rest = [part for part in flat if part != neutral]
    return rest[0] if len(rest) == 1 else Apply(function, tuple(rest)) if rest else neutral


def factors(body: Body) -> tuple[Body, ...]:
    """The factors of a product; the body alone where it is none."""
    return body.operands if isinstance(body, Apply) and body.function == "mul" else (body,)


def iterators(body: Body) -> frozenset[str]:
    """Iterators of its own nest, or of those around, that a body hangs on."""
    return frozenset().union(*(e.names for read in reads(body) for e in read.index))


def put(body: Body, values: Mapping[str, Affine], ranges: Ranges) -> Body:
    """The body with sums for some iterators of its nest."""
    return with_reads(body, lambda read: Read(read.source, tuple(substituted(e, values, ranges) for e in read.index)))


def fresh(stem: str, used: Collection[str]) -> str:
    """A name that is not used: the stem's letters with a number."""
    letters = stem.rstrip("0123456789") or "i"
    return next(name for number in range(1, len(used) + 3) if (name := f"{letters}{number}") not in used)


def renamed(scope: Scope, rename: Callable[[str], str]) -> Scope:
    """Copy with other names of iterators, in all nests."""

    def source(read: Read) -> Read:
        inner = renamed(read.source, rename) if isinstance(read.source, Scope) else read.source
        return Read(inner, tuple(mapped(e, rename) for e in read.index))

    loops = [tuple(replace(loop, name=rename(loop.name)) for loop in part) for part in (scope.spatial, scope.sums)]
    return Scope(loops[0], loops[1], with_reads(scope.body, source))


def apart(scope: Scope, used: Collection[str]) -> Scope:
    """Copy none of whose iterators has a used name."""
    unavailable, scope_names = set(used), names(scope)
    other: dict[str, str] = {}
    for name in sorted(scope_names & unavailable):
        other[name] = fresh(name, unavailable | scope_names)
        unavailable.add(other[name])
    return renamed(scope, lambda name: other.get(name, name)) if other else scope


# Functions that make 0 of 0: outside of an operand's range they are 0, too.
ZERO_OF_ZERO = frozenset({"neg", "abs", "sign", "relu", "tanh", "sin", "sqrt", "floor", "ceil", "round", "erf"})
Support: TypeAlias = tuple[Extent | None, Extent | None]  # ends where they are known


def supports(body: Body, name: str, ranges: Ranges) -> tuple[Support, ...]:
    """Ranges of an iterator, outside of each of which a body is 0 for all values of the other iterators."""
    if isinstance(body, Number):
        return ((0, 0),) if body.value == 0 else ()
    if isinstance(body, Read):
        spans = (_index_support(e, name, *ends, ranges) for e, ends in zip(body.index, box_of(body.source), strict=True))
        return tuple(dict.fromkeys(item for item in spans if item != (None, None)))
    parts = [supports(operand, name, ranges) for operand in body.operands]
    if body.function == "mul":
        return tuple(dict.fromkeys(item for part in parts for item in part))
    if body.function in ("add", "sub"):
        lows, highs = (tuple(part[0][end] if part else None for part in parts) for end in (0, 1))
        return ((_combined(lows, least), _combined(highs, most)),)
    return parts[0] if body.function in ZERO_OF_ZERO else ()


def _index_support(e: Affine, name: str, low: Extent, high: Extent, ranges: Ranges) -> Support:
    factor, rest = e.coefficient(name), e.without(name)
    if factor == 0 or name in rest.names:
        return None, None
    extent = bounds(rest, ranges)
    if extent is None:
        return None, None
    least_, behind = extent
    if factor > 0:
        return _ceiling(plus(plus(low, behind, -1), 1), factor), plus(_floor(plus(plus(high, -1), least_, -1), factor), 1)
    return _ceiling(plus(plus(least_, high, -1), 1), -factor), plus(_floor(plus(plus(behind, -1), low, -1), -factor), 1)


@lru_cache(1 << 14)
def _ceiling(value: Extent, divisor: int) -> Extent:
    return ceiling_division(value, divisor)


@lru_cache(1 << 14)
def _floor(value: Extent, divisor: int) -> Extent:
    return floor_division(value, divisor)


def _combined(ends: tuple[Extent | None, ...], choose: Callable[[Extent, Extent], Extent | None]) -> Extent | None:
    result = ends[0]
    for end in ends[1:]:
        result = None if result is None or end is None else choose(result, end)
    return result


def surrounded(scope: Scope, used: Collection[str]) -> Scope:
    """A nest around another one that reads all of it."""
    unavailable = set(used) | names(scope)
    outer: list[Loop] = []
    for loop in scope.spatial:
        outer.append(replace(loop, name=fresh(loop.name, unavailable)))
        unavailable.add(outer[-1].name)
    return Scope(tuple(outer), (), Read(scope, tuple(iterator(loop.name) for loop in outer)))
