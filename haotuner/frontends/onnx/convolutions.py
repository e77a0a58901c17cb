"""Rules of convolutions: a contraction over windows, sliding or where the data say.

DeformConv: a convolution whose window lies where the data say. Its columns are sampled, then it is a product.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import numpy as np

from haotuner.frontends.onnx.grid_sample import Line, blended
from haotuner.frontends.onnx.layout import cut, padded, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import Extent, canonical, ceiling_division, floor_division, largest, product, smallest


@dataclass(frozen=True, slots=True)
class Windows:
    """One entry for each axis of the image."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    before: tuple[Extent, ...]
    after: tuple[Extent, ...]

    @property
    def spans(self) -> tuple[int, ...]:
        """From the first to behind the last element of a window."""
        return tuple((size - 1) * dilation + 1 for size, dilation in zip(self.sizes, self.dilations, strict=True))


def windows_of(c: NodeContext, sizes: Sequence[int], image: Sequence[Extent], *, cuts: bool = False) -> Windows:
    """The windows of a node over an image of these extents; with ``ceil_mode`` the last pads are as wide as it needs.

    ``cuts``: whether SAME takes elements off both ends where windows are smaller than their strides, as pools do.
    """
    rank = len(image)
    if len(sizes) != rank:
        raise c.bad(f"windows of {len(sizes)} axes for an image of {rank}")
    strides = tuple(c.attribute("strides", [1] * rank))
    dilations = tuple(c.attribute("dilations", [1] * rank))
    pads = list(c.attribute("pads", [0] * 2 * rank))
    if len(strides) != rank or len(dilations) != rank or len(pads) != 2 * rank:
        raise c.bad(f"strides {strides}, dilations {dilations} and pads {pads} do not go with {rank} axes")
    if min(*sizes, *strides, *dilations) < 1:
        raise c.bad(f"sizes {tuple(sizes)}, strides {strides} and dilations {dilations} must be at least 1")
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    before: list[Extent] = list(pads[:rank])
    after: list[Extent] = list(pads[rank:])
    auto = c.attribute("auto_pad", "NOTSET")
    if auto in ("SAME_UPPER", "SAME_LOWER"):
        for index, extent in enumerate(image):
            steps = ceiling_division(extent, strides[index])
            total = canonical((steps - 1) * strides[index] + spans[index] - extent)
            lacking = largest([total, 0])
            less = floor_division(lacking, 2)
            more = canonical(lacking - less)
            before[index], after[index] = (less, more) if auto == "SAME_UPPER" else (more, less)
            if cuts and spans[index] < strides[index]:  # divided towards zero, as ONNX Runtime divides
                off = largest([canonical(-total - int(auto == "SAME_LOWER")), 0])
                before[index] = canonical(before[index] - floor_division(off, 2))
                after[index] = canonical(total - before[index])
    elif auto == "VALID":
        before, after = [0] * rank, [0] * rank
    elif auto != "NOTSET":
        raise c.bad(f"auto_pad {auto!r} is unknown")
    if c.attribute("ceil_mode", 0) and auto in ("NOTSET", "VALID"):
        for position, extent in enumerate(image):
            reach = extent + before[position] + after[position] - spans[position]
            count = canonical(ceiling_division(reach, strides[position]) + 1)
            # A window that would begin behind the image and its first pads is left out.
            count = smallest([count, ceiling_division(extent + before[position], strides[position])])
            needed = (count - 1) * strides[position] + spans[position] - extent - before[position]
            after[position] = largest([canonical(needed), after[position]])
    for extent, item, other, span in zip(image, before, after, spans, strict=True):
        reach = canonical(extent + item + other)
        if isinstance(reach, int) and reach < span:
            raise c.bad(f"a window of {span} does not fit an image of {reach}, pads included")
    return Windows(tuple(sizes), strides, dilations, tuple(before), tuple(after))


IMAGE, WINDOW = "pqrst", "uvwxy"  # letters of the result's places and of a window's elements


def _conv(c: NodeContext) -> str:
    weight = c.shape(1)
    if not all(isinstance(extent, int) for extent in weight):
        raise c.bad("a weight whose extents are not fixed")
    image = c.shape()[2:]
    sizes = list(c.attribute("kernel_shape", weight[2:]))
    if tuple(sizes) != tuple(weight[2:]):
        raise c.bad(f"kernel_shape {sizes} contradicts the weight {weight}")
    return biased(c, convolved(c, c.tensor(0), c.tensor(1), windows_of(c, sizes, image), c.attribute("group", 1)))


def biased(c: NodeContext, x: str, index: int = 2) -> str:
    """A convolution's result with the bias that the node has as its third input, or at another place."""
    if not c.has_input(index):
        return x
    rank = c.g.types[x].rank
    return c.g.map("add", x, reshaped(c, c.tensor(index), (c.shape(index)[0], *[1] * (rank - 2))))


