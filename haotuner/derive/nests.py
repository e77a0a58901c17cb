"""Nests inside of nests: their sites, changes at a site, and the normal form of an expression."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from haotuner.derive.expression import Apply, Body, Number, Read, Scope, reads, with_reads
from haotuner.derive.rules import tightened, tightened_read

_ROUNDS = 3  # of tightening: what an outer nest reads may shrink an inner one


@dataclass(frozen=True, slots=True)
class Site:
    """A nest with the one that reads it and the read; both None for the whole expression."""

    scope: Scope
    outer: Scope | None = None
    read: Read | None = None


def sites(root: Scope) -> Iterator[Site]:
    """Every nest, the whole expression first."""
    yield Site(root)
    yield from _inside(root)


def _inside(outer: Scope) -> Iterator[Site]:
    for read in reads(outer.body):
        if isinstance(read.source, Scope):
            yield Site(read.source, outer, read)
            yield from _inside(read.source)


def with_scope(root: Scope, site: Site, new: Scope) -> Scope:
    """The expression with another nest of the same axes at a site."""
    if site.outer is None or site.read is None:
        return new
    return with_read(root, site, Read(new, site.read.index))


def with_read(root: Scope, site: Site, new: Body) -> Scope:
    """The expression with another read at a site inside."""
    outer, read = site.outer, site.read
    assert outer is not None and read is not None

    def walk(scope: Scope) -> Scope:
        if scope == outer:
            return replace(scope, body=with_reads(scope.body, lambda item: new if item == read else item))
        return replace(scope, body=with_reads(scope.body, _deeper(walk)))

    return walk(root)


def _deeper(walk: Callable[[Scope], Scope]) -> Callable[[Read], Body]:
    return lambda read: Read(walk(read.source), read.index) if isinstance(read.source, Scope) else read


def is_layout(scope: Scope) -> bool:
    """True if a nest moves elements and computes nothing."""
    return not scope.sums and isinstance(scope.body, Read)


def normal(root: Scope) -> Scope:
    """The expression with tight ranges from 0 on, and layouts of layouts as one."""
    for _ in range(_ROUNDS):
        result = _normal(root)
        if result == root:
            return root
        root = result
    return root


def _normal(scope: Scope) -> Scope:
    scope = tightened(scope)

    def tightened_nest(read: Read) -> Body:
        if not isinstance(read.source, Scope):
            return read
        tight = tightened_read(read, scope.ranges)
        assert isinstance(tight.source, Scope)
        return Read(_joined(_normal(tight.source)), tight.index)

    return replace(scope, body=with_reads(scope.body, tightened_nest))


def _joined(scope: Scope) -> Scope:
    """A layout of a layout as one layout."""
    from haotuner.derive.rules import inlined

    inner = scope.body.source if isinstance(scope.body, Read) else None
    return inlined(scope) if is_layout(scope) and isinstance(inner, Scope) and is_layout(inner) else scope


def operations(body: Body) -> int:
    """Arithmetic of one element, a sum's own addition left out."""
    if isinstance(body, (Number, Read)):
        return 0
    inner = sum(operations(operand) for operand in body.operands)
    return inner + (len(body.operands) - 1 if isinstance(body, Apply) and body.function in ("add", "mul") else 1)
