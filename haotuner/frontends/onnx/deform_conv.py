"""DeformConv: a convolution whose window lies where the data say. Its columns are sampled, then it is a product."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from haotuner.frontends.onnx.convolutions import biased
from haotuner.frontends.onnx.grid_sample import Line, blended
from haotuner.frontends.onnx.layout import cut, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import product


def _deform_conv(c: NodeContext) -> str:
    g, (n, channels, *image), (filters, own, *sizes) = c.g, c.shape(0), c.shape(1)
    if len(image) != 2 or not all(isinstance(extent, int) for extent in (channels, *c.shape(1))):
        raise c.bad(f"an image of {len(image)} axes, or channels or a weight whose extents are not fixed")
    if list(c.attribute("kernel_shape", sizes)) != list(sizes):
        raise c.bad(f"kernel_shape {c.attribute('kernel_shape', sizes)} contradicts the weight {list(c.shape(1))}")
    rank, taps = len(sizes), prod(sizes)
    groups, parts = c.attribute("group", 1), c.attribute("offset_group", 1)
    if channels != own * groups or filters % groups or channels % parts or c.shape(2)[1] != parts * taps * rank:
        raise c.bad(
            f"{channels} channels, a weight {list(c.shape(1))} in {groups} groups and offsets {list(c.shape(2))} in {parts}"
        )
    places = c.shape(2)[2:]
    out = (n, *places, parts, taps)
    moved = g.add("cast", c.tensor(2), dtype="fp32") if c.type(2).dtype != "fp32" else c.tensor(2)
    moved = transposed(c, reshaped(c, moved, (n, parts, taps, rank, *places)), (0, 4, 5, 1, 2, 3))
    strides, dilations = c.attribute("strides", [1] * rank), c.attribute("dilations", [1] * rank)
    before, within = c.attribute("pads", [0] * 2 * rank), np.indices(sizes).reshape(rank, taps)
    lines = []
    for axis in range(rank):
        offset = reshaped(c, cut(c, moved, 5, axis, axis + 1), out)
        first = g.map("mul", g.add("iota", extent=places[axis], dtype="fp32"), float(strides[axis]))
        first = reshaped(c, first, (places[axis], *[1] * (rank + 1 - axis)))
        steps = g.constant((within[axis] * dilations[axis] - before[axis]).astype(np.float32))
        lines.append(Line(c, image[axis]).taps_at(g.map("add", g.map("add", first, steps), offset), "linear"))
    # Each part of the channels has offsets of its own: it is an image of its own.
    wide = channels // parts
    rows = transposed(c, reshaped(c, c.tensor(0), (n, parts, wide, *image)), (0, 1, 3, 4, 2))
    each = g.map("mul", g.add("iota", extent=n, dtype="int64"), parts)
    which = g.map(
        "add", reshaped(c, each, (n, 1, 1, 1, 1)), reshaped(c, g.add("iota", extent=parts, dtype="int64"), (parts, 1))
    )
    columns = blended(c, reshaped(c, rows, (product((n, parts, *image)), wide)), lines, which, image, out)
    if c.given(4):
        mask = transposed(c, reshaped(c, c.tensor(4), (n, parts, taps, *places)), (0, 3, 4, 1, 2))
        columns = g.map("mul", columns, reshaped(c, mask, (*out, 1)))
    weight = c.tensor(1)
    if parts % groups == 0:  # the weight is turned once: columns stay as they are gathered, channels side by side
        weight = reshaped(c, weight, (filters, own // wide, wide, taps))
        weight = transposed(c, weight, (0, 1, 3, 2))
    else:  # channels of several groups lie in one part
        columns = transposed(c, columns, (0, 1, 2, 3, 5, 4))
    columns = reshaped(c, columns, (n, *places, groups, own * taps))
    weight = reshaped(c, weight, (groups, filters // groups, own * taps))
    if groups == 1:
        columns, weight = reshaped(c, columns, (n, *places, own * taps)), reshaped(c, weight, (filters, own * taps))
        result = g.add("contract", columns, weight, labels="bpqk,fk->bpqf")
    else:
        result = reshaped(c, g.add("contract", columns, weight, labels="bpqgk,gfk->bpqgf"), (n, *places, filters))
    return biased(c, transposed(c, result, (0, 3, 1, 2)), 3)


DEFORMED: Mapping[str, Rule] = {"DeformConv": _deform_conv}
