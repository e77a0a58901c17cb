"""Rules of object detection: RoiAlign, MaxRoiPool, NonMaxSuppression.

RoiAlign and MaxRoiPool: what lies in boxes of an image, each of them cut into as many bins.

Bins are sampled at pixels, gathered as rows of all channels. How many pixels a bin has follows from the boxes: as many as
the largest bin has are looked at, and those that a bin has not are left out.

NonMaxSuppression: which of overlapping boxes a detector keeps. The number of kept ones is a data-dependent size.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from haotuner.frontends.onnx.data_dependent import places_of
from haotuner.frontends.onnx.grid_sample import Taps, blended
from haotuner.frontends.onnx.layout import cut, reshaped, transposed
from haotuner.frontends.onnx.lengths import computed_length
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.decompositions import extent_value
from haotuner.graph.extents import Extent, product


@dataclass(frozen=True, slots=True)
class Samples:
    """Of one axis: ``taps`` of every sample, ``there``: whether a bin has that sample; ``counts`` of each box, (boxes,)."""

    taps: Taps
    there: str
    counts: str


def _roi_align(c: NodeContext) -> str:
    mode = c.attribute("mode", "avg")
    where = c.attribute("coordinate_transformation_mode", "half_pixel" if c.opset >= 16 else "output_half_pixel")
    if mode not in ("avg", "max") or where not in ("half_pixel", "output_half_pixel"):
        raise c.bad(f"mode {mode!r} with coordinate_transformation_mode {where!r}")
    g, (images, channels, *image), boxes = c.g, c.shape(0), c.shape(1)[0]
    bins = (c.attribute("output_height", 1), c.attribute("output_width", 1))
    sides = [_sampled(c, axis, image[axis], bins[axis], where == "half_pixel") for axis in (0, 1)]
    grid = [g.types[side.there].shape[-1] for side in sides]
    out = (boxes, bins[0], grid[0], bins[1], grid[1])
    rows = reshaped(c, transposed(c, c.tensor(0), (0, 2, 3, 1)), (product((images, *image)), channels))
    own = reshaped(c, g.cast(c.tensor(2), "int64"), (boxes, 1, 1, 1, 1))
    lines = [_spread(c, sides[axis].taps, axis, (boxes, bins[axis], grid[axis])) for axis in (0, 1)]
    there = g.map("and", *(_axes(c, sides[a].there, a, (boxes, bins[a], grid[a])) for a in (0, 1)))
    there = reshaped(c, g.add("broadcast", there, shape=out), (*out, 1))
    if mode == "avg":
        values = g.map("select", there, blended(c, rows, lines, own, image, out), 0.0)
        total = g.add("reduce", values, how="sum", axes=(2, 4), keepdims=False)
        count = g.map("max", g.map("mul", sides[0].counts, sides[1].counts), 1)
        result = g.map("div", total, reshaped(c, g.cast(count, c.type().dtype), (boxes, 1, 1, 1)))
    else:  # the largest of all neighbours, each times its weight
        values = ""
        for tall in lines[0]:
            for wide in lines[1]:
                part = blended(c, rows, [[tall], [wide]], own, image, out)
                values = g.map("max", values, part) if values else part
        values = g.map("select", there, values, float("-inf"))
        most = g.add("reduce", values, how="max", axes=(2, 4), keepdims=False)
        none = g.map("less_equal", g.map("min", sides[0].counts, sides[1].counts), 0)
        result = g.map("select", reshaped(c, none, (boxes, 1, 1, 1)), 0.0, most)
    return transposed(c, result, (0, 3, 1, 2))


def _sampled(c: NodeContext, axis: int, extent: Extent, bins: int, half: bool) -> Samples:
    """The samples of an axis, 0 for rows and 1 for columns; shapes (boxes, bins, samples)."""
    g, boxes, scale = c.g, c.shape(1)[0], float(c.attribute("spatial_scale", 1.0))
    sides = g.cast(c.tensor(1), "fp32")
    first, last = (reshaped(c, cut(c, sides, 1, at, at + 1), (boxes,)) for at in (1 - axis, 3 - axis))
    offset = 0.5 if half else 0.0
    begin, end = (g.map("sub", g.map("mul", item, scale), offset) for item in (first, last))
    long = g.map("sub", end, begin)
    long = long if half else g.map("max", long, 1.0)
    each = g.map("div", long, float(bins))
    ratio = c.attribute("sampling_ratio", 0)
    if ratio > 0:
        grid: Extent = ratio
        counts = g.add("broadcast", g.constant(ratio, "int64"), shape=(boxes,))
    else:
        counts = g.cast(g.map("ceil", each), "int64")
        grid = computed_length(g, _most(c, counts))
    steps = reshaped(c, g.add("iota", extent=bins, dtype="fp32"), (bins, 1))
    parts = reshaped(c, g.add("iota", extent=grid, dtype="fp32"), (1, grid))
    each, begin, wide = (reshaped(c, item, (boxes, 1, 1)) for item in (each, begin, g.cast(counts, "fp32")))
    inner = g.map("div", g.map("mul", g.map("add", parts, 0.5), each), g.map("max", wide, 1.0))
    position = g.map("add", g.map("add", begin, g.map("mul", steps, each)), inner)
    there = g.map("less", g.add("iota", extent=grid, dtype="int64"), reshaped(c, counts, (boxes, 1, 1)))
    return Samples(_neighbours(c, position, extent), there, counts)


def _most(c: NodeContext, counts: str) -> str:
    """The largest of some counts, none below 0."""
    most = c.g.add("reduce", counts, how="max", axes=(0,), keepdims=False)
    return c.g.plain("map", most, c.g.constant(0, "int64"), function="max")


def _neighbours(c: NodeContext, path: str, extent: Extent) -> Taps:
    """Both pixels around a place with their weights; 0 where it lies more than a pixel outside of the image."""
    g = c.g
    size = extent_value(g, extent, "fp32")
    last = g.map("sub", size, 1.0)
    outside = g.map("or", g.map("less", path, -1.0), g.map("greater", path, size))
    inside = g.map("max", g.map("min", path, last), 0.0)
    low = g.map("floor", inside)
    high_share = g.map("sub", inside, low)
    low_share = g.map("sub", g.constant(1.0, "fp32"), high_share)
    pixels = [g.cast(item, "int64") for item in (low, g.map("min", g.map("add", low, 1.0), last))]
    weights = [g.map("select", outside, 0.0, item) for item in (low_share, high_share)]
    return list(zip(pixels, weights, strict=True))


def _axes(c: NodeContext, tensor: str, axis: int, shape: tuple[Extent, ...]) -> str:
    """(boxes, bins, samples) of one axis among those of both: (boxes, bins, samples, bins, samples)."""
    boxes, bins, grid = shape
    full = c.g.add("broadcast", tensor, shape=shape)
    return reshaped(c, full, (boxes, bins, grid, 1, 1) if axis == 0 else (boxes, 1, 1, bins, grid))


def _spread(c: NodeContext, taps: Taps, axis: int, shape: tuple[Extent, ...]) -> Taps:
    return [(_axes(c, at, axis, shape), weight and _axes(c, weight, axis, shape)) for at, weight in taps]


def _max_roi_pool(c: NodeContext) -> str:
    """Bins are whole pixels, which overlap where they do not divide a box; empty ones are 0."""
    g, (images, channels, *image), boxes = c.g, c.shape(0), c.shape(1)[0]
    bins, scale = list(c.required("pooled_shape")), float(c.attribute("spatial_scale", 1.0))
    sides = g.cast(c.tensor(1), "fp32")
    own = g.cast(reshaped(c, cut(c, sides, 1, 0, 1), (boxes, 1, 1, 1, 1)), "int64")
    places, here = [], []
    for axis in (0, 1):
        first, last = (reshaped(c, cut(c, sides, 1, at, at + 1), (boxes, 1)) for at in (2 - axis, 4 - axis))
        begin, end = (g.map("floor", g.map("add", g.map("mul", item, scale), 0.5)) for item in (first, last))
        each = g.map("div", g.map("max", g.map("add", g.map("sub", end, begin), 1.0), 1.0), float(bins[axis]))
        steps = g.add("iota", extent=bins[axis], dtype="fp32")
        bounds = (g.map("floor", g.map("mul", steps, each)), g.map("ceil", g.map("mul", g.map("add", steps, 1.0), each)))
        size = extent_value(g, image[axis], "fp32")
        low, high = (g.cast(g.map("max", g.map("min", g.map("add", bound, begin), size), 0.0), "int64") for bound in bounds)
        wide = g.map("sub", high, low)
        grid = computed_length(g, _most(c, reshaped(c, wide, (product((boxes, bins[axis])),))))
        parts = g.add("iota", extent=grid, dtype="int64")
        at = g.map("add", reshaped(c, low, (boxes, bins[axis], 1)), parts)
        at = g.map("min", at, g.map("max", g.map("sub", extent_value(g, image[axis], "int64"), 1), 0))
        shape = (boxes, bins[axis], grid)
        places.append(_axes(c, at, axis, shape))
        here.append(_axes(c, g.map("less", parts, reshaped(c, wide, (boxes, bins[axis], 1))), axis, shape))
    grid_of = [g.types[places[axis]].shape[2 + 2 * axis] for axis in (0, 1)]
    out = (boxes, bins[0], grid_of[0], bins[1], grid_of[1])
    rows = reshaped(c, transposed(c, c.tensor(0), (0, 2, 3, 1)), (product((images, *image)), channels))
    there = reshaped(c, g.add("broadcast", g.map("and", *here), shape=out), (*out, 1))
    values = blended(c, rows, [[(position, None)] for position in places], own, image, out)
    values = g.map("select", there, values, float("-inf"))
    most = g.add("reduce", values, how="max", axes=(2, 4), keepdims=False)
    result = g.map("select", g.map("equal", most, float("-inf")), 0.0, most)
    return transposed(c, result, (0, 3, 1, 2))


REGIONS: Mapping[str, Rule] = {"RoiAlign": _roi_align, "MaxRoiPool": _max_roi_pool}


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
    most = g.add("cast", c.tensor(2), dtype="int64") if c.has_input(2) else g.constant(0, "int64")
    overlap = c.tensor(3) if c.has_input(3) else g.constant(0.0, "fp32")
    least = c.tensor(4) if c.has_input(4) else g.constant(float("-inf"), "fp32")
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
