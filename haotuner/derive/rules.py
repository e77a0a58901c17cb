"""Rules inside one nest; none knows an operator. Side conditions are shown for all extents, or the step has no result.

Rules of sums take a nest and give one of the same axes. Rules of axes take a read of a nest, since they change its indices.
Names are OLLIE's (arXiv 2208.02025, section 4) where it has one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from math import gcd

from haotuner.derive.affine import (
    Affine,
    Ranges,
    at_most,
    bounds,
    divided,
    inside,
    iterator,
    number,
    parted,
    remainder,
    substituted,
)
from haotuner.derive.expression import (
    Body,
    Loop,
    Number,
    Read,
    Scope,
    apart,
    apply,
    factors,
    fresh,
    iterators,
    names,
    put,
    supports,
    with_reads,
)
from haotuner.graph.extents import Extent, canonical, ceiling_division, floor_division, is_symbolic, same


@dataclass(frozen=True, slots=True)
class Step:
    """A rule's name, its detail, and the resulting nest or read; None where a condition was not shown."""

    rule: str
    detail: str
    result: Scope | Read | None


def loop_of(loops: Sequence[Loop], name: str) -> Loop:
    """The iterator of a name."""
    return next(loop for loop in loops if loop.name == name)


def swapped(loops: Sequence[Loop], name: str, *others: Loop) -> tuple[Loop, ...]:
    """The iterators with others for one of them."""
    return tuple(item for loop in loops for item in (others if loop.name == name else (loop,)))


def covers(body: Body, loop: Loop, ranges: Ranges) -> bool:
    """True where a body is shown to be 0 outside of an iterator's range."""
    spans = supports(body, loop.name, ranges)
    below = any(low is not None and at_most(loop.low, low) for low, _ in spans)
    return below and any(high is not None and at_most(high, loop.high) for _, high in spans)


# Sums


def sum_split(scope: Scope, name: str, size: int, used: Collection[str]) -> Step:
    """``y`` as ``size * y1 + y2``; a range that ``size`` does not divide is relaxed first, where the body is 0 behind it."""
    loop = loop_of(scope.sums, name)
    steps = ceiling_division(loop.extent, size)
    exact = same(canonical(steps * size), loop.extent)
    detail = f"{name} = {size}*{name}' + {name}''" + ("" if exact else ", range relaxed")
    if not exact and not covers(scope.body, loop, scope.ranges):
        return Step("summation iterator split", detail, None)
    first = fresh(name, used)
    second = fresh(name, {*used, first})
    loops = swapped(scope.sums, name, Loop(first, 0, steps), Loop(second, 0, size))
    result = replace(scope, sums=loops)
    value = iterator(first) * size + iterator(second) + number(loop.low)
    return Step("summation iterator split", detail, replace(result, body=put(scope.body, {name: value}, result.ranges)))


def summation_split(scope: Scope, outer: Collection[str], used: Collection[str]) -> Step:
    """The sum over ``outer`` around a nest of its own that has them as axes and sums over the rest."""
    moved = [loop for loop in scope.sums if loop.name in outer]
    stays = tuple(loop for loop in scope.sums if loop.name not in outer)
    inner = Scope((*moved, *scope.spatial), stays, scope.body)
    index = tuple(iterator(loop.name) for loop in inner.spatial)
    result = Scope(scope.spatial, tuple(moved), Read(apart(inner, used), index))
    return Step("summation splitting", f"{', '.join(sorted(outer))} outside", result)


def sum_skew(scope: Scope, name: str, e: Affine, used: Collection[str]) -> Step:
    """``y`` as ``z - rest // a`` where an index is ``a*y + rest``, so that the sum has few values of ``z``."""
    loop, factor = loop_of(scope.sums, name), e.coefficient(name)
    rest, size = e.without(name), abs(factor)
    detail = f"{name} shifted along {e}"
    if name in rest.names or not covers(scope.body, loop, scope.ranges):
        return Step("summation skew", detail, None)
    moved = fresh(name, used)
    shift = divided(rest, size, scope.ranges)
    value = shift - iterator(moved) if factor < 0 else iterator(moved) - shift
    free = {key: ends for key, ends in scope.ranges.items() if key != name}
    body = put(scope.body, {name: value}, free)
    low, high = _along(e, value, moved, scope, free)
    if low is None or high is None:
        return Step("summation skew", detail, None)
    return Step("summation skew", detail, replace(scope, sums=swapped(scope.sums, name, Loop(moved, low, high)), body=body))


