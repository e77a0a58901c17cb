"""Convolutions in the words of other libraries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.ops.convolution import is_convolution, windows
from haotuner.spec.op import Op


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvAttributes:
    """A convolution in the words of other libraries; images are channels first for all of them."""

    flat: bool
    last: bool  # the op stores channels last: torch gets the same memory as channels_last, graph compilers their own layout
    stride: tuple[int, ...]
    pad: tuple[int, ...]  # on both sides of each axis
    dilation: tuple[int, ...]
    groups: int
    transposed: bool = False
    more: tuple[int, ...] = ()  # of a transposed one: elements added behind the output of each axis

    @staticmethod
    def of(op: Op) -> ConvAttributes:
        """The words for an op."""
        sides = tuple(windows(op.kind, dict(op.static), op.all_options()).values())
        return ConvAttributes(
            flat="h" not in op.axes,
            last=op.option("layout") in ("nhwc", "nwc"),
            stride=tuple(side.stride for side in sides),
            pad=tuple(side.before for side in sides),
            dilation=tuple(side.dilation for side in sides),
            groups=int(op.option("groups")),
            transposed=sides[0].transposed,
            more=tuple(side.more for side in sides),
        )

    def first(self, image: Any) -> Any:
        """A view of an image, or of a result, with channels first."""
        return np.moveaxis(image, -1, 1) if self.last else image

    def stored(self, image: Any) -> Any:
        """A result with channels first as the op stores it."""
        return np.moveaxis(image, 1, -1) if self.last else image


def channels_last(op: Op) -> bool:
    """True if an op is a convolution that stores channels last."""
    return is_convolution(op.kind) and ConvAttributes.of(op).last
