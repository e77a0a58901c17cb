"""Expected times of a whole model: microseconds at a grid of sizes, which a pack holds and a scheduler asks for.

Between the sizes of the grid times are linear in every size (runtime/native/model/expected_times.c).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import ceil
from typing import Any

from haotuner.spec.shape import Span

MOST_NODES = 64  # of a grid: a second or two of calls of a small model
MOST_SIZES = 12  # of one dimension: steps of 1.8 up to 512
MOST_AXES = 6  # with more than one size, as expected_times.c


@dataclass(frozen=True, slots=True)
class ExpectedTable:
    """Microseconds of one thread count, at all combinations of ``sizes``, one list for each dimension, the last innermost.

    ``low`` and ``high``: the band about a time, as factors.
    """

    threads: int
    sizes: tuple[tuple[int, ...], ...]
    us: tuple[float, ...]
    low: float
    high: float

    @property
    def document(self) -> dict[str, Any]:
        """The table as a schedule's document has it."""
        return {
            "threads": self.threads,
            "sizes": [list(sizes) for sizes in self.sizes],
            "us": [float(f"{us:.5g}") for us in self.us],
            "low": float(f"{self.low:.4g}"),
            "high": float(f"{self.high:.4g}"),
        }


def grid_sizes(spans: Sequence[Span]) -> tuple[tuple[int, ...], ...]:
    """Sizes of every dimension, from its first to its last in equal ratios: at most ``MOST_NODES`` combinations."""
    varying = sum(span.last > span.first for span in spans)
    each = min(MOST_SIZES, max(2, int(MOST_NODES ** (1 / max(1, varying)))))
    counts = [each if span.last > span.first else 1 for span in spans]
    if varying > MOST_AXES:  # the widest ones alone
        widest = sorted(range(len(spans)), key=lambda index: spans[index].first / spans[index].last)[:MOST_AXES]
        counts = [count if index in widest else 1 for index, count in enumerate(counts)]
    return tuple(_sizes(span, count) for span, count in zip(spans, counts, strict=True))


def _sizes(span: Span, count: int) -> tuple[int, ...]:
    """At most so many sizes of a span, in equal ratios; the last alone where it is a single one."""
    if count == 1:
        return (span.last,)
    ratio = span.last / span.first
    return tuple(sorted({_in_span(span, ceil(span.first * ratio ** (at / (count - 1)) - 1e-9)) for at in range(count)}))


def _in_span(span: Span, size: int) -> int:
    """The least size of the span that is not below ``size``; its last one beyond."""
    if span.listed:
        return next((listed for listed in span.listed if listed >= size), span.last)
    return min(span.last, span.first + ceil((size - span.first) / span.step) * span.step)


def nodes_of(names: Sequence[str], sizes: Sequence[Sequence[int]]) -> list[dict[str, int]]:
    """All combinations as requests, the last dimension innermost."""
    return [dict(zip(names, node, strict=True)) for node in product(*sizes)]
