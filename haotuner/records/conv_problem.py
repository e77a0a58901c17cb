"""ConvProblem: a convolution as MIOpen writes it in one text, as numbers."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

_TEXT = re.compile(
    r"(?P<image>[0-9]+(?:-[0-9]+){2,3})-(?P<filter>[0-9]+x[0-9]+(?:x[0-9]+)?)-(?P<out>[0-9]+(?:-[0-9]+){2,3})-(?P<batch>[0-9]+)"
    r"-(?P<pad>[0-9]+(?:x[0-9]+)*)-(?P<stride>[0-9]+(?:x[0-9]+)*)-(?P<dilation>[0-9]+(?:x[0-9]+)*)-(?P<bias>[0-9]+)"
    r"-(?P<layout>[A-Z]+)(?:-[A-Z]+)*-(?P<dtype>[A-Z0-9]+(?:x[0-9]+)?)-(?P<direction>[FBW])(?:_g(?P<groups>[0-9]+))?"
)
DIRECTIONS = {"F": 0, "B": 1, "W": 2}
BYTES = {"FP32": 4.0, "FP16": 2.0, "BF16": 2.0, "INT8": 1.0, "FP64": 8.0}
LIMIT = 2**40  # of an extent: beyond it a text is damaged, not a convolution


@dataclass(frozen=True, slots=True, kw_only=True)
class ConvProblem:
    """One convolution. ``image`` and ``out`` are channels, then extents from the outermost in.

    Of the backward directions MIOpen names first what is read, the gradient of the output.
    """

    image: tuple[int, ...]
    filter: tuple[int, ...]
    out: tuple[int, ...]
    batch: int
    pad: tuple[int, ...]
    stride: tuple[int, ...]
    dilation: tuple[int, ...]
    layout: str
    dtype: str
    direction: str
    groups: int

    @staticmethod
    def parse(text: str) -> ConvProblem:
        """The problem of that text.

        Raises:
            ValueError: it is not such a text, names an extent of 0, a type that is not known, or unlike numbers of axes.
        """
        match = _TEXT.fullmatch(text)
        if not match:
            raise ValueError("not a convolution's text (C-H-W-filter-K-outH-outW-N-pad-stride-dilation-...)")
        image, out = (tuple(map(int, match[name].split("-"))) for name in ("image", "out"))
        window, pad, stride, dilation = (
            tuple(map(int, match[n].split("x"))) for n in ("filter", "pad", "stride", "dilation")
        )
        groups, batch = int(match["groups"] or 1), int(match["batch"])
        if len(image) != len(out) or len(image) != len(window) + 1:
            raise ValueError("image, filter and result differ in their number of axes")
        if not all(0 < extent < LIMIT for extent in (*image, *out, *window, *stride, *dilation, batch, groups)):
            raise ValueError(f"an extent is 0 or beyond 2^{LIMIT.bit_length() - 1}")
        if match["dtype"] not in BYTES:
            raise ValueError(f"type {match['dtype']}: known are {', '.join(BYTES)}")
        return ConvProblem(
            image=image, filter=window, out=out, batch=batch, pad=pad, stride=stride, dilation=dilation,
            layout=match["layout"], dtype=match["dtype"], direction=match["direction"], groups=groups,
        )  # fmt: skip

    @property
    def result(self) -> tuple[int, ...]:
        """Channels and extents of what the forward convolution writes."""
        return self.out if self.direction == "F" else self.image

    @property
    def flops(self) -> float:
        """Multiply-adds count as two."""
        read = (self.image if self.direction == "F" else self.out)[0]
        return (
            2.0 * self.batch * math.prod(map(float, self.result)) * read * math.prod(map(float, self.filter)) / self.groups
        )

    @property
    def least_bytes(self) -> float:
        """Images, filter and result moved once."""
        images = self.batch * (math.prod(map(float, self.image)) + math.prod(map(float, self.out)))
        weights = float(self.image[0]) * self.out[0] * math.prod(map(float, self.filter)) / self.groups
        return (images + weights) * BYTES[self.dtype]
