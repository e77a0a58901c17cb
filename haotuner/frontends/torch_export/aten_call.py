"""Context of one call of torch's core ATen operators, as its rule sees it; rules write it in ONNX's operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import sympy

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.node_context import NodeContext
from haotuner.frontends.onnx.table import RULES
from haotuner.frontends.onnx.typed_numbers import is_whole
from haotuner.graph.extents import Extent, floor_division
from haotuner.graph.types import HALVES

OPSET = 21  # of the rules that are called


@dataclass(frozen=True, slots=True)
class AtenContext:
    """One call: ``inputs`` as torch has them, tensors by their names in the builder; ``dtype``: of its (first) result.

    ``sizes``: of that result, as torch has them; whole numbers where it knows them.
    """

    g: ConstantFolding
    op: str
    inputs: Sequence[Any]
    named: Mapping[str, Any]
    dtype: str
    sizes: Sequence[Any] = ()

    def at(self, index: int, default: Any = None) -> Any:
        """A positional argument, or its default."""
        return self.inputs[index] if index < len(self.inputs) and self.inputs[index] is not None else default

    def onnx(self, op: str, *inputs: str | None, **attributes: Any) -> str:
        """The first result of an ONNX operator."""
        return self.several(op, *inputs, **attributes)[0]

    def several(self, op: str, *inputs: str | None, outputs: int = 1, **attributes: Any) -> list[str]:
        """Every result of an ONNX operator; ``outputs``: of how many something is asked where that matters to its rule."""
        result = RULES[op](NodeContext(self.g, op, inputs, attributes, OPSET, outputs))
        return [result] if isinstance(result, str) else list(result)

    def whole(self, values: Sequence[Any] | Any) -> str:
        """Whole numbers, or extents, as a tensor."""
        return self.g.of_extents(np.array(list(values) if isinstance(values, (list, tuple)) else [values], object), "int64")

    def whole_scalar(self, value: Extent) -> str:
        """One whole number, or extent."""
        return self.cast(value, "int64")

    @staticmethod
    def scaled(extent: Extent, factor: float) -> Extent:
        """A side times a factor, rounded down, as torch counts pixels."""
        return floor_division(extent * sympy.Rational(factor), 1)

    def cast(self, value: Any, dtype: str) -> str:
        """A tensor or number in an element type."""
        if not isinstance(value, str):
            if isinstance(value, (bool, int, float)):
                return self.g.constant(value, dtype)
            own = "int64" if is_whole(value) else "fp64"  # as Python's numbers are
            return self.cast(self.g.of_extents(np.array(value, object), own), dtype)
        return self.g.cast(value, dtype)

    def compared_in(self, *values: Any) -> str:
        """Element type in which torch compares: the widest float of tensors with axes, else of all; int64 without one."""
        types = [self.g.types[value] for value in values if isinstance(value, str)]
        for group in ([kind for kind in types if kind.rank], types):
            floats = {kind.dtype for kind in group}
            if floats.issuperset(HALVES):
                floats.add("fp32")
            widest = next((dtype for dtype in ("fp64", "fp32", *HALVES) if dtype in floats), "")
            if widest:
                return widest
        return "fp32" if any(isinstance(value, float) for value in values) else "int64"

    def shape(self, index: int = 0) -> tuple[Extent, ...]:
        """An argument's shape."""
        return self.g.types[self.inputs[index]].shape

    def axis(self, axis: int, index: int = 0) -> int:
        """An axis of an argument, counted from the front."""
        return axis % max(len(self.shape(index)), 1)

    def setting(self, name: str, index: int, default: Any = None) -> Any:
        """An argument that may be given by place or by name."""
        return self.at(index, self.named.get(name, default))


Rule: TypeAlias = Callable[[AtenContext], Any]
