"""Proofs about extents at the sizes that requests may have, by intervals; what requests must fulfil for them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, canonical, dimension, dimensions, evaluate, lowered, shown
from haotuner.graph.typed_extents import never_negative
from haotuner.spec.shape import Span
from haotuner.spec.size_arithmetic import TYPED

TRIED = 8_192  # requests for each of which an extent is computed; of more it is bounded
_DIVISIONS = ("quotient", "real_div")  # monotone only where the divisor has one sign


class _Unbounded(Exception):
    """No bounds show."""


@dataclass(frozen=True, slots=True)
class Interval:
    """All that a number may be, and perhaps more; both ends included."""

    low: Any
    high: Any

    def of(self, other: Interval, operation: Callable[[Any, Any], Any]) -> Interval:
        """Of an operation that is monotone in each operand."""
        return _around([operation(item, two) for item in (self.low, self.high) for two in (other.low, other.high)])

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.low + other.low, self.high + other.high)

    def __sub__(self, other: Interval) -> Interval:
        return Interval(self.low - other.high, self.high - other.low)

    def __mul__(self, other: Interval) -> Interval:
        return self.of(other, lambda item, two: item * two)


def _around(ends: Sequence[Any]) -> Interval:
    if any(end != end for end in ends):  # NaN
        raise _Unbounded
    return Interval(min(ends), max(ends))


def every_request(names: Sequence[str], ranges: Mapping[str, Span]) -> list[dict[str, int]] | None:
    """The sizes of all requests of these ranges; None where they are more than ``TRIED``."""
    spans = [ranges[name] for name in names]
    if math.prod(map(len, spans)) > TRIED:
        return None
    each = (span.listed or range(span.first, span.last + 1, span.step) for span in spans)
    return [dict(zip(names, sizes, strict=True)) for sizes in itertools.product(*each)]


def of_spans(ranges: Mapping[str, Span]) -> dict[str, Interval]:
    """The interval of each dimension's sizes."""
    return {name: Interval(span.first, span.last) for name, span in ranges.items()}


def interval_of(extent: Extent, dims: Mapping[str, Interval]) -> Interval | None:
    """Between which numbers an extent lies; None where no bounds show. ``dims``: of all its dimensions."""
    try:
        result = lowered(
            extent,
            dims,
            number=lambda n: Interval(n, n),
            floordiv=_divided,
            mod=lambda item, other: Interval(0, other.high - 1) if other.low > 0 else _unbounded(),
            maximum=lambda item, other: item.of(other, max),
            minimum=lambda item, other: item.of(other, min),
            function=_typed,
        )
    except (_Unbounded, UsageError, OverflowError):
        return None
    return result if isinstance(result, Interval) else None


def exact_interval(extent: Extent, ranges: Mapping[str, Span]) -> Interval | None:
    """As ``interval_of``, with the very ends where the requests are few enough to compute the extent for each."""
    requests = every_request(sorted(dimensions(extent)), ranges)
    if requests is None:
        return interval_of(extent, of_spans(ranges))
    try:
        result = [evaluate(extent, request) for request in requests]
    except (UsageError, ZeroDivisionError, OverflowError):
        return None
    return Interval(min(result), max(result))


def _divided(item: Interval, other: Interval) -> Interval:
    if other.low <= 0:
        raise _Unbounded
    return item.of(other, lambda a, b: a // b)


def _typed(name: str, operands: Sequence[Interval]) -> Interval:
    if name in _DIVISIONS and operands[1].low <= 0:
        raise _Unbounded
    if name.startswith(("to_int", "to_uint")):
        return _wrapped(name, operands[0])
    compute = TYPED[name].compute
    if len(operands) == 1:
        return _around([compute(operands[0].low), compute(operands[0].high)])
    return operands[0].of(operands[1], compute)


def _wrapped(name: str, operand: Interval) -> Interval:
    low, high = limits(name.removeprefix("to_"))
    return operand if low <= operand.low and operand.high <= high else Interval(low, high)


def limits(dtype: str) -> tuple[int, int]:
    """The least and the largest whole number of an element type."""
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    return (0, (1 << bits) - 1) if dtype.startswith("u") else (-(1 << bits - 1), (1 << bits - 1) - 1)


def _unbounded() -> Interval:
    raise _Unbounded


# Of a dimension whose range nobody said. Requests of larger sizes are refused where a proof used it.
ASSUMED = Span(first=1, last=1 << 20)
ANY = Interval(0, 1 << 40)  # sizes of a dimension at any request: the runtime takes no others


@dataclass(slots=True)
class Proof:
    """Bounds of extents. Where only the asked ``ranges`` show one, requests outside of it must not be served.

    ``assumed``: extents that are not negative at requests within such bounds, with words for people.
    """

    ranges: Mapping[str, Span] = field(default_factory=dict)
    assumed: dict[Extent, str] = field(default_factory=dict)

    def at_least(self, *bounds: tuple[Extent, int]) -> bool:
        """True if each of some extents is shown to be as large as a number."""
        return self.holds(*((extent, ">=", least) for extent, least in bounds))

    def within(self, extent: Extent, low: int, high: int) -> bool:
        """True if an extent is shown to lie between two numbers; both included."""
        return self.holds((extent, "<=", high), (extent, ">=", low))

    def is_one(self, extent: Extent) -> bool:
        """True if an extent is shown to be 1; the ends of the ranges are tried first."""
        spans = {name: self.ranges.get(name, ASSUMED) for name in dimensions(extent)}
        for ends in ({name: span.first for name, span in spans.items()}, {name: span.last for name, span in spans.items()}):
            try:
                if evaluate(extent, ends) != 1:
                    return False
            except (UsageError, ZeroDivisionError, OverflowError):
                return False
        return self.within(extent, 1, 1)

    def holds(self, *bounds: tuple[Extent, str, int]) -> bool:
        """True if all bounds, by ``>=`` or ``<=``, are shown; only then anything is assumed."""
        assumed: dict[Extent, str] = {}
        for extent, sign, number in bounds:
            gap = canonical(extent - number if sign == ">=" else number - extent)
            if isinstance(gap, int):
                if gap < 0:
                    return False
            elif not never_negative(gap) and not _always(gap):
                if not self._in_ranges(gap):
                    return False
                assumed[gap] = f"{shown(canonical(extent))} {sign} {number}"
        self.assumed |= assumed
        return True

    def _in_ranges(self, gap: Extent) -> bool:
        spans = {name: self.ranges.get(name, ASSUMED) for name in dimensions(gap)}
        if never_negative(gap.xreplace({dimension(name): dimension(name) + span.first for name, span in spans.items()})):
            return True
        interval = exact_interval(gap, spans)
        return interval is not None and interval.low >= 0


def _always(gap: Extent) -> bool:
    interval = interval_of(gap, dict.fromkeys(dimensions(gap), ANY))
    return interval is not None and interval.low >= 0
