"""Steps from one expression to others: explorative ones, and those that the iterator mapping table asks for.

Guided steps repair what keeps a nest from being a kernel. An iterator that stands in both operands and the result, and in
one operand only beside another, is merged with it. An index with whole parts gets a layout with an axis for them. A sum over
more than its body needs is shifted along what bounds it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from haotuner.derive.affine import at_most
from haotuner.derive.expression import Body, Loop, Read, Scope, names, reads, surrounded, with_reads
from haotuner.derive.kernels import is_constant, product_of, table
from haotuner.derive.nests import Site, is_layout, normal, sites, with_read, with_scope
from haotuner.derive.rules import (
    Step,
    axis_merge,
    axis_split,
    distributed,
    divisors,
    factored,
    layout_split,
    sum_skew,
    sum_split,
    summation_split,
    unsplit,
)
from haotuner.graph.extents import is_symbolic

WINDOW = 3  # towards kernels: what window sizes are split into
BLOCK = 16  # towards kernels: rows of a product that stand side by side
MOST_SPLIT = 16  # larger ranges of sums are channels, which kernels cut themselves


@dataclass(frozen=True, slots=True)
class Move:
    """A step's rule, its detail, and the resulting expression; None where a condition was not shown."""

    rule: str
    detail: str
    result: Scope | None
    guided: bool = False


def moves(root: Scope, explores: bool) -> Iterator[Move]:
    """Every step from an expression; guided ones alone unless it ``explores``."""
    yield from guided(root)
    if explores:
        yield from explorative(root)


# Guided


def guided(root: Scope) -> Iterator[Move]:
    """Steps that bring a nest nearer to a kernel."""
    used = names(root)
    for site in sites(root):
        yield from _merges(root, site, used)
        yield from _layouts(root, site, used)
        yield from _skews(root, site, used)
        for step in factored(site.scope, used):
            yield _scope_move(root, site, step, guided_=True)


def _scope_move(root: Scope, site: Site, step: Step, *, guided_: bool = False) -> Move:
    result = step.result
    expression = None if not isinstance(result, Scope) else normal(with_scope(root, site, result))
    return Move(step.rule, step.detail, expression, guided_)


def _read_move(root: Scope, site: Site, step: Step, *, guided_: bool = False) -> Move:
    result = step.result
    expression = None if not isinstance(result, Read) else normal(with_read(root, site, result))
    return Move(step.rule, step.detail, expression, guided_)


