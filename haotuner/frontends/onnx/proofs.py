"""Proofs about extents at the sizes that requests may have, and what requests must fulfil for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from haotuner.frontends.onnx.intervals import Interval, exact_interval, interval_of
from haotuner.graph.bounds import never_negative
from haotuner.graph.extents import Extent, canonical, dimensions, shown
from haotuner.spec.shape import Span

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
        interval = exact_interval(gap, {name: self.ranges.get(name, ASSUMED) for name in dimensions(gap)})
        return interval is not None and interval.low >= 0


def _always(gap: Extent) -> bool:
    interval = interval_of(gap, dict.fromkeys(dimensions(gap), ANY))
    return interval is not None and interval.low >= 0
