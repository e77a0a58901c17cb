"""One node of a foreign model, as the rules of its family see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, shown
from haotuner.graph.types import TensorType, axis_of
from haotuner.importing.constant_folding import ConstantFolding


@dataclass(frozen=True, slots=True)
class NodeContext:
    """``inputs``: names in the builder, None where one was left out; ``outputs``: how many are asked for."""

    g: ConstantFolding
    op: str
    inputs: tuple[str | None, ...]
    attributes: Mapping[str, Any]
    opset: int
    outputs: int

    def given(self, place: int) -> bool:
        """Whether this input is there."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def tensor(self, place: int) -> str:
        """An input that must be there."""
        found = self.inputs[place] if place < len(self.inputs) else None
        if found is None:
            raise UsageError(f"{self.op}: input {place} is missing")
        return found

    def maybe(self, place: int) -> str | None:
        """An input, or None."""
        return self.inputs[place] if place < len(self.inputs) else None

    def type(self, place: int = 0) -> TensorType:
        """An input's type."""
        return self.g.types[self.tensor(place)]

    def shape(self, place: int = 0) -> tuple[Extent, ...]:
        """An input's shape."""
        return self.type(place).shape

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise UsageError(f"{self.op}: attribute {name} is missing")
        return self.attributes[name]

    def numbers(self, place: int) -> list[Extent]:
        """Whole numbers, or expressions of dimensions, of an input."""
        return self.g.whole_numbers(self.tensor(place), f"{self.op}: input {place}")

    def whole(self, place: int) -> list[int]:
        """Whole numbers of an input."""
        found = self.numbers(place)
        if not all(isinstance(one, int) for one in found):
            told = ", ".join(map(shown, found))
            raise UsageError(
                f"{self.op}: input {place} depends on the dimensions of the request, [{told}]; it must be fixed"
            )
        return found

    def held(self, place: int) -> Any:
        """The numbers of an input, an array; UsageError where they are not known now."""
        found = self.g.numbers(self.tensor(place))
        if found is None:
            raise self.bad(f"input {place} is not known before the data are; it must be a constant")
        return np.asarray(found)

    def floats(self, place: int) -> list[float]:
        """Numbers of an input that are known now."""
        return [float(one) for one in self.held(place).reshape(-1)]

    def settings(self, name: str, place: int) -> list[int] | None:
        """Whole numbers that older models give as an attribute and newer ones as an input."""
        if self.given(place):
            return self.whole(place)
        return list(self.attributes[name]) if name in self.attributes else None

    def axis(self, axis: int, more: int = 0) -> int:
        """An axis of the first input, counted from the front."""
        return axis_of(axis, self.type().rank + more, self.op)

    def bad(self, words: str) -> UsageError:
        """The error of a setting that has no rule."""
        return UsageError(f"{self.op}: {words}")


Rule: TypeAlias = Callable[[NodeContext], str | Sequence[str]]
