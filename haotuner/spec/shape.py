"""Shape, Span, ShapeRange: which sizes may arrive at run time."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from haotuner.errors import UsageError

AXIS_LIMIT = 2**31 - 1  # extents beyond it cannot be proved safe in 32-bit index arithmetic of peers and of DLPack users
DYNAMIC = "m=1..2048"  # what `--shapes dynamic` means for dense: BERT's batch x sequence products up to 16 x 128
_NUMBER = re.compile(r"[0-9]{1,20}")  # ASCII only: int() also takes other scripts' digits


@dataclass(frozen=True, slots=True)
class Shape:
    """Extents of the dynamic axes of one request, such as ``{"m": 37}``."""

    axes: tuple[tuple[str, int], ...]  # sorted by name; an extent of 0 is an empty request, which is always answered

    def __post_init__(self) -> None:
        names = [name for name, _ in self.axes]
        if names != sorted(set(names)):
            raise ValueError(f"shape axes {names} must be sorted and different; use Shape.of")
        for name, extent in self.axes:
            if not 0 <= extent <= AXIS_LIMIT:
                raise ValueError(f"shape: {name}={extent} must be in 0..2^31-1")

    @staticmethod
    def of(axes: Mapping[str, int] | None = None, **more: int) -> Shape:
        """Shape from axis names and extents; ``Shape.of(m=37)``."""
        return Shape(tuple(sorted({**(axes or {}), **more}.items())))

    def __getitem__(self, axis: str) -> int:
        """Extent of one axis."""
        for name, extent in self.axes:
            if name == axis:
                return extent
        raise KeyError(axis)

    def as_dict(self) -> dict[str, int]:
        """The JSON form, ``{"m": 37}``."""
        return dict(self.axes)

    def __str__(self) -> str:
        """The command-line form, ``m=37``."""
        return ";".join(f"{name}={extent}" for name, extent in self.axes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """The extents one axis may take: ``first..last`` in steps, or listed values; both ends included."""

    first: int
    last: int
    step: int = 1
    listed: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if self.first == self.last and not self.listed:  # one way to write one extent, so that equal spans are equal
            object.__setattr__(self, "listed", (self.first,))
        if self.listed:
            object.__setattr__(self, "step", 1)
            if list(self.listed) != sorted(set(self.listed)) or (self.first, self.last) != (self.listed[0], self.listed[-1]):
                raise ValueError(
                    f"span {self.first}..{self.last} does not fit its list {self.listed[:5]}, sorted and different"
                )
        if not 1 <= self.first <= self.last <= AXIS_LIMIT or self.step < 1:
            raise ValueError(f"span {self.first}..{self.last}:{self.step} must be in 1..2^31-1, with a step of at least 1")

    def __contains__(self, extent: int) -> bool:
        """True if this extent lies in the span."""
        if self.listed:
            return extent in self.listed
        return self.first <= extent <= self.last and (extent - self.first) % self.step == 0

    def __len__(self) -> int:
        """Number of extents in the span."""
        return len(self.listed) or (self.last - self.first) // self.step + 1

    def sample(self, count: int) -> tuple[int, ...]:
        """At most ``count`` extents, spread evenly in log scale, both ends among them; a list comes whole."""
        if count < 2:
            raise ValueError(f"a sample of {count} extents cannot hold both ends")
        if self.listed:
            return self.listed
        if len(self) <= count:
            return tuple(range(self.first, self.last + 1, self.step))
        result = {self.first, self.first + (len(self) - 1) * self.step}
        low, high = self.first, self.last
        for index in range(count):
            exact = low * (high / low) ** (index / (count - 1))
            steps = round((exact - self.first) / self.step)
            result.add(self.first + min(max(steps, 0), len(self) - 1) * self.step)
        return tuple(sorted(result))

    def __str__(self) -> str:
        """The command-line form."""
        if self.listed:
            return ",".join(map(str, self.listed))
        return f"{self.first}..{self.last}" + (f":{self.step}" if self.step != 1 else "")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShapeRange:
    """A span for each axis; ``tied`` axes take another axis's extent (``n=m``)."""

    spans: tuple[tuple[str, Span], ...]
    tied: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def parse(text: str) -> ShapeRange:
        """Read the grammar of ``--shapes``: ``dynamic``, ``m=1..4096``, ``m=1,2,4``, ``m=8..512:8``, joined by ``;``."""
        source = DYNAMIC if text.strip() == "dynamic" else text
        spans: dict[str, Span] = {}
        tied: dict[str, str] = {}
        follows: dict[str, int] = {}  # where each tied axis is written, for the caret
        at = 0
        for part in source.split(";"):
            axis, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or not re.fullmatch(r"[a-z]+", axis) or not value:
                raise _grammar(source, at, "expected AXIS=VALUES")
            if axis in spans or axis in tied:
                raise _grammar(source, at, f"axis {axis} is given twice")
            if re.fullmatch(r"[a-z]+", value):
                tied[axis], follows[axis] = value, at
            else:
                spans[axis] = _span(source, at + part.index("=") + 1, part.partition("=")[2])
            at += len(part) + 1
        for axis, other in tied.items():
            if other not in spans:
                raise _grammar(source, follows[axis], f"{axis} follows {other}, which has no values of its own")
        return ShapeRange(spans=tuple(spans.items()), tied=tuple(tied.items()))

    def axes(self) -> tuple[str, ...]:
        """Every axis that the range gives a value."""
        return tuple(axis for axis, _ in (*self.spans, *self.tied))

    def span(self, axis: str) -> Span:
        """The span of one axis."""
        source = dict(self.tied).get(axis, axis)
        return dict(self.spans)[source]

    def __contains__(self, shape: Shape) -> bool:
        """True if a shape lies in the range."""
        extents = shape.as_dict()
        if not all(a in extents and extents[a] in s for a, s in self.spans):
            return False
        return all(extents.get(a) == extents[b] for a, b in self.tied)

    def __str__(self) -> str:
        """The command-line form; parses back."""
        return ";".join([*(f"{a}={s}" for a, s in self.spans), *(f"{a}={b}" for a, b in self.tied)])


