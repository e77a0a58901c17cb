"""Convolutions whose windows are one element wide, as convolutions of one line: kernels sum side by side along a line.

Rows of an image lie one behind another, so what is ``d`` rows lower lies ``d * width`` elements further.
"""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.graph.extents import Extent, canonical, product

# A line's image, strides, dilations and pads, as conv2d has them.
Line = tuple[list[Extent], tuple[int, ...], tuple[int, ...], tuple[int, ...]]


def as_one_line(
    image: Sequence[Extent], taps: Sequence[int], strides: Sequence[int], dilations: Sequence[int], pads: Sequence[int]
) -> Line | None:
    """The image of one row that windows see alike; None of windows that are wide, of one tap, or of a width not fixed.

    ``image``, ``taps``, ``strides``, ``dilations``: of height and width; ``pads``: before both, then behind both. The
    taps become those of the width.
    """
    height, width = image
    alone = taps[1] == strides[1] == 1 and taps[0] > 1 and not pads[1] and not pads[3]
    if not alone or not isinstance(width, int) or (strides[0] > 1 and width > 1):
        return None
    return (
        [1, canonical(height * width)],
        (1, strides[0]),
        (1, dilations[0] * width),
        (0, pads[0] * width, 0, pads[2] * width),
    )


def joined_sides(shape: Sequence[Extent], sides: Sequence[int]) -> tuple[Extent, ...]:
    """A tensor's shape with both sides as one row."""
    first, last = sides
    return (*shape[:first], 1, product(shape[first : last + 1]), *shape[last + 1 :])
