"""Node context: one node of a foreign model, as the rules of its family see it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.graph.extents import Extent, shown
from haotuner.graph.types import TensorType, axis_of


@dataclass(frozen=True, slots=True)
class NodeContext:
    """``inputs``: names in the builder, None where one was left out; ``outputs``: how many are asked for."""

    g: ConstantFolding
    op: str
    inputs: tuple[str | None, ...]
    attributes: Mapping[str, Any]
    opset: int
    outputs: int

    def has_input(self, index: int) -> bool:
        """True if this input is there."""
        return index < len(self.inputs) and self.inputs[index] is not None

    def tensor(self, index: int) -> str:
        """An input that must be there."""
        result = self.inputs[index] if index < len(self.inputs) else None
        if result is None:
            raise UsageError(f"{self.op}: input {index} is missing")
        return result

    def maybe(self, index: int) -> str | None:
        """An input, or None."""
        return self.inputs[index] if index < len(self.inputs) else None

    def type(self, index: int = 0) -> TensorType:
        """An input's type."""
        return self.g.types[self.tensor(index)]

    def shape(self, index: int = 0) -> tuple[Extent, ...]:
        """An input's shape."""
        return self.type(index).shape

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, or its default."""
        return self.attributes.get(name, default)

    def required(self, name: str) -> Any:
        """An attribute that must be there."""
        if name not in self.attributes:
            raise UsageError(f"{self.op}: attribute {name} is missing")
        return self.attributes[name]

    def numbers(self, index: int) -> list[Extent]:
        """Whole numbers, or expressions of dimensions, of an input."""
        return self.g.whole_numbers(self.tensor(index), f"{self.op}: input {index}")

    def whole(self, index: int) -> list[int]:
        """Whole numbers of an input."""
        result = self.numbers(index)
        if not all(isinstance(item, int) for item in result):
            text = ", ".join(map(shown, result))
            raise UsageError(
                f"{self.op}: input {index} depends on the request, [{text}]; it must be the same for all: "
                "export the model with a constant there"
            )
        return result

    def held(self, index: int) -> Any:
        """The numbers of an input, an array; UsageError where they are not known now."""
        result = self.g.numbers(self.tensor(index))
        if result is None:
            raise self.bad(f"input {index} is not known before the data are; it must be a constant")
        return np.asarray(result)

    def floats(self, index: int) -> list[float]:
        """Numbers of an input that are known now."""
        return [float(item) for item in self.held(index).reshape(-1)]

    def settings(self, name: str, index: int) -> list[int] | None:
        """Whole numbers that older models give as an attribute and newer ones as an input."""
        if self.has_input(index):
            return self.whole(index)
        return list(self.attributes[name]) if name in self.attributes else None

    def axis(self, axis: int, more: int = 0) -> int:
        """An axis of the first input, counted from the front."""
        return axis_of(axis, self.type().rank + more, self.op)

    def bad(self, words: str) -> UsageError:
        """The error of a setting that has no rule."""
        return UsageError(f"{self.op}: {words}")


Rule: TypeAlias = Callable[[NodeContext], str | Sequence[str]]
