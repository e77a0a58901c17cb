"""GridSample: pixels where a grid says, between pixels too. Neighbours are gathered as rows of all channels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product as every

from haotuner.frontends.onnx.layout import cut, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.resize import keys_cubic
from haotuner.graph.decompositions import extent_value
from haotuner.graph.extents import Extent, product

_MODES = {"bilinear": "linear", "bicubic": "cubic", "linear": "linear", "cubic": "cubic", "nearest": "nearest"}
_CUBIC = -0.75  # of torch and ONNX
Taps = list[tuple[str, str | None]]


def _grid_sample(c: NodeContext) -> str:
    mode, edge = c.attribute("mode", "linear"), c.attribute("padding_mode", "zeros")
    if mode not in _MODES or edge not in ("zeros", "border", "reflection"):
        raise c.bad(f"mode {mode!r} with padding_mode {edge!r}")
    g, image, out = c.g, c.shape(0)[2:], c.shape(1)[:-1]
    if c.shape(1)[-1] != len(image) or len(out) != len(image) + 1:
        raise c.bad(f"a grid of shape {list(c.shape(1))} for an image of {len(image)} axes")
    grid = g.add("cast", c.tensor(1), dtype="fp32") if c.type(1).dtype != "fp32" else c.tensor(1)
    taps = []
    for axis, extent in enumerate(image):  # the grid's first coordinate is of the image's last axis
        at = len(image) - 1 - axis
        part = cut(c, grid, len(out), at, at + 1)
        line = Line(c, extent, edge, bool(c.attribute("align_corners", 0)))
        taps.append(line.taps(reshaped(c, part, out), _MODES[mode], within_first=bool(c.attribute("within_first", 0))))
    rank = len(image)
    rows = transposed(c, c.tensor(0), (0, *range(2, rank + 2), 1))
    flat = reshaped(c, rows, (product((c.shape(0)[0], *image)), c.shape(0)[1]))
    own = reshaped(c, g.add("iota", extent=out[0], dtype="int64"), (out[0], *[1] * rank))
    return transposed(c, blended(c, flat, taps, own, image, out), (0, rank + 1, *range(1, rank + 1)))


def blended(
    c: NodeContext, rows: str, taps: Sequence[Taps], own: str, image: Sequence[Extent], out: Sequence[Extent]
) -> str:
    """Values at places between pixels, (*out, channels): neighbours by their weights. ``rows``: of all images' pixels.

    ``taps``: of each axis of the image. ``own``: which of the images, an index that broadcasts to ``out``.
    """
    g = c.g
    result: str | None = None
    for chosen in every(*taps):
        weights = [weight for _, weight in chosen if weight is not None]
        part = g.add("gather", rows, _row(c, [position for position, _ in chosen], own, image), axis=0)
        if weights:
            factor = weights[0]
            for weight in weights[1:]:
                factor = g.map("mul", factor, weight)
            factor = g.add("cast", factor, dtype=c.type(0).dtype) if c.type(0).dtype != "fp32" else factor
            part = g.map("mul", part, reshaped(c, factor, (*out, 1)))
        result = part if result is None else g.map("add", result, part)
    assert result is not None
    return result


def _row(c: NodeContext, places: Sequence[str], own: str, image: Sequence[Extent]) -> str:
    """The row of all channels of these pixels, of the own image."""
    g = c.g
    row = g.map("mul", own, g.of_extents([product(image)], "int64"))
    for axis, position in enumerate(places):
        row = g.map("add", row, g.map("mul", position, g.of_extents([product(image[axis + 1 :])], "int64")))
    return row


class Line:
    """One axis of the image: places of a grid's coordinates, from -1 to 1, among its pixels."""

    def __init__(self, c: NodeContext, extent: Extent, edge: str = "zeros", ends: bool = True) -> None:
        self.g, self.edge, self.ends = c.g, edge, ends
        self.wide = extent_value(c.g, extent, "fp32")
        self.last = self.g.map("sub", self.wide, 1)

    def taps(self, grid: str, mode: str, *, within_first: bool = False) -> Taps:
        """Of a grid's coordinates; ``within_first``: as of ``taps_at``."""
        g = self.g
        x = g.map("mul", g.map("add", grid, 1), g.map("mul", self.last if self.ends else self.wide, 0.5))
        return self.taps_at(x if self.ends else g.map("sub", x, 0.5), mode, within_first=within_first)

    def taps_at(self, x: str, mode: str, *, within_first: bool = False) -> Taps:
        """Of places counted in pixels: indices of pixels, each with its weight; None: it counts whole.

        ``within_first``: ``nearest`` rounds what lies beyond the edge after it is brought inside, as torch does. The
        two differ halfway between pixels. ONNX rounds first.
        """
        g = self.g
        if mode == "cubic":  # pixels beyond the edge are found one by one
            low = g.map("floor", x)
            away = g.map("sub", x, low)
            return [self._pixel(g.map("add", low, step), self._cubic(away, step)) for step in (-1.0, 0.0, 1.0, 2.0)]
        if mode == "nearest":
            return [self._pixel(g.map("round", self._within(x) if within_first else x), None)]
        x = self._within(x)
        low = g.map("floor", x)
        high_share = g.map("sub", x, low)
        low_share = g.map("sub", g.constant(1.0, "fp32"), high_share)
        return [self._pixel(low, low_share), self._pixel(g.map("add", low, 1), high_share)]

    def _cubic(self, away: str, step: float) -> str:
        return keys_cubic(self.g, self.g.map("abs", self.g.map("sub", away, step)), _CUBIC)

    def _within(self, x: str) -> str:
        """The place that stands for one beyond the edge; with zeros it stays where it is."""
        g = self.g
        if self.edge == "reflection":
            low = 0.0 if self.ends else -0.5
            span = self.last if self.ends else self.wide
            single = g.map("less_equal", span, 0.0)
            width = g.map("select", single, 1.0, span)
            away = g.map("abs", g.map("sub", x, low))
            turns = g.map("floor", g.map("div", away, width))
            rest = g.map("sub", away, g.map("mul", turns, width))
            back = g.map("equal", g.map("mod", turns, 2.0), 1.0)
            x = g.map("add", g.map("select", back, g.map("sub", width, rest), rest), low)
            x = g.map("select", single, 0.0, x)
        return x if self.edge == "zeros" else g.map("max", g.map("min", x, self.last), 0)

    def _pixel(self, path: str, weight: str | None) -> tuple[str, str | None]:
        g = self.g
        if self.edge == "zeros":
            inside = g.map("and", g.map("greater_equal", path, 0), g.map("less_equal", path, self.last))
            weight = g.map("select", inside, g.constant(1.0, "fp32") if weight is None else weight, 0.0)
        selected = self._within(path)
        return g.add("cast", g.map("max", g.map("min", selected, self.last), 0), dtype="int64"), weight


SAMPLED: Mapping[str, Rule] = {"GridSample": _grid_sample}