def convolved(c: NodeContext, x: str, weight: str, w: Windows, groups: int) -> str:
    """(b, n, image) with a weight (f, n/groups, window)."""
    rank = len(w.sizes)
    b, n = c.g.types[x].shape[:2]
    f, own = c.g.types[weight].shape[:2]
    if groups < 1 or f % groups or (isinstance(n, int) and n != own * groups):
        raise c.bad(f"{n} channels and {f} filters in {groups} groups with a weight for {own} channels")
    x = padded(c, x, (0, 0, *w.before), (0, 0, *w.after), "constant", 0.0)
    image, window = IMAGE[:rank], WINDOW[:rank]
    if max(w.sizes) > 1 or max(w.strides) > 1:
        x = c.g.add("window", x, axes=tuple(range(2, 2 + rank)), sizes=w.sizes, strides=w.strides, dilations=w.dilations)
    else:
        weight, window = reshaped(c, weight, (f, own)), ""
    if groups == 1:
        return c.g.add("contract", x, weight, labels=f"bc{image}{window},fc{window}->bf{image}")
    x = reshaped(c, x, (b, groups, own, *c.g.types[x].shape[2:]))
    weight = reshaped(c, weight, (groups, f // groups, own, *c.g.types[weight].shape[2:]))
    result = c.g.add("contract", x, weight, labels=f"bgc{image}{window},gfc{window}->bgf{image}")
    return reshaped(c, result, (b, f, *c.g.types[result].shape[3:]))


def _transposed(c: NodeContext) -> str:
    """Phases where elements are spread by strides, else (and where windows have gaps, too) zeros between the elements."""
    rank = len(c.shape()) - 2
    strides, dilations = list(c.attribute("strides", [1] * rank)), list(c.attribute("dilations", [1] * rank))
    sizes = list(c.shape(1)[2:])
    if list(c.attribute("kernel_shape", sizes)) != sizes:
        raise c.bad(f"kernel_shape {c.attribute('kernel_shape', sizes)} contradicts the weight {c.shape(1)}")
    if min(*strides, *dilations) < 1:
        raise c.bad(f"strides {strides} and dilations {dilations} must be at least 1")
    spans = [(size - 1) * dilation + 1 for size, dilation in zip(sizes, dilations, strict=True)]
    before, after = _cuts(c, c.shape()[2:], strides, spans)
    cuts = [item for item in (*before, *after) if isinstance(item, int)]
    if max(strides) > 1 and max(dilations) == 1 and len(cuts) == 2 * rank:
        return biased(c, _in_phases(c, strides, cuts[:rank], cuts[rank:]))
    return biased(c, _zeros_between(c, strides, dilations, spans, (before, after)))


def _in_phases(c: NodeContext, strides: Sequence[int], before: Sequence[int], after: Sequence[int]) -> str:
    """The phases of a result, each a convolution of its own, as filters of one that moves by one; then they are interleaved.

    Every stride-th element of the result is a sum over the same window elements, so no zero is multiplied:
    ``y[f, s*j + p] = sum over c, u of x[c, j - u] * w[c, f, p + s*u]``, for each phase p of the stride s.
    """
    n, own, *sizes = c.shape(1)
    groups, rank = c.attribute("group", 1), len(sizes)
    taps = [-(-size // stride) for size, stride in zip(sizes, strides, strict=True)]
    weight = reshaped(c, c.tensor(1), (groups, n // groups, own, *sizes))
    more = tuple(tap * stride - size for tap, stride, size in zip(taps, strides, sizes, strict=True))
    weight = padded(c, weight, (0,) * (3 + rank), (0, 0, 0, *more), "constant", 0.0)
    apart = [item for pair in zip(taps, strides, strict=True) for item in pair]
    weight = reshaped(c, weight, (groups, n // groups, own, *apart))
    axes = tuple(range(3, 3 + 2 * rank, 2))  # of the taps
    turned = tuple(tap - 1 for tap in taps)
    weight = c.g.add("slice", weight, axes=axes, starts=turned, stops=(-1,) * rank, steps=(-1,) * rank)
    weight = c.g.add("transpose", weight, order=(0, 2, *(axis + 1 for axis in axes), 1, *axes))
    weight = reshaped(c, weight, (groups * own * prod(strides), n // groups, *taps))
    b, image = c.shape()[0], c.shape()[2:]
    around = tuple(tap - 1 for tap in taps)
    ones = (1,) * rank
    result = convolved(c, c.tensor(0), weight, Windows(tuple(taps), ones, ones, around, around), groups)
    spatial = c.g.types[result].shape[2:]
    result = reshaped(c, result, (b, groups * own, *strides, *spatial))
    between = [item for index in range(rank) for item in (2 + rank + index, 2 + index)]
    result = c.g.add("transpose", result, order=(0, 1, *between))
    whole = [canonical(extent * stride) for extent, stride in zip(spatial, strides, strict=True)]
    result = reshaped(c, result, (b, groups * own, *whole))
    required = [canonical((extent - 1) * stride + size - last) for extent, stride, size, last in
              zip(image, strides, sizes, after, strict=True)]  # fmt: skip
    lacking = [
        max(0, size - last - tap * stride) for size, last, tap, stride in zip(sizes, after, taps, strides, strict=True)
    ]
    ahead = [max(0, -first) for first in before]
    result = padded(c, result, (0, 0, *ahead), (0, 0, *lacking), "constant", 0.0)
    starts = [first + more for first, more in zip(before, ahead, strict=True)]
    stops = tuple(canonical(stop + more) for stop, more in zip(required, ahead, strict=True))
    return c.g.add("slice", result, axes=tuple(range(2, 2 + rank)), starts=tuple(starts), stops=stops, steps=ones)


def _zeros_between(
    c: NodeContext,
    strides: Sequence[int],
    dilations: Sequence[int],
    spans: Sequence[int],
    cuts: tuple[Sequence[Extent], Sequence[Extent]],
) -> str:
    """Zeros between the elements, then a convolution with the windows turned around."""
    n, own, *sizes = c.shape(1)
    groups, rank = c.attribute("group", 1), len(sizes)
    x = _spread(c, c.tensor(0), strides)
    outer_before, outer_after = ([canonical(span - 1 - cut) for span, cut in zip(spans, cut, strict=True)] for cut in cuts)
    # The zeros behind the last element are part of the pad: so an image of no elements has the size of the formula, too.
    outer_after = [canonical(pad - stride + 1) for pad, stride in zip(outer_after, strides, strict=True)]
    weight = reshaped(c, c.tensor(1), (groups, n // groups, own, *sizes))
    weight = c.g.add("transpose", weight, order=(0, 2, 1, *range(3, 3 + rank)))
    weight = reshaped(c, weight, (groups * own, n // groups, *sizes))
    axes = tuple(range(2, 2 + rank))
    turned = tuple(size - 1 for size in sizes)
    weight = c.g.add("slice", weight, axes=axes, starts=turned, stops=(-1,) * rank, steps=(-1,) * rank)
    x = padded(c, x, (0, 0, *outer_before), (0, 0, *outer_after), "constant", 0.0)
    none = (0,) * rank
    return convolved(c, x, weight, Windows(tuple(sizes), (1,) * rank, tuple(dilations), none, none), groups)


def _cuts(
    c: NodeContext, image: Sequence[Extent], strides: Sequence[int], spans: Sequence[int]
) -> tuple[list[Extent], list[Extent]]:
    """Cuts of a transposed convolution at both sides; less than nothing where ``output_padding`` adds."""
    rank = len(image)
    more = list(c.attribute("output_padding", [0] * rank))
    pads = list(c.attribute("pads", [0] * 2 * rank))
    before: list[Extent] = pads[:rank]
    after: list[Extent] = [cut - extra for cut, extra in zip(pads[rank:], more, strict=True)]
    auto = c.attribute("auto_pad", "NOTSET")
    requested = c.attribute("output_shape", None)
    if auto == "VALID" and requested is None:
        return [0] * rank, [-extra for extra in more]
    if requested is None and auto == "NOTSET":
        return before, after
    for index, extent in enumerate(image):
        required = requested[index - rank] if requested is not None else canonical(extent * strides[index])
        total = canonical((extent - 1) * strides[index] + spans[index] + more[index] - required)
        if requested is not None and isinstance(total, int) and total < 0:
            before[index], after[index] = 0, total - more[index]
            continue
        less = floor_division(total, 2)
        wide = canonical(total - less)
        before[index], after[index] = (less, wide) if auto == "SAME_UPPER" else (wide, less)
        after[index] = canonical(after[index] - more[index])
    return before, after


def _spread(c: NodeContext, x: str, strides: Sequence[int]) -> str:
    """Zeros behind each element: ``stride - 1`` of them."""
    if max(strides) == 1:
        return x
    shape = c.g.types[x].shape
    apart = [item for extent in shape[2:] for item in (extent, 1)]
    wide = [0 if index % 2 == 0 else strides[index // 2] - 1 for index in range(len(apart))]
    x = c.g.add("reshape", x, shape=(*shape[:2], *apart))
    x = c.g.add("pad", x, before=(0,) * (2 + len(wide)), after=(0, 0, *wide), mode="constant", value=0.0)
    full = [canonical(extent * stride) for extent, stride in zip(shape[2:], strides, strict=True)]
    return c.g.add("reshape", x, shape=(*shape[:2], *full))


CONVOLUTIONS: Mapping[str, Rule] = {"Conv": _conv, "ConvTranspose": _transposed}


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
    if c.has_input(4):
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
