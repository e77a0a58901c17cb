"""Indices as numbers of mixed radix: a reshape groups the digits of an element's place anew.

A digit is an index and the extent under which it stays. Where the parts of a reshape fall on digits, nothing is divided;
where one must be cut, it alone is divided, not the whole place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

from haotuner.codegen.expressions import Apply, Expression, arithmetic, index, sized
from haotuner.graph.extents import Extent, largest, product, quotient, same

Digit: TypeAlias = tuple[Expression, Extent | None]  # None: the extent is not known
Divisor: TypeAlias = Callable[[Extent], Expression]


@dataclass(slots=True)
class MixedRadix:
    """Regroups digits; remembers what its sums are made of, so that a reshape and the one back undo each other."""

    _made_of: dict[Expression, tuple[Digit, ...]] = field(default_factory=dict)

    def reshaped(
        self, before: Sequence[Extent], after: Sequence[Extent], indices: Sequence[Expression], *, empty: bool = False
    ) -> list[Expression]:
        """Indices into ``before`` of the element at ``indices`` in ``after``: axis by axis where both agree.

        ``empty``: they are computed even where there are no elements, so that no extent may divide as it is.
        """
        result: list[Expression] = []
        i = j = 0
        while i < len(before) or j < len(after):
            i2, j2 = _group(tuple(before), tuple(after), i, j)
            digits = merged(self._known(zip(indices[j:j2], after[j:j2], strict=True)))
            result += self._cut(before[i:i2], digits, divisor_of if empty else sized)
            i, j = i2, j2
        return result

    def number(self, digits: Sequence[Digit]) -> Expression:
        """The number that some digits make, the first one counting most."""
        result = digits[0][0] if digits else index(0)
        for item, extent in digits[1:]:
            result = arithmetic("add", arithmetic("mul", result, sized(extent)), item)
        if len(digits) > 1 and all(extent is not None for _, extent in digits):
            self._made_of[result] = tuple(digits)
        return result

    def _known(self, digits: Iterable[tuple[Expression, Extent]]) -> list[Digit]:
        """Digits, with those that were made here as what they are made of; a digit of one value counts nothing."""
        result: list[Digit] = []
        for item, extent in digits:
            parts = self._made_of.get(item)
            whole = parts is not None and same(product(width for _, width in parts), extent)
            if not same(extent, 1):
                result += parts if parts is not None and whole else [(item, extent)]
        return result

    def _cut(self, shape: Sequence[Extent], digits: list[Digit], divisor: Divisor) -> list[Expression]:
        """The indices of a shape of as many elements as the digits count."""
        result: list[Expression] = []
        for position in reversed(range(len(shape))):
            if position == 0:
                result.append(self.number(digits))
            elif same(shape[position], 1):
                result.append(index(0))
            else:
                low, digits = self._last(shape[position], digits, divisor)
                result.append(low)
        return result[::-1]

    def _last(self, extent: Extent, digits: list[Digit], divisor: Divisor) -> tuple[Expression, list[Digit]]:
        """The index under ``extent`` that the last digits make, and the digits that are left."""
        factor: Extent | None = extent  # what lacks to the last ``count`` digits
        for count in range(len(digits)):
            item, width = digits[-1 - count]
            above, low = digits[: -1 - count], digits[len(digits) - count :]
            if factor is None or width is None:
                break
            if same(factor, 1):
                return self.number(low), digits[: len(digits) - count]
            if (high := quotient(width, factor)) is not None and not same(high, 1):
                rest: Digit = (arithmetic("mod", item, divisor(factor)), factor)
                return self.number([rest, *low]), [*above, (arithmetic("floordiv", item, divisor(factor)), high)]
            factor = quotient(factor, width)
        if factor is not None and same(factor, 1):
            return self.number(digits), []
        flat = self.number(digits)  # the extents have nothing in common that shows
        return arithmetic("mod", flat, divisor(extent)), [(arithmetic("floordiv", flat, divisor(extent)), None)]


def divisor_of(extent: Extent) -> Expression:
    """An extent, or 1 where it is 0."""
    return sized(extent if isinstance(extent, int) else largest((extent, 1)))


def apart(before: Sequence[Extent], after: Sequence[Extent], axis: int) -> list[Extent]:
    """Extents of the digits that an axis of ``after`` has if it is made from ``before``; itself if it is not cut."""
    i = j = i2 = j2 = 0
    while not j <= axis < j2:
        i, j = i2, j2
        i2, j2 = _group(tuple(before), tuple(after), i, j)
    behind, cuts = product(after[axis + 1 : j2]), [1]
    for position in reversed(range(i, i2)):
        inside = quotient(product(before[position:i2]), behind)
        if inside is not None and not same(inside, cuts[-1]) and quotient(inside, cuts[-1]) is not None:
            cuts += [inside] if quotient(after[axis], inside) is not None else []
    cuts += [] if same(cuts[-1], after[axis]) else [after[axis]]
    return [quotient(first, other) for first, other in zip(cuts[:0:-1], cuts[-2::-1], strict=True)] or [after[axis]]


def merged(digits: Sequence[Digit]) -> list[Digit]:
    """Digits of the same number, put together again where they are the quotient and the rest of one."""
    result: list[Digit] = []
    for item, extent in digits:
        result.append((item, extent))
        while len(result) > 1 and (whole := _whole(result[-2], result[-1])) is not None:
            result[-2:] = [whole]
    return result


def _whole(high: Digit, low: Digit) -> Digit | None:
    (above, width), (below, extent) = high, low
    if not (isinstance(below, Apply) and below.function == "mod" and below.arguments[1] == sized(extent)):
        return None
    number, both = below.arguments[0], product((width, extent))
    divided = arithmetic("floordiv", number, sized(extent))
    if above == divided:
        return number, both
    if above == arithmetic("mod", divided, sized(width)):
        return arithmetic("mod", number, sized(both)), both
    if isinstance(above, Apply) and above.function == "add" and above.arguments[1] == divided:
        return arithmetic("add", arithmetic("mul", above.arguments[0], sized(extent)), number), both
    return None


@lru_cache(maxsize=20_000)  # candidates of a window ask for the same few reshapes again and again
def _group(before: tuple[Extent, ...], after: tuple[Extent, ...], i: int, j: int) -> tuple[int, int]:
    """The fewest axes from ``i`` and ``j`` on that hold as many elements; all that are left where none do."""
    for total in range(1, len(before) - i + len(after) - j + 1):
        for own in range(max(0, total - (len(after) - j)), min(total, len(before) - i) + 1):
            if same(product(before[i : i + own]), product(after[j : j + total - own])):
                return i + own, j + total - own
    return len(before), len(after)
