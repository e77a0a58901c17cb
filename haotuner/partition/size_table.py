"""Extents as a table of arithmetic, each line from lines before it: what a runtime without sympy evaluates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from haotuner.graph.extents import Extent, canonical, dimensions, lowered, text
from haotuner.spec.size_arithmetic import OPERATIONS


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
    """``lines``: ["dim", name], ["number", n] or [operation, line, line], of ``OPERATIONS``; some have one operand.

    Numbers that are not whole are operands of the typed ones.
    """

    lines: list[list[Any]] = field(default_factory=list)
    _known: dict[Any, int] = field(default_factory=dict)

    def line(self, *words: Any) -> _Line:
        """The value's line, written once."""
        if words not in self._known:
            self._known[words] = len(self.lines)
            self.lines.append(list(words))
        return _Line(self, self._known[words])

    def place(self, extent: Extent) -> int:
        """Number of the line that holds an extent. UsageError where it has no arithmetic."""
        extent = canonical(extent)
        key = text(extent)
        if key in self._known:
            return self._known[key]
        values = {name: self.line("dim", name) for name in sorted(dimensions(extent))}
        result = lowered(
            extent,
            values,
            number=lambda n: self.line("number", n),
            floordiv=lambda a, b: self.line("//", a.place, b.place),
            mod=lambda a, b: self.line("%", a.place, b.place),
            maximum=lambda a, b: self.line("max", a.place, b.place),
            minimum=lambda a, b: self.line("min", a.place, b.place),
            function=lambda name, operands: self.line(name, *(operand.place for operand in operands)),
        )
        self._known[key] = int(result.place)
        return int(result.place)

    def values(self, dims: Mapping[str, int]) -> list[Any]:
        """The value of every line at a request; extents are whole."""
        result: list[Any] = []
        for operation, *parts in self.lines:
            if operation in ("dim", "number"):
                result.append(dims[parts[0]] if operation == "dim" else parts[0])
            else:
                result.append(OPERATIONS[operation].compute(*(result[part] for part in parts)))
        return result

    def places(self, shape: Sequence[Extent]) -> list[int]:
        """Lines of a shape's extents."""
        return [self.place(extent) for extent in shape]
