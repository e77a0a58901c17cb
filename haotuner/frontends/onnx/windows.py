"""Positions of windows of convolutions and pools: sizes, strides, pads that the file gives or names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haotuner.frontends.onnx.node_context import NodeContext
from haotuner.graph.extents import Extent, canonical, ceiling_division, floor_division, largest, smallest


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
