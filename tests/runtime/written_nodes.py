"""Graphs of nodes of ONNX, written down one after the other, by the rules of importing: no file, no onnx package."""

from __future__ import annotations

from typing import Any

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.node_context import NodeContext
from haotuner.frontends.onnx.table import RULES

OPSET = 21


class Nodes:
    """``inputs``: of each its element type, then its shape. A node's inputs are tensors' names, constants, or None."""

    def __init__(self, **inputs: tuple[Any, ...]) -> None:
        self.g = ConstantFolding()
        for name, (dtype, *shape) in inputs.items():
            self.g.input(name, tuple(shape), dtype)

    def __call__(self, op: str, *inputs: Any, outputs: int = 1, **attributes: Any) -> Any:
        names = tuple(
            operand if operand is None or isinstance(operand, str) else self.g.constant(np.asarray(operand))
            for operand in inputs
        )
        values = RULES[op](NodeContext(self.g, op, names, attributes, OPSET, outputs))
        return values if isinstance(values, str) else list(values)
