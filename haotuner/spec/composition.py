"""Composition: how one shape is put together from micro-kernels, and how threads share it.

It is the value that travels. Text is for records, manifests and people: ``A*3+B*2@n``; ``A@k4`` sums k in four parts that
run side by side, and adds them up in a fixed order.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from haotuner.spec.kernel import MicroKernel

# What threads share of a call: nothing, an axis of the output, or the terms of the sum over k.
SERIAL, COLUMNS, ROWS, TERMS = "serial", "n", "m", "k"
# In words. Places are the runtime's numbers (native/ht_limits.h).
WAYS: Mapping[str, str] = {
    SERIAL: "one thread",
    COLUMNS: "threads share columns",
    ROWS: "threads share rows",
    TERMS: "threads share terms of the sum",
}
MAX_REGIONS = 3  # more never paid in trials: the third region is already a remainder of a few rows
WHOLE = 0  # tiles of a micro-kernel that covers the shape by itself, however many these are

_TILES, _SHARE = re.compile(r"[1-9][0-9]*"), re.compile(r"[a-z]+(?:[1-9][0-9]{0,3})?")
_PARTS = re.compile(rf"{TERMS}([1-9][0-9]{{0,3}})")


class Part(NamedTuple):
    """One region: a micro-kernel's name and how many of its tiles lie along the covered axis."""

    kernel: str
    tiles: int

    @property
    def micro_kernel(self) -> MicroKernel:
        """The micro-kernel of that name; ValueError where none has such a name."""
        return _micro_kernel(self.kernel)

    def __str__(self) -> str:
        return self.kernel if self.tiles == WHOLE else f"{self.kernel}*{self.tiles}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A box over the output axes, computed by one micro-kernel. ``first``/``last`` per axis, ``last`` excluded."""

    kernel: str
    box: Mapping[str, tuple[int, int]]
    tiles: int


@dataclass(frozen=True, slots=True)
class Composition:
    """The regions of one shape in launch order; they cover the output exactly once. Ordered by its text."""

    parts: tuple[Part, ...]
    share: str = COLUMNS  # the axis that threads share, or SERIAL

    @staticmethod
    def of(kernel: str, tiles: int = WHOLE, share: str = COLUMNS) -> Composition:
        """One region."""
        return Composition((Part(kernel, tiles),), share)

    @staticmethod
    def parse(text: str) -> Composition:
        """Composition from its ``text`` or its ``label``; ValueError if it is neither."""
        body, at, share = text.partition("@")
        parts = []
        for part in body.split("+"):
            kernel, times, tiles = part.partition("*")
            if not kernel or (times and not _TILES.fullmatch(tiles)) or (at and not _SHARE.fullmatch(share)):
                raise ValueError(f"{text!r} is no composition, which is KERNEL*tiles+KERNEL*tiles@AXIS or @{SERIAL}")
            parts.append(Part(kernel, int(tiles) if times else WHOLE))
        return Composition(tuple(parts), share or COLUMNS)

    @property
    def text(self) -> str:
        """The regions alone, as trials name them: ``A*3+B*2``; a whole micro-kernel is its name."""
        return "+".join(map(str, self.parts))

    @property
    def label(self) -> str:
        """The regions and how threads share them: ``A*3+B*2@n``."""
        return f"{self.text}@{self.share}"

    @property
    def kernels(self) -> tuple[MicroKernel, ...]:
        """The micro-kernel of each region; ValueError where one is named otherwise."""
        return tuple(part.micro_kernel for part in self.parts)

    @property
    def tiles(self) -> int:
        """Tiles of all regions."""
        return sum(tiles for _, tiles in self.parts)

    def __lt__(self, other: Composition) -> bool:
        return self.label < other.label

    def boxes(
        self, rows_of: Callable[[str], int], extents: Mapping[str, int], along: str | None = None
    ) -> tuple[Region, ...]:
        """The boxes in launch order, from the start of the covered axis on.

        Args:
            rows_of: extent of a micro-kernel's tile along the covered axis.
            extents: of the output, by axis.
            along: the covered axis; None: the first of ``extents``.
        """
        axis, result, first = along or next(iter(extents)), [], 0
        for kernel, tiles in self.parts:
            last = extents[axis] if tiles == WHOLE else first + tiles * rows_of(kernel)
            box = {other: (first, last) if other == axis else (0, extent) for other, extent in extents.items()}
            result.append(Region(kernel=kernel, box=box, tiles=tiles))
            first = last
        return tuple(result)


@lru_cache(maxsize=1 << 14)
def _micro_kernel(name: str) -> MicroKernel:
    """Names are what searches and records know kernels by; what one stands for is read once."""
    return MicroKernel.parse(name)


def in_parts(parts: int) -> str:
    """The share whose sum over k is cut into so many parts, whatever the number of threads; one part is ``SERIAL``."""
    return SERIAL if parts == 1 else f"{TERMS}{parts}"


def sum_parts(share: str) -> int:
    """Parts into which a share cuts the sum over k by itself: 4 of ``k4``, else 1."""
    match = _PARTS.fullmatch(share)
    return int(match[1]) if match else 1


def share_in_words(share: str) -> str:
    """Text of how a call is shared, for people."""
    if sum_parts(share) > 1:
        return f"the sum over k in {sum_parts(share)} parts"
    return WAYS.get(share, f"threads share axis {share}")


def is_composition(kernel: str) -> bool:
    """True if the text of a trial's kernel names regions, and not one micro-kernel that covers the shape by itself."""
    return "*" in kernel or "+" in kernel


@dataclass(frozen=True, slots=True)
class Planned:
    """A composition with what it is expected to take."""

    composition: Composition
    us: float
