"""Region, Composition, Plan: how one shape is put together from micro-kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from haotuner.words.shape import Shape

# What threads share of a call: nothing, columns, rows, terms of the sum. Places are the runtime's numbers (native/ht.h).
SPLITS = ("serial", "n", "m", "k")
MAX_REGIONS = 3  # more never paid in trials: the third region is already a remainder of a few rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Region:
    """A box over the output axes, computed by one micro-kernel. ``first``/``last`` per axis, ``last`` excluded."""

    kernel: str
    box: Mapping[str, tuple[int, int]]
    tiles: int
    k_split: int = 1


@dataclass(frozen=True, slots=True)
class Part:
    """One region of a composition: a micro-kernel, by name, and how many of its tiles along the covered axis."""

    kernel: str
    tiles: int


@dataclass(frozen=True, slots=True)
class Composition:
    """How one shape is put together: its regions in launch order, and what threads share of the call (``SPLITS``)."""

    parts: tuple[Part, ...]
    share: str = "n"

    @property
    def text(self) -> str:
        """``KERNEL*tiles+KERNEL*tiles``, as records name it."""
        return "+".join(f"{part.kernel}*{part.tiles}" for part in self.parts)

    @property
    def label(self) -> str:
        """The same with what threads share, ``KERNEL*tiles@n``, for people and pack manifests."""
        return f"{self.text}@{self.share}"

    @staticmethod
    def parse(text: str) -> Composition:
        """The composition of a text or a label; ValueError if it is neither."""
        body, at, share = text.partition("@")
        parts = []
        for piece in body.split("+"):
            kernel, star, tiles = piece.partition("*")
            if not star or not tiles.isascii() or not tiles.isdigit():
                raise ValueError(f"{text!r} is not KERNEL*tiles+KERNEL*tiles")
            parts.append(Part(kernel, int(tiles)))
        return Composition(tuple(parts), share if at else "n")


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """The regions of one shape in launch order; they cover the output exactly once."""

    regions: tuple[Region, ...]
    expected_us: float
    split: str = "n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Shape to composition for one op and one thread count, with what its coarseness costs."""

    op: str
    threads: int
    kernels: tuple[str, ...]
    compositions: Mapping[Shape, Covered]
    regret_mean: float = 0.0  # fraction lost against the best alternative, by the times that chose it; mean of shapes timed
    regret_max: float = 0.0
    facts: Mapping[str, float] = field(default_factory=dict)