def _along(e: Affine, value: Affine, moved: str, scope: Scope, free: Ranges) -> tuple[Extent | None, Extent | None]:
    """Range of the new iterator, by the axis whose index ``e`` was, of a factor: where this is 0 the body is."""
    name = next(iter(e.names - free.keys() - {moved}), "")
    for read in factors(scope.body):
        if isinstance(read, Read) and e in read.index:
            moved_read = replace(
                read, index=tuple(substituted(item, {name: value}, free) if item == e else number(0) for item in read.index)
            )
            for low, high in supports(moved_read, moved, free):
                if low is not None and high is not None:
                    return low, high
    return None, None


def factored(scope: Scope, used: Collection[str]) -> Iterator[Step]:
    """Factors that hang on no iterator of a sum, out of that sum."""
    parts = factors(scope.body)
    if len(parts) < 2:
        return
    for loop in scope.sums:
        apart_ = [part for part in parts if loop.name not in iterators(part)]
        inside_ = [part for part in parts if loop.name in iterators(part)]
        if not apart_ or not inside_ or all(isinstance(part, Number) for part in apart_):
            continue
        inner_sum_names = {item.name for item in scope.sums if not any(item.name in iterators(part) for part in apart_)}
        inner_sums = tuple(item for item in scope.sums if item.name in inner_sum_names)
        axis_names = iterators(apply("mul", *inside_)) - inner_sum_names
        axes = tuple(item for item in (*scope.spatial, *scope.sums) if item.name in axis_names)
        inner = apart(Scope(axes, inner_sums, apply("mul", *inside_)), used)
        body = apply("mul", *apart_, Read(inner, tuple(iterator(item.name) for item in axes)))
        outer = tuple(item for item in scope.sums if item.name not in inner_sum_names)
        detail = f"{', '.join(sorted(inner_sum_names))} summed before the product"
        yield Step("factoring", detail, Scope(scope.spatial, outer, body))
        return


def distributed(scope: Scope, used: Collection[str]) -> Iterator[Step]:
    """Expression splitting: a sum of terms as terms of which each is a nest of its own."""
    if not isinstance(scope.body, (Number, Read)) and scope.body.function == "add" and scope.sums:
        unavailable, terms = set(used), []
        for part in scope.body.operands:
            inner = apart(Scope(scope.spatial, scope.sums, part), unavailable)
            unavailable |= names(inner)
            terms.append(Read(inner, tuple(iterator(loop.name) for loop in scope.spatial)))
        yield Step("expression splitting", f"{len(terms)} terms", Scope(scope.spatial, (), apply("add", *terms)))


def tightened(scope: Scope) -> Scope:
    """Boundary tightening of sums: ranges without the values where the body is 0, each from 0 on."""
    for loop in scope.sums:
        cut = loop
        for ends in supports(scope.body, loop.name, scope.ranges):
            cut = _cut(cut, *ends)
        scope = replace(scope, sums=swapped(scope.sums, loop.name, Loop(loop.name, 0, cut.extent)), body=_moved(scope, cut))
    return scope


def tightened_read(read: Read, around: Ranges) -> Read:
    """Boundary tightening of a nest's axes: ranges without elements that are 0 or never read, each from 0 on.

    Boundary relaxing, too. Where reads are shown to stay within the range, and not which end is tighter, an end that is a
    number is taken.
    """
    scope = read.source
    assert isinstance(scope, Scope)
    index = list(read.index)
    for at, loop in enumerate(scope.spatial):
        read_span = bounds(index[at], around)
        cut = loop if read_span is None else _cut(loop, *read_span)
        within = read_span is not None and at_most(loop.low, read_span[0]) and at_most(read_span[1], loop.high)
        for low, high in supports(scope.body, loop.name, scope.ranges):
            cut = _cut(cut, low, high)
            if within and is_symbolic(cut.extent) and isinstance(low, int) and isinstance(high, int) and low < high:
                cut = Loop(loop.name, low, high)
        spatial = swapped(scope.spatial, loop.name, Loop(loop.name, 0, cut.extent))
        scope = Scope(spatial, scope.sums, _moved(scope, cut))
        index[at] -= number(cut.low)
    return Read(scope, tuple(index))


