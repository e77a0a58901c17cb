"""Operators under ``torch.ops.haotuner`` on CPUs: with an epilogue, batch_matmul, and those that bind nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOperand
from haotuner.runtime.device_operator import DeviceOperator, DeviceProductOp
from haotuner.runtime.operator import Operator, ProductOp
from haotuner.torch.op_definition import define_group, define_pair, refuse_grad

_BESIDE = "Tensor? bias=None, Tensor? scale=None, Tensor? mask=None"


def define_product(library: Any, op: ProductOp | DeviceProductOp) -> None:
    """``<op>(x, w, bias=None, scale=None, mask=None)`` and ``.out(…, out=y)``, which returns nothing."""
    key, dtype = "CUDA" if isinstance(op, DeviceProductOp) else "CPU", getattr(torch, DTYPES[op.entry.output.dtype].numpy)
    name, across = op.name, {operand.name: operand.dims.index("k") == 1 for operand in op.entry.inputs}

    def into(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None, *, out: Any) -> None:
        refuse_grad(name, x, w, bias, scale, mask)
        if bias is None and scale is None and mask is None:  # names of what is not there take longer than a small product
            op.run(x, w, out=out)
        else:
            op.run(x, w, out=out, bias=bias, scale=scale, mask=mask)

    def fresh(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None) -> Any:
        if op.gives and bias is None and scale is None and mask is None and x.shape[:-2] == w.shape[:-2]:
            refuse_grad(name, x, w)
            return op.run(x, w)
        out = shape(x, w)
        into(x, w, bias, scale, mask, out=out)
        return out

    def shape(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None) -> Any:
        torch._check(x.dim() >= 2 and w.dim() >= 2, lambda: f"{name}: x and w must have two axes or more")
        rows, columns = x.shape[-1 if across["x"] else -2], w.shape[-1 if across["w"] else -2]
        return x.new_empty((*torch.broadcast_shapes(x.shape[:-2], w.shape[:-2]), rows, columns), dtype=dtype)

    def nothing(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None, *, out: Any) -> None:
        return None

    takes = f"Tensor x, Tensor w, {_BESIDE}"
    define_pair(library, name, takes, key, fresh=fresh, into=into, shape=shape, nothing=nothing)


def define_operator(library: Any, op: Operator) -> None:
    """``<op>(x, …)`` with the operands in the op's order, and ``.out(…, out=y)``, which returns nothing.

    Of a group whose outputs one program writes ``(a, b) = <op>(x, …)`` in the file's order, and ``.out(…, out0=a, out1=b)``.
    """
    name, entry, key = op.name, op.entry, "CUDA" if isinstance(op, DeviceOperator) else "CPU"
    operands = ", ".join(f"Tensor {operand.name}" for operand in entry.inputs)
    outputs = op.outputs

    def into(*inputs: Any, out: Any) -> None:
        refuse_grad(name, *inputs)
        try:
            op.run(*inputs, out=out)
        except ValueError:
            rows = [tensor if tensor.dim() == 0 or tensor.stride(-1) == 1 else tensor.contiguous() for tensor in inputs]
            if all(row is tensor for row, tensor in zip(rows, inputs, strict=True)):
                raise
            op.run(*rows, out=out)  # torch's own ops take any strides

    def shapes(*inputs: Any) -> tuple[Any, ...]:
        return tuple(_empty(op, output, inputs) for output in outputs)

    def every(*inputs: Any) -> tuple[Any, ...]:
        outs = shapes(*inputs)
        into(*inputs, out=outs if len(outs) > 1 else outs[0])
        return outs

    def fresh(*inputs: Any) -> Any:
        if key == "CPU":
            refuse_grad(name, *inputs)
            try:
                return op.run(*inputs)
            except ValueError:  # strides, or what is said below
                pass
        return every(*inputs)[0]

    if len(outputs) > 1:
        define_group(
            library, name, operands, key, len(outputs), fresh=every, shape=shapes,
            into=lambda *inputs, **outs: into(*inputs, out=tuple(outs[f"out{index}"] for index in range(len(outputs)))),
        )  # fmt: skip
        return
    define_pair(
        library, name, operands, key, fresh=fresh, shape=lambda *inputs: shapes(*inputs)[0], into=into,
        nothing=lambda *inputs, out: None,
    )  # fmt: skip


def _empty(op: Operator, output: PackOperand, inputs: Sequence[Any]) -> Any:
    """Memory of an output's extents, from the operands' axes; what follows from others is worked out in whole numbers."""
    entry, dtype = op.entry, getattr(torch, DTYPES[output.dtype].numpy)
    if any(axis.derived for axis in entry.axes):
        named = {operand.name: tensor for operand, tensor in zip(entry.inputs, inputs, strict=True)}
        return inputs[0].new_empty(op.output_shape(named, output), dtype=dtype)
    extents: dict[str, Any] = {axis.name: axis.extent for axis in entry.axes if axis.extent is not None}
    leading: dict[str, tuple[Any, ...]] = {}
    for operand, tensor in zip(entry.inputs, inputs, strict=True):
        split = tensor.dim() - len(operand.dims) + 1
        torch._check(split >= 0, lambda: f"{op.name}: an operand has too few axes")
        leading.setdefault(operand.dims[0], tuple(tensor.shape[:split]))
        extents |= dict(zip(operand.dims[1:], tensor.shape[split:], strict=True))
    first, *others = output.dims
    before = leading.get(first) or (extents[first],)
    return inputs[0].new_empty((*before, *(leading.get(axis, (extents.get(axis),))[-1] for axis in others)), dtype=dtype)
