"""Expressions for extents of any size: dimensions stand for large numbers and for arithmetic, and these come back.

So one derivation holds for layers of other widths and at other places of a model, and its check is small.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

from haotuner.derive.affine import mapped_extents
from haotuner.derive.expression import Loop, Read, Scope, Tensor, scopes, with_reads
from haotuner.graph.extents import Extent, canonical, dimension, dimensions, is_symbolic

SMALL = 16  # numbers up to this stay numbers: windows, strides, heads
NEAR = 16  # how far an axis may be from a multiple of a loop's extent, and still follow from it
MOST_STRIDE = 4


def with_extents(
    scope: Scope, loop_extent: Callable[[Extent], Extent], axis_extent: Callable[[Extent], Extent] | None = None
) -> Scope:
    """Copy with other extents of loops and summands of indices, and of tensors."""

    def read(item: Read) -> Read:
        source = item.source
        if isinstance(source, Scope):
            new: Tensor | Scope = with_extents(source, loop_extent, axis_extent)
        else:
            new = replace(source, shape=tuple(map(axis_extent or loop_extent, source.shape)))
        return Read(new, tuple(mapped_extents(e, loop_extent) for e in item.index))

    loops = [
        tuple(Loop(loop.name, loop_extent(loop.low), loop_extent(loop.high)) for loop in part)
        for part in (scope.spatial, scope.sums)
    ]
    return Scope(loops[0], loops[1], with_reads(scope.body, read))


def generalised(*expressions: Scope) -> tuple[tuple[Scope, ...], dict[str, Extent]]:
    """Expressions with a dimension for each large number and each other extent, and the extents that these stand for.

    Dimensions are numbered in the order of the loops. Arithmetic has one where nothing else hangs on what is in it.
    """
    every = [extent for scope in expressions for extent in _extents(scope)]
    stand_ins: dict[Extent, Extent] = {}
    for extent in (loop.high for scope in expressions for inner in scopes(scope) for loop in (*inner.spatial, *inner.sums)):
        if extent not in stand_ins and (_large(extent) or is_symbolic(extent) and _alone(extent, every)):
            stand_ins[extent] = dimension(f"d{len(stand_ins)}")
    inside = {name for extent in stand_ins if is_symbolic(extent) for name in dimensions(extent)}
    for name in dict.fromkeys(name for extent in every if is_symbolic(extent) for name in sorted(dimensions(extent))):
        if name not in inside:
            stand_ins[dimension(name)] = dimension(f"d{len(stand_ins)}")
    symbols = {extent: own for extent, own in stand_ins.items() if is_symbolic(extent) and extent.is_Symbol}
    numbers = {extent: own for extent, own in stand_ins.items() if not is_symbolic(extent)}

    def loop_extent(extent: Any) -> Extent:
        if extent in stand_ins or not is_symbolic(extent):
            return stand_ins.get(extent, extent)
        return canonical(extent.subs(symbols, simultaneous=True))

    def axis_extent(extent: Any) -> Extent:
        near = _near(extent, numbers) if _large(extent) and extent not in stand_ins else None
        return loop_extent(extent) if near is None else near

    result = tuple(with_extents(scope, loop_extent, axis_extent) for scope in expressions)
    return result, {str(own): extent for extent, own in stand_ins.items()}


def _extents(scope: Scope) -> list[Extent]:
    """All extents of an expression, as often as they stand in it."""
    result: list[Extent] = []

    def note(extent: Extent) -> Extent:
        result.append(extent)
        return extent

    with_extents(scope, note)
    return result


def _alone(extent: Extent, every: Sequence[Extent]) -> bool:
    """True for a dimension, and for arithmetic of dimensions that no other extent hangs on."""
    own = dimensions(extent)
    return bool(extent.is_Symbol) or all(
        other == extent or not is_symbolic(other) or own.isdisjoint(dimensions(other)) for other in every
    )


def _near(extent: int, numbers: Mapping[int, Extent]) -> Extent | None:
    """A multiple of a loop's extent with a summand, where one is near; None: none is."""
    near = [
        (abs(extent - stride * size), stride, size)
        for size in numbers
        for stride in range(1, MOST_STRIDE + 1)
        if abs(extent - stride * size) <= NEAR
    ]
    if not near:
        return None
    _, stride, size = min(near)
    return canonical(stride * numbers[size] + extent - stride * size)


def _large(extent: Any) -> bool:
    return isinstance(extent, int) and extent > SMALL


def concrete(scope: Scope, sizes: Mapping[str, Extent]) -> Scope:
    """Copy with extents for some dimensions."""
    values = {dimension(name): extent for name, extent in sizes.items()}

    @cache  # an expression has few different ones, and sympy takes a millisecond for each
    def known(extent: Any) -> Extent:
        return canonical(extent.subs(values, simultaneous=True)) if is_symbolic(extent) else extent

    return with_extents(scope, known)


def sizes_needed(scope: Scope) -> set[str]:
    """Names of all dimensions in an expression."""
    return {name for extent in _extents(scope) if is_symbolic(extent) for name in dimensions(extent)}