def _moved(scope: Scope, loop: Loop) -> Body:
    """The body by an iterator from 0 on."""
    if loop.low == 0:
        return scope.body
    ranges = {**scope.ranges, loop.name: (0, loop.extent)}
    return put(scope.body, {loop.name: iterator(loop.name) + number(loop.low)}, ranges)


def _cut(loop: Loop, low: Extent | None, high: Extent | None) -> Loop:
    new_low = low if low is not None and low != loop.low and at_most(loop.low, low) else loop.low
    new_high = high if high is not None and high != loop.high and at_most(high, loop.high) else loop.high
    if not at_most(canonical(new_low + 1), new_high):  # an empty range, or one that is not shown to have elements
        return loop
    return Loop(loop.name, new_low, new_high)


def inlined(scope: Scope) -> Scope:
    """Traversal merging of nests without sums: their formulas stand where they were read."""

    def replaced(read: Read) -> Body:
        if not isinstance(read.source, Scope):
            return read
        inner = inlined(read.source)
        if inner.sums or not _readable(inner, read.index, scope.ranges):
            return Read(inner, read.index)
        return put(inner.body, dict(zip((loop.name for loop in inner.spatial), read.index, strict=True)), scope.ranges)

    return replace(scope, body=with_reads(scope.body, replaced))


def unsplit(scope: Scope) -> Iterator[Step]:
    """Traversal merging of a nest with sums that is a factor of the whole body: both sums become one nest's."""
    parts = factors(scope.body)
    for position, part in enumerate(parts):
        if not isinstance(part, Read) or not isinstance(part.source, Scope) or not part.source.sums:
            continue
        inner = part.source
        if not _readable(inner, part.index, scope.ranges):
            yield Step("traversal merging", "a nest read outside of its range", None)
            continue
        values = {loop.name: e for loop, e in zip(inner.spatial, part.index, strict=True)}
        ranges = {**scope.ranges, **{loop.name: (loop.low, loop.high) for loop in inner.sums}}
        body = apply("mul", *parts[:position], put(inner.body, values, ranges), *parts[position + 1 :])
        yield Step("traversal merging", f"{len(inner.sums)} sums", Scope(scope.spatial, (*scope.sums, *inner.sums), body))


def _readable(inner: Scope, index: Sequence[Affine], ranges: Ranges) -> bool:
    """True where a nest's formula holds at all that is read, inside its range or, being 0, outside.

    Where one axis is read outside, another may be, too: its values are those of the read.
    """
    spans = {loop.name: bounds(e, ranges) for loop, e in zip(inner.spatial, index, strict=True)}
    around = {**inner.ranges, **{name: span for name, span in spans.items() if span is not None}}
    return None not in spans.values() and all(
        inside(e, loop.low, loop.high, ranges) or covers(inner.body, loop, around)
        for loop, e in zip(inner.spatial, index, strict=True)
    )


# Axes


def axis_split(read: Read, name: str, size: int, around: Ranges, used: Collection[str]) -> Step:
    """Iterator split of an axis: ``x = size * x1 + x2 + low``; a last part is relaxed to a full one where that is right."""
    scope = read.source
    assert isinstance(scope, Scope)
    at = [loop.name for loop in scope.spatial].index(name)
    loop, e = scope.spatial[at], read.index[at] - number(scope.spatial[at].low)
    parts = ceiling_division(loop.extent, size)
    exact = same(canonical(parts * size), loop.extent)
    detail = f"{name} = {size}*{name}' + {name}''" + ("" if exact else ", range relaxed")
    if not exact and not (covers(scope.body, loop, scope.ranges) or inside(read.index[at], loop.low, loop.high, around)):
        return Step("iterator split", detail, None)
    first = fresh(name, used)
    second = fresh(name, {*used, first})
    spatial = swapped(scope.spatial, name, Loop(first, 0, parts), Loop(second, 0, size))
    ranges = {**scope.ranges, **{loop.name: (loop.low, loop.high) for loop in spatial}}
    body = put(scope.body, {name: iterator(first) * size + iterator(second) + number(loop.low)}, ranges)
    index = (*read.index[:at], divided(e, size, around), remainder(e, size, around), *read.index[at + 1 :])
    return Step("iterator split", detail, Read(Scope(spatial, scope.sums, body), index))