def _span(text: str, at: int, value: str) -> Span:
    """The span written at ``at``: ``1..4096``, ``8..512:8`` or ``1,2,4``."""
    if ".." in value:
        body, colon, step_text = value.partition(":")
        first_text, _, last_text = body.partition("..")
        first = _int(text, at, first_text)
        last = _int(text, at + len(first_text) + 2, last_text)
        step = _int(text, at + len(body) + 1, step_text) if colon else 1
        if last < first:
            raise _grammar(text, at, f"the range is empty: {first} is greater than {last}")
        return Span(first=first, last=last, step=step)
    values = set()
    for piece in value.split(","):
        values.add(_int(text, at, piece))
        at += len(piece) + 1
    listed = tuple(sorted(values))
    return Span(first=listed[0], last=listed[-1], listed=listed)


def _int(text: str, at: int, piece: str) -> int:
    at += len(piece) - len(piece.lstrip())
    if not _NUMBER.fullmatch(piece.strip()):
        raise _grammar(text, at, f"{piece.strip()!r} is not a whole number")
    number = int(piece)
    if number > AXIS_LIMIT:
        raise _grammar(text, at, f"{number} is over the limit 2^31-1")
    if number < 1:
        raise _grammar(
            text, at, f"found {number}, and extents and steps start at 1 (a served call with extent 0 is always answered)"
        )
    return number


def _grammar(text: str, at: int, why: str) -> UsageError:
    at += len(text[at:]) - len(text[at:].lstrip())
    return UsageError(
        f"shapes: {why}\n  {text}\n  {' ' * at}^\n"
        "write for example: dynamic | m=1..4096 | m=1,2,4 | m=8..512:8, axes separated by ';', or name a trace file"
    )
