"""Layers of a pack on the CPU under ``torch.ops.haotuner``: dense and convolutions, from the table of their operands."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from haotuner.ops.convolution import windows
from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.call import REFUSED, NativeCall
from haotuner.runtime.convolution import AFTER
from haotuner.runtime.pack import Pack
from haotuner.torch.op_definition import define_pair, refuse_grad


def define_layer(library: torch.library.Library, pack: Pack, entry: PackOp, folded: Mapping[int, Any]) -> None:
    """``torch.ops.haotuner.<op>(x, packed, bias=None)`` and ``.out(…, out=y)``, which returns nothing.

    An op with an epilogue takes what that reads in the place of the bias: one value a channel in float32, in the order of
    its steps, then tensors like the result. A convolution whose sums are integers takes no bias.
    ``folded``: convolutions with a norm folded into them, by the address of their packed weight. A call of a compiled model
    folds anew where the norm has other numbers.
    """
    native = NativeCall.of(entry, *pack.entry(entry))
    call, tail, name, is_dense = native.call, native.tail, entry.name, entry.kind == "dense"
    setting = tail[0] if is_dense else None
    reads_before_out = native.first > 2  # what an epilogue reads, in the library's call; else it follows the output
    gives = getattr(torch, DTYPES[entry.output.dtype].numpy)
    size, checked_size = sizes_of(entry)
    reads_more = bool(entry.extra) or not is_dense
    folds = None if is_dense else folded

    # The usual call comes first and says nothing twice: each name and each Python frame is a twentieth of the call.
    def into(x: torch.Tensor, packed: torch.Tensor, first: Any = None, *others: Any, out: torch.Tensor) -> None:
        if x.requires_grad or reads_more or (first is not None and first.requires_grad):
            refuse_grad(name, x, first, *others)
        if folds and (layer := folds.get(packed.data_ptr())) is not None:
            layer.refresh()
            packed, first = layer.packed, layer.row
        try:
            if is_dense and not others:  # as below: unpacking a tuple costs a call 3 %
                call(x, packed, out, setting) if first is None else call(x, packed, out, setting, first)
            elif first is None:
                call(x, packed, out)
            elif reads_before_out:
                call(x, packed, first, *others, out, *tail)
            else:
                call(x, packed, out, *tail, first, *others)
        except ValueError:
            inputs = [tensor for tensor in (first, *others) if tensor is not None]
            if all(tensor.is_contiguous() for tensor in (x, *(inputs if reads_more else ()))):
                raise
            if reads_more:  # torch's own ops take any strides; a bias alone is contiguous
                inputs = [tensor.contiguous() for tensor in inputs]
            into(x.contiguous(), packed, *inputs, out=out)

    def fresh(x: torch.Tensor, packed: torch.Tensor, first: Any = None, *others: Any) -> torch.Tensor:
        if is_dense:
            if x.requires_grad or (first is not None and (first.requires_grad or reads_more and torch.is_grad_enabled())):
                refuse_grad(name, x, first, *others)
            try:  # the library asks torch for the output
                if others:
                    return call(x, packed, None, setting, first, *others)
                return call(x, packed, None, setting) if first is None else call(x, packed, None, setting, first)
            except REFUSED:  # or torch has no exchange table, and the output comes from here
                if x.dim() == 0:
                    raise
        out = x.new_empty(size(x), dtype=gives)
        into(x, packed, first, *others, out=out)
        return out

    def shape(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor | None) -> torch.Tensor:
        return x.new_empty(checked_size(x), dtype=gives)

    def nothing(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor | None, out: torch.Tensor) -> None:
        checked_size(x)

    has_bias = is_dense or any(operand.optional for operand in entry.operands)
    reads = "".join(f", Tensor {operand.name}" for operand in entry.extra) or ", Tensor? bias=None" * has_bias
    define_pair(
        library, name, f"Tensor x, Tensor packed{reads}", "CPU", fresh=fresh, into=into, shape=shape, nothing=nothing
    )


def sizes_of(entry: PackOp) -> tuple[Callable[[torch.Tensor], list[int]], Callable[[torch.Tensor], list[int]]]:
    """Functions of x that give the output's extents; RuntimeError of the second one where x is of another shape."""
    if entry.kind != "dense":
        return (of_image := image_size(entry)), of_image
    name, n, k = entry.name, entry.n, entry.k

    def size(x: torch.Tensor) -> list[int]:
        return [*x.shape[:-1], n]

    def checked(x: torch.Tensor) -> list[int]:
        torch._check(x.dim() >= 1 and x.shape[-1] == k, lambda: f"{name}: x must be (..., {k})")
        return size(x)

    return size, checked


def image_size(entry: PackOp) -> Callable[[torch.Tensor], list[int]]:
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