def axis_merge(read: Read, name: str, other: str, factor: int, around: Ranges, used: Collection[str]) -> Step:
    """Iterator merge: ``t = x + factor * y`` takes the place of ``x``; its range is a box around all of them."""
    scope = read.source
    assert isinstance(scope, Scope)
    order = [loop.name for loop in scope.spatial]
    at, beside = order.index(name), order.index(other)
    detail = f"{name} + {factor}*{other}" if factor != 1 else f"{name} + {other}"
    for position in (at, beside):
        loop = scope.spatial[position]
        within = inside(read.index[position], loop.low, loop.high, around)
        if not within and not covers(scope.body, loop, scope.ranges):
            return Step("iterator merge", detail, None)
    joined = iterator(name) + iterator(other) * factor
    extent = bounds(joined, scope.ranges)
    assert extent is not None
    moved = fresh("t", used)
    spatial = swapped(scope.spatial, name, Loop(moved, *extent))
    ranges = {**scope.ranges, moved: extent}
    body = put(scope.body, {name: iterator(moved) - iterator(other) * factor}, ranges)
    index = list(read.index)
    index[at] = read.index[at] + read.index[beside] * factor
    return Step("iterator merge", detail, Read(Scope(spatial, scope.sums, body), tuple(index)))


# Layouts


def layout_split(read: Read, axis: int, size: int, ranges: Ranges, used: Collection[str]) -> Step:
    """Variable substitution of an operand: an axis as ``size * q + p``; an index ``size * e + f`` becomes ``e, f``."""
    e = read.index[axis]
    detail = f"axis {axis} of {_label(read)} in steps of {size}"
    outside, rest = parted(e, size)
    extent = bounds(rest, ranges)
    if extent is None or is_symbolic(extent[0]):
        return Step("layout substitution", detail, None)
    offset = extent[0] % size  # the rest of its least value moves whole steps
    outside += number((extent[0] - offset) // size)
    phase = rest - number(extent[0])
    if not outside.terms or not inside(phase, 0, size, ranges):
        return Step("layout substitution", detail, None)
    inner, index, unavailable = [], [], set(used)
    box = read.source.box if isinstance(read.source, Scope) else tuple((0, extent) for extent in read.source.shape)
    for position, (low, high) in enumerate(box):
        name = fresh("a", unavailable)
        unavailable.add(name)
        if position != axis:
            inner.append(Loop(name, low, high))
            index.append(iterator(name))
            continue
        parts = fresh("p", unavailable)
        unavailable.add(parts)
        first, last = floor_division(canonical(low - offset), size), floor_division(canonical(high - 1 - offset), size)
        inner += [Loop(name, first, canonical(last + 1)), Loop(parts, 0, size)]
        index.append(iterator(name) * size + iterator(parts) + number(offset))
    source = apart(read.source, unavailable) if isinstance(read.source, Scope) else read.source
    laid = Scope(tuple(inner), (), Read(source, tuple(index)))
    outer = (*read.index[:axis], outside, phase, *read.index[axis + 1 :])
    return Step("layout substitution", detail, Read(laid, outer))


def _label(read: Read) -> str:
    return "a nest" if isinstance(read.source, Scope) else read.source.name


def divisors(e: Affine) -> set[int]:
    """Factors by which an index has quotients: coefficients over 1, and common divisors of two of them."""
    sizes = [abs(factor) for _, factor in e.terms]
    result = {size for size in sizes if size > 1}
    return result | {size for a in sizes for b in sizes if a is not b and (size := gcd(a, b)) > 1}
