"""Extents as a table of arithmetic, each line from lines before it: what a runtime without sympy evaluates."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from haotuner.graph.extents import Extent, canonical, dimensions, lowered, text

_OPERATIONS: Mapping[str, Callable[[int, int], int]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "//": operator.floordiv, "%": operator.mod,
    "max": max, "min": min,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class _Line:
    """A value of the table, in Python's arithmetic."""

    table: SizeTable
    place: int

    def __add__(self, other: _Line) -> _Line:
        return self.table.line("+", self.place, other.place)

    def __sub__(self, other: _Line) -> _Line:
        return self.table.line("-", self.place, other.place)

    def __mul__(self, other: _Line) -> _Line:
        return self.table.line("*", self.place, other.place)


@dataclass(slots=True)
class SizeTable:
    """``lines``: ["dim", name], ["number", n] or [operation, line, line]; the operations are ``+ - * // % max min``."""

    lines: list[list[Any]] = field(default_factory=list)
    _known: dict[Any, int] = field(default_factory=dict)

    def line(self, *words: Any) -> _Line:
        """The value's line, written once."""
        if words not in self._known:
            self._known[words] = len(self.lines)
            self.lines.append(list(words))
        return _Line(self, self._known[words])

    def place(self, extent: Extent) -> int:
        """Which line holds an extent. UsageError where it has no arithmetic."""
        extent = canonical(extent)
        key = text(extent)
        if key in self._known:
            return self._known[key]
        values = {name: self.line("dim", name) for name in sorted(dimensions(extent))}
        found = lowered(
            extent,
            values,
            number=lambda n: self.line("number", n),
            floordiv=lambda a, b: self.line("//", a.place, b.place),
            mod=lambda a, b: self.line("%", a.place, b.place),
            maximum=lambda a, b: self.line("max", a.place, b.place),
            minimum=lambda a, b: self.line("min", a.place, b.place),
        )
        self._known[key] = int(found.place)
        return int(found.place)

    def values(self, dims: Mapping[str, int]) -> list[int]:
        """The value of every line at a request."""
        found: list[int] = []
        for operation, *parts in self.lines:
            if operation in ("dim", "number"):
                found.append(dims[parts[0]] if operation == "dim" else int(parts[0]))
            else:
                found.append(int(_OPERATIONS[operation](*(found[place] for place in parts))))
        return found

    def places(self, shape: Sequence[Extent]) -> list[int]:
        """Lines of a shape's extents."""
        return [self.place(extent) for extent in shape]
