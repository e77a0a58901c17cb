"""Operators that take all their operands at every call, under ``torch.ops.haotuner``, where the pack computes."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.operator import Operator
from haotuner.runtime.placed_operator import PlacedOperator
from haotuner.torch.defining import define_pair, refuse_grad


def define_operator(library: Any, op: Operator) -> None:
    """``<op>(x, …)`` with the operands in the op's order, and ``.out(…, out=y)``, which returns nothing."""
    name, entry, key = op.name, op.entry, "CUDA" if isinstance(op, PlacedOperator) else "CPU"
    dtype = getattr(torch, DTYPES[entry.output.dtype].numpy)
    operands = ", ".join(f"Tensor {operand.name}" for operand in entry.inputs)

    def into(*given: Any, out: Any) -> None:
        refuse_grad(name, *given)
        rows = [tensor if tensor.dim() == 0 or tensor.stride(-1) == 1 else tensor.contiguous() for tensor in given]
        op.run(*rows, out=out)

    def fresh(*given: Any) -> Any:
        out = shape(*given)
        into(*given, out=out)
        return out

    def shape(*given: Any) -> Any:
        """The output's extents from the operands' axes; those that follow from others are worked out in whole numbers."""
        if any(axis.derived for axis in entry.axes):
            named = {operand.name: tensor for operand, tensor in zip(entry.inputs, given, strict=True)}
            return given[0].new_empty(op.output_shape(named), dtype=dtype)
        extents: dict[str, Any] = {axis.name: axis.extent for axis in entry.axes if axis.extent is not None}
        leading: dict[str, tuple[Any, ...]] = {}
        for operand, tensor in zip(entry.inputs, given, strict=True):
            split = tensor.dim() - len(operand.dims) + 1
            torch._check(split >= 0, lambda: f"{name}: an operand has too few axes")
            leading.setdefault(operand.dims[0], tuple(tensor.shape[:split]))
            extents |= dict(zip(operand.dims[1:], tensor.shape[split:], strict=True))
        first, *others = entry.output.dims
        before = leading.get(first) or (extents[first],)
        return given[0].new_empty((*before, *(leading.get(axis, (extents.get(axis),))[-1] for axis in others)),
                                  dtype=dtype)  # fmt: skip

    def nothing(*given: Any, out: Any) -> None:
        return None

    define_pair(library, name, operands, key, fresh=fresh, into=into, shape=shape, nothing=nothing)
