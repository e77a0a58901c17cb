"""Expression merging: several products of one tensor as one, with their other operands side by side.

Iterators are paired by where they stand in the indices of the shared tensor. Windows of other sizes or offsets become one by
boundary relaxing: the smaller operand is 0 where only the larger one has elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from haotuner.derive.affine import Affine, iterator, least, most, number, plus, substituted
from haotuner.derive.expression import Loop, Read, Scope, Tensor, apart, apply, fresh, iterators, names, put
from haotuner.derive.kernels import hangs_on, product_of
from haotuner.derive.nests import normal
from haotuner.derive.rules import covers, inlined, swapped
from haotuner.graph.extents import same


@dataclass(frozen=True, slots=True)
class _Product:
    """A product with the operand that others read, too, and its other one."""

    scope: Scope
    shared: Read
    other: Read


def together(scopes: Sequence[Scope]) -> tuple[Scope, ...] | None:
    """The expressions as parts of one nest; None where they are no such products or a condition is not shown."""
    merged, starts, position = scopes[0], [0], -1
    for scope in scopes[1:]:
        joined = _joined(merged, apart(scope, names(merged)), position)
        if joined is None:
            return None
        high = merged.spatial[joined[1]].high
        merged, position = joined
        starts.append(high)
    merged = normal(merged)
    return tuple(_part(merged, scope, position, start) for scope, start in zip(scopes, starts, strict=True))


def _part(merged: Scope, scope: Scope, position: int, start: object) -> Scope:
    """The elements of a nest from a start on, as an expression of its own."""
    unavailable, outer = names(merged), list[Loop]()
    for loop in scope.spatial:
        outer.append(replace(loop, name=fresh(loop.name, unavailable)))
        unavailable.add(outer[-1].name)
    index = [iterator(loop.name) for loop in outer]
    index[position] += number(start)
    return Scope(tuple(outer), (), Read(merged, tuple(index)))


def _joined(first: Scope, other: Scope, position: int) -> tuple[Scope, int] | None:
    """One nest of two products, and the axis along which the second lies behind the first."""
    for lead in _products(first):
        for follower in _products(other):
            source = lead.shared.source
            if source == follower.shared.source and isinstance(source, Tensor) and not source.constant:
                result = _merged(lead, _same_windows(lead, follower), position)
                if result is not None:
                    return result
    return None


def _products(scope: Scope) -> list[_Product]:
    operands = product_of(scope)
    return [] if operands is None else [_Product(scope, *operands), _Product(scope, *operands[::-1])]


def _same_windows(lead: _Product, follower: _Product) -> _Product:
    """The second product with a sum of one element wherever the first one sums along an axis and it does not."""
    sums, index, axes = list(follower.scope.sums), list(follower.shared.index), list[Loop]()
    unavailable = names(lead.scope) | names(follower.scope)
    lead_sums = {loop.name for loop in lead.scope.sums}
    for at, (e, f) in enumerate(zip(lead.shared.index, index, strict=True)):
        summed = [(str(atom), factor) for atom, factor in e.terms if atom in lead_sums]
        if len(e.terms) == len(f.terms) + 1 and len(summed) == 1:
            name = fresh("u", unavailable)
            unavailable.add(name)
            axes.append(Loop(name, 0, 1))
            index[at] = f + iterator(name) * summed[0][1]
    if not axes:
        return follower
    inner = [*axes, *(Loop(name, *follower.scope.ranges[name]) for name in sorted(hangs_on(follower.other)))]
    laid = apart(Scope(tuple(inner), (), follower.other), unavailable)
    shared, read = Read(follower.shared.source, tuple(index)), Read(laid, tuple(iterator(loop.name) for loop in inner))
    return _Product(Scope(follower.scope.spatial, (*sums, *axes), apply("mul", shared, read)), shared, read)


def _merged(lead: _Product, follower: _Product, position: int) -> tuple[Scope, int] | None:
    first, other = lead.scope, follower.scope
    paired = _paired(lead, follower)
    if paired is None or len(first.spatial) != len(other.spatial):
        return None
    values, sums = paired
    left = [at for at, loop in enumerate(first.spatial) if loop.name not in hangs_on(lead.shared)]
    right = [at for at, loop in enumerate(other.spatial) if loop.name not in hangs_on(follower.shared)]
    for at, (x, y) in enumerate(zip(first.spatial, other.spatial, strict=True)):
        if at not in left and values.get(y.name) != iterator(x.name):
            return None
    apart_ = [at for at in left if not _alike(first.spatial[at], other.spatial[at])]
    if left != right or not left or len(apart_) > 1:
        return None
    along = position if position >= 0 else apart_[0] if apart_ else left[0]
    if along not in left or apart_ not in ([], [along]):
        return None
    x, y = first.spatial[along], other.spatial[along]
    for at in left:
        values[other.spatial[at].name] = iterator(first.spatial[at].name)
    values[y.name] = iterator(x.name) - number(x.high) + number(y.low)
    wide = Loop(x.name, x.low, plus(x.high, y.extent))
    ranges = {**first.ranges, **{loop.name: (loop.low, loop.high) for loop in (*sums, wide)}}
    weights = apply("add", lead.other, put(follower.other, values, ranges))
    loops = tuple(Loop(name, *ranges[name]) for name in ranges if name in iterators(weights))
    beside = inlined(apart(Scope(loops, (), weights), names(first) | names(other)))
    body = apply("mul", lead.shared, Read(beside, tuple(iterator(loop.name) for loop in loops)))
    return Scope(swapped(first.spatial, x.name, wide), tuple(sums), body), along


def _alike(x: Loop, y: Loop) -> bool:
    return same(x.low, y.low) and same(x.high, y.high)


def _paired(lead: _Product, follower: _Product) -> tuple[dict[str, Affine], list[Loop]] | None:
    """Iterators of the second product by those of the first, and sums over the ranges that both need."""
    values: dict[str, Affine] = {}
    sums = {loop.name: loop for loop in lead.scope.sums}
    follower_sums = {loop.name: loop for loop in follower.scope.sums}
    for e, f in zip(lead.shared.index, follower.shared.index, strict=True):
        pairs = _terms(e, f, sums, follower_sums)
        if pairs is None:
            return None
        gap = plus(f.const, e.const, -1)
        for x, y, factor in pairs:
            shift = 0
            if x in sums and isinstance(gap, int) and gap % factor == 0:
                shift, gap = gap // factor, 0
            value = iterator(x) - number(shift)
            if values.setdefault(y, value) != value:
                return None
            if x in sums:
                low = least(sums[x].low, plus(follower_sums[y].low, shift))
                high = most(sums[x].high, plus(follower_sums[y].high, shift))
                if low is None or high is None:
                    return None
                sums[x] = Loop(x, low, high)
        if gap != 0:
            return None
    if not all(substituted(f, values, {}) == e for e, f in zip(lead.shared.index, follower.shared.index, strict=True)):
        return None
    if values.keys() < follower_sums.keys() or not all(loop.name in hangs_on(lead.shared) for loop in lead.scope.sums):
        return None
    return (values, list(sums.values())) if _relaxed(lead, follower, values, sums) else None


def _relaxed(lead: _Product, follower: _Product, values: Mapping[str, Affine], sums: Mapping[str, Loop]) -> bool:
    """True where both products are shown to be 0 at the values of the merged sums that they did not have."""
    wide = {name: (loop.low, loop.high) for name, loop in sums.items()}
    moved = {}
    for loop in follower.scope.sums:
        e = values[loop.name]
        low, high = next(wide[name] for name in wide if name in e.names)
        moved[loop.name] = plus(low, e.const), plus(high, e.const)
    return all(
        _alike(Loop(loop.name, *ranges[loop.name]), loop)
        or covers(product.other, loop, {**product.scope.ranges, **ranges})  # all sums may be outside of their ranges at once
        for product, ranges in ((lead, wide), (follower, moved))
        for loop in product.scope.sums
    )


def _terms(
    e: Affine, f: Affine, lead_sums: Mapping[str, Loop], follower_sums: Mapping[str, Loop]
) -> list[tuple[str, str, int]] | None:
    """Pairs of iterators of two indices with one coefficient, spatial ones with spatial ones."""
    if any(not isinstance(atom, str) for atom, _ in (*e.terms, *f.terms)):
        return None
    left = sorted((str(atom) in lead_sums, factor, str(atom)) for atom, factor in e.terms)
    right = sorted((str(atom) in follower_sums, factor, str(atom)) for atom, factor in f.terms)
    if [item[:2] for item in left] != [item[:2] for item in right]:
        return None
    return [(x, y, factor) for (_, factor, x), (_, _, y) in zip(left, right, strict=True)]


def sharing(scopes: Mapping[str, Scope], guards: Mapping[str, object]) -> list[list[str]]:
    """Names of products that read one tensor, in sets of two or more; those of one set are computed in the same branch."""
    readers: dict[tuple[Tensor, object], dict[str, None]] = {}
    for name, scope in scopes.items():
        for operand in product_of(scope) or ():
            if isinstance(operand.source, Tensor) and not operand.source.constant:
                readers.setdefault((operand.source, guards.get(name)), {})[name] = None
    return [list(members) for members in readers.values() if len(members) > 1]
