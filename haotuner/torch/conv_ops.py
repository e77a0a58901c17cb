"""Convolutions of a pack under ``torch.ops.haotuner``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from haotuner.ops.convolution import windows
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.convolution import AFTER, ConvOp
from haotuner.runtime.pack import Pack
from haotuner.torch.op_definition import define_pair, refuse_grad


def define(library: torch.library.Library, pack: Pack, op: ConvOp, folded: Mapping[int, Any]) -> None:
    """``torch.ops.haotuner.<op>(x, packed, bias=None)`` and ``.out(…, out=y)``, which returns nothing.

    An op with an epilogue takes what that reads in the place of the bias: values of a feature ``(f,)`` in float32, in the
    order of its steps, then tensors like the result. One whose sums are integers takes no bias beside.
    ``folded``: layers with a norm folded into them, by the address of their packed weight. A call of a compiled model folds
    anew where the norm has other numbers.
    """
    call, setting = pack.entry(op.entry)
    name, extra, size = op.name, op.entry.extra, result_size(op.entry)
    kind = getattr(torch, DTYPES[op.entry.output.dtype].numpy)
    beside = any(operand.optional for operand in op.entry.operands)
    words = "".join(f", Tensor {operand.name}" for operand in extra) or (", Tensor? bias=None" if beside else "")

    def into(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor | None, out: torch.Tensor) -> None:
        there = [item for item in inputs if item is not None]
        refuse_grad(name, x, *there)
        layer = folded.get(packed.data_ptr()) if folded else None
        if layer is not None:
            layer.refresh()
            packed, there = layer.packed, [layer.row, *there[1:]]
        image, *more = (_inner(item) for item in (x, *there))
        call(setting, image, packed, *(more if extra else ()), out, *(() if extra else more))

    def fresh(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor | None) -> torch.Tensor:
        out = shape(x, packed)
        into(x, packed, *inputs, out=out)
        return out

    def shape(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor | None) -> torch.Tensor:
        return x.new_empty(size(x), dtype=kind)

    def nothing(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor | None, out: torch.Tensor) -> None:
        size(x)

    takes = f"Tensor x, Tensor packed{words}"
    define_pair(library, name, takes, "CPU", fresh=fresh, into=into, shape=shape, nothing=nothing)


def _inner(tensor: torch.Tensor) -> torch.Tensor:
    """Contiguous in its last axis: torch's own ops take any strides."""
    plain = tensor.dim() == 0 or tensor.stride(-1) == 1 or tensor.shape[-1] == 1
    return tensor if plain else tensor.contiguous()


def result_size(entry: PackOp) -> Callable[[torch.Tensor], list[int]]:
    """Function that says the extents of an op's output for an image; RuntimeError where the window does not fit into it."""
    name, meaning, dims = entry.name, entry.op, entry.operands[0].dims
    sides = windows(meaning.kind, dict(meaning.static), meaning.all_options())

    def size(x: torch.Tensor) -> list[int]:
        required = (
            f"{name}: x must be ({', '.join(dims)}), with {meaning['c']} channels and an image that the window fits into"
        )
        batch = list(x.shape[: x.dim() - len(dims) + 1])  # an image without a batch is one
        torch._check(len(dims) - 1 <= x.dim() <= len(dims), lambda: required)
        extents = dict(zip(dims[1:], x.shape[len(batch) :], strict=True))
        torch._check(extents["c"] == meaning["c"], lambda: required)
        result = {after: sides[of].out(extents[of]) for of, after in AFTER if of in sides}
        for extent in result.values():
            torch._check(extent >= 1, lambda: required)
        known = {"f": meaning["f"], **result}
        return [*batch, *(known[axis] for axis in entry.output.dims[1:])]

    return size
