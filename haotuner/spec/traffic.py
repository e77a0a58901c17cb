"""Traffic: which shapes arrive at run time, and how often."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from haotuner.errors import UsageError
from haotuner.spec.shape import Shape, ShapeRange, Span

_PRIMES = (2, 3, 5, 7, 11, 13)  # bases of a Halton sequence, one an axis


@dataclass(frozen=True, slots=True)
class Traffic:
    """Shapes with the weight each has in the objective; weights sum to 1."""

    weighted: tuple[tuple[Shape, float], ...]

    @staticmethod
    def of_range(shapes: ShapeRange, samples: int = 101) -> Traffic:
        """Log-uniform traffic over a range (weight 1/extent), represented by at most ``samples`` shapes in all.

        Each sampled extent stands for the extents nearest to it, so its weight is their share. Of several axes whose
        combinations are more, the shapes are the smallest, the largest, and points of a Halton sequence (Halton, 1960) in
        the axes' own shares, which all count the same.
        """
        sampled = [(axis, span, span.sample(samples)) for axis, span in shapes.spans]
        axes = [(axis, extents, _of_span(span, extents)) for axis, span, extents in sampled]
        if math.prod(len(extents) for _, extents, _ in axes) <= samples:
            points: list[tuple[dict[str, int], float]] = [({}, 1.0)]
            for axis, extents, shares in axes:
                points = [({**p, axis: e}, w * s) for p, w in points for e, s in zip(extents, shares, strict=True)]
        else:
            points = [({axis: extents[end] for axis, extents, _ in axes}, 1.0) for end in (0, -1)]
            for index in range(1, samples - 1):
                drawn = {
                    axis: _at_share(extents, shares, _halton(index, base))
                    for (axis, extents, shares), base in zip(axes, _PRIMES, strict=False)
                }
                points.append((drawn, 1.0))
        return Traffic.of((Shape.of({**p, **{a: p[b] for a, b in shapes.tied}}), w) for p, w in points)

    @staticmethod
    def of(weighted: Iterable[tuple[Shape, float]]) -> Traffic:
        """Traffic from shapes and weights of any scale; equal shapes are merged."""
        merged: dict[Shape, float] = {}
        for shape, weight in weighted:
            if not (weight >= 0 and math.isfinite(weight)):
                raise UsageError(f"traffic: shape {shape} has weight {weight}; weights must be finite numbers from 0 up")
            merged[shape] = merged.get(shape, 0.0) + weight
        largest = max(merged.values(), default=0.0)
        if largest <= 0:
            raise UsageError("traffic: no shape with a positive weight; give a range such as m=1..2048 or a trace with rows")
        total = sum(weight / largest for weight in merged.values())  # the plain sum of huge weights is infinite
        return Traffic(
            tuple((shape, weight / largest / total) for shape, weight in sorted(merged.items(), key=lambda p: p[0].axes))
        )

    def shapes(self) -> tuple[Shape, ...]:
        """The shapes alone."""
        return tuple(shape for shape, _ in self.weighted)

    def __iter__(self) -> Iterator[tuple[Shape, float]]:
        """Pairs of shape and weight."""
        return iter(self.weighted)

    def __len__(self) -> int:
        """Number of distinct shapes."""
        return len(self.weighted)


def _shares(extents: tuple[int, ...], *, step: int | None) -> list[float]:
    """Weight of each extent under 1/extent; ``step`` is that of the span a sample was thinned from, None for all of it."""
    if step is None:
        return [1.0 / extent for extent in extents]
    # A thinned sample stands for its neighbourhood: integrate 1/x between the midpoints, half a step beyond the ends.
    edges = [max(extents[0] - step / 2, 0.5)]
    edges += [(a * b) ** 0.5 for a, b in zip(extents, extents[1:], strict=False)]
    edges += [extents[-1] + step / 2]
    return [math.log(high / low) for low, high in zip(edges, edges[1:], strict=False)]


def _of_span(span: Span, extents: tuple[int, ...]) -> list[float]:
    return _shares(extents, step=span.step if len(extents) < len(span) else None)


def _halton(index: int, base: int) -> float:
    """Point ``index`` of the van der Corput sequence in a base, in 0..1."""
    value, share = 0.0, 1.0
    while index:
        index, digit = divmod(index, base)
        share /= base
        value += digit * share
    return value


def _at_share(extents: tuple[int, ...], shares: list[float], at: float) -> int:
    """The extent at a quantile of the shares."""
    left = at * sum(shares)
    for extent, share in zip(extents, shares, strict=True):
        left -= share
        if left < 0:
            return extent
    return extents[-1]