def _merges(root: Scope, site: Site, used: set[str]) -> Iterator[Move]:
    """Iterator merges ``x + a*y`` where x is in one operand alone and y in both."""
    operands = product_of(site.scope)
    if operands is None or site.read is None or site.outer is None:
        return
    roles = table(site.scope, *operands)
    pairs = dict.fromkeys(
        (x, y, other // factor)
        for read in operands
        for e in read.index
        for x, factor in e.terms
        for y, other in e.terms
        if isinstance(x, str) and isinstance(y, str) and x != y and other % factor == 0
        if roles.get(x) in ("m", "n") and roles.get(y) == "b"
    )
    for x, y, size in pairs:
        yield _read_move(root, site, axis_merge(site.read, x, y, size, site.outer.ranges, used), guided_=True)


def _layouts(root: Scope, site: Site, used: set[str]) -> Iterator[Move]:
    """Layouts for indices that have whole parts."""
    if product_of(site.scope) is None:
        return
    for read in dict.fromkeys(reads(site.scope.body)):
        if is_constant(read):
            continue
        for axis, e in enumerate(read.index):
            for size in sorted(divisors(e)):
                step = layout_split(read, axis, size, site.scope.ranges, used)
                yield _in_body(root, site, read, step)


def _in_body(root: Scope, site: Site, read: Read, step: Step) -> Move:
    def replaced(item: Read) -> Body:
        assert isinstance(step.result, Read)
        return step.result if item == read else item

    if step.result is None:
        return Move(step.rule, step.detail, None, True)
    changed = Scope(site.scope.spatial, site.scope.sums, with_reads(site.scope.body, replaced))
    return Move(step.rule, step.detail, normal(with_scope(root, site, changed)), True)


def _skews(root: Scope, site: Site, used: set[str]) -> Iterator[Move]:
    """Shifts of sums whose body is 0 for most of the range, whatever the axes are."""
    if product_of(site.scope) is not None:
        return
    for loop in site.scope.sums:
        for e in dict.fromkeys(e for read in reads(site.scope.body) for e in read.index):
            if loop.name in e.names and len(e.terms) > 1 and e.coefficient(loop.name):
                step = sum_skew(site.scope, loop.name, e, used)
                if isinstance(step.result, Scope) and not _shorter(loop, step.result):
                    continue
                yield _scope_move(root, site, step, guided_=True)


def _shorter(loop: Loop, scope: Scope) -> bool:
    """True if the sum in place of a loop has fewer values."""
    sizes = [item.extent for item in scope.sums if item.name != loop.name]
    new = sizes[-1] if sizes else loop.extent
    return (is_symbolic(loop.extent) and not is_symbolic(new)) or (new != loop.extent and at_most(new, loop.extent))


# Explorative


def explorative(root: Scope) -> Iterator[Move]:
    """Splits of iterators and sums, and of expressions; traversal merges."""
    used = names(root)
    for site in sites(root):
        if is_layout(site.scope):
            continue
        yield from _sum_splits(root, site, used)
        yield from _axis_splits(root, site, used)
        yield from _summation_splits(root, site, used)
        for step in (*distributed(site.scope, used), *unsplit(site.scope)):
            yield _scope_move(root, site, step)


def _beside(scope: Scope) -> dict[str, set[int]]:
    """By iterator the factors that stand beside it in an index and do not divide its own coefficient."""
    result: dict[str, set[int]] = {}
    for read in reads(scope.body):
        for e in read.index:
            for size in divisors(e):
                for atom, factor in e.terms:
                    if isinstance(atom, str) and factor % size:
                        result.setdefault(atom, set()).add(size)
    return result


def _sum_splits(root: Scope, site: Site, used: set[str]) -> Iterator[Move]:
    if product_of(site.scope) is None:
        return
    beside = _beside(site.scope)
    for loop in site.scope.sums:
        if is_symbolic(loop.extent) or loop.extent > MOST_SPLIT:
            continue
        slides = any(loop.name in e.names and len(e.terms) > 1 for read in reads(site.scope.body) for e in read.index)
        for size in sorted(beside.get(loop.name, set()) | ({WINDOW} if slides else set())):
            if size < loop.extent:
                yield _scope_move(root, site, sum_split(site.scope, loop.name, size, used))


def _axis_splits(root: Scope, site: Site, used: set[str]) -> Iterator[Move]:
    operands = product_of(site.scope)
    if operands is None:
        return
    factors = _beside(site.scope)
    roles = table(site.scope, *operands)
    for read in operands:  # rows that both operands share, one of them at neighbours: blocks of rows are a product
        for e in read.index:
            shared = [
                str(atom) for atom, factor in e.terms if isinstance(atom, str) and roles.get(atom) == "b" and factor == 1
            ]
            unshared = [
                atom for atom, factor in e.terms if isinstance(atom, str) and roles.get(atom) in ("m", "n") and factor == 1
            ]
            if shared and unshared and len(e.terms) == len(shared) + len(unshared):
                factors.setdefault(shared[0], set()).add(BLOCK)
    for loop in site.scope.spatial:
        for size in sorted(factors.get(loop.name, set())):
            if not is_symbolic(loop.extent) and loop.extent <= size:
                continue
            inner = site
            top = root
            if site.read is None:
                top = surrounded(root, used)
                assert isinstance(top.body, Read)
                inner = Site(site.scope, top, top.body)
            assert inner.outer is not None and inner.read is not None
            step = axis_split(inner.read, loop.name, size, inner.outer.ranges, used | names(top))
            yield _read_move(top, inner, step)


def _summation_splits(root: Scope, site: Site, used: set[str]) -> Iterator[Move]:
    """Of sums, every part that may stand outside; only where the whole is one nest."""
    if product_of(site.scope) is None or len(site.scope.sums) < 2:
        return
    sum_names = [loop.name for loop in site.scope.sums]
    for count in range(1, len(sum_names)):
        for outer in combinations(sum_names, count):
            yield _scope_move(root, site, summation_split(site.scope, outer, used))
