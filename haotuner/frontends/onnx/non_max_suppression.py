"""NonMaxSuppression: which of overlapping boxes a detector keeps. The number of kept ones is a data-dependent size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from haotuner.frontends.onnx.data_dependent import places_of
from haotuner.frontends.onnx.layout import cut, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import product


def _corners(c: NodeContext, boxes: str) -> str:
    """Boxes as least and largest coordinates, whichever corners or centres the file has."""
    g = c.g
    last = g.types[boxes].rank - 1
    first, two, three, four = (cut(c, boxes, last, index, index + 1) for index in range(4))
    if c.attribute("center_point_box", 0):  # x, y, width, height
        half = [g.map("mul", size, 0.5) for size in (three, four)]
        ends = [(g.map("sub", at, size), g.map("add", at, size)) for at, size in zip((first, two), half, strict=True)]
        parts = (ends[0][0], ends[1][0], ends[0][1], ends[1][1])
    else:
        parts = (g.map("min", first, three), g.map("min", two, four), g.map("max", first, three), g.map("max", two, four))
    return g.add("concat", *parts, axis=last)


def _non_max_suppression(c: NodeContext) -> str:
    """Rows of batch, class and box: of each class the best box, then the best that overlaps none before it too much."""
    g = c.g
    batch, classes, count = c.shape(1)
    order = g.add("arg_sort", c.tensor(1), axis=2, falling=True)
    most = g.add("cast", c.tensor(2), dtype="int64") if c.given(2) else g.constant(0, "int64")
    overlap = c.tensor(3) if c.given(3) else g.constant(0.0, "fp32")
    least = c.tensor(4) if c.given(4) else g.constant(float("-inf"), "fp32")
    flat = [reshaped(c, item, (1,)) for item in (most, overlap, least)]
    selected = g.add("suppress", _corners(c, c.tensor(0)), c.tensor(1), order, *flat)
    indices = places_of(replace(c, inputs=(selected,)))  # batch, class, rank among its scores
    result = g.types[indices].shape[1]
    rows = [cut(c, indices, 0, at, at + 1) for at in range(3)]
    first, two, three = (reshaped(c, row, (result,)) for row in rows)
    flat_place = g.map("add", g.map("mul", first, g.of_extents([classes], "int64")), two)
    flat_place = g.map("add", g.map("mul", flat_place, g.of_extents([count], "int64")), three)
    box = g.add("gather", reshaped(c, order, (product((batch, classes, count)),)), flat_place, axis=0)
    return g.add("concat", *(reshaped(c, row, (result, 1)) for row in (first, two, box)), axis=1)


BOXES: Mapping[str, Rule] = {"NonMaxSuppression": _non_max_suppression}
