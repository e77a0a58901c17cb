"""``torch.ops.haotuner.<op>`` of an op with an epilogue."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.ops.dtypes import DTYPES
from haotuner.pack.op import PackOp
from haotuner.runtime.call_errors import REFUSED
from haotuner.runtime.pack import Pack
from haotuner.torch.op_definition import define_pair, refuse_grad


def define_fused(library: Any, pack: Pack, entry: PackOp) -> None:
    """``<op>(x, packed, what its epilogue reads…)`` and ``.out(…, out=y)`` in a ``torch.library.Library``."""
    call, setting = pack.entry(entry)
    name, n, k = entry.name, entry.n, entry.k
    kind: torch.dtype = getattr(torch, DTYPES[entry.output.dtype].numpy)
    extra = "".join(f", Tensor {operand.name}" for operand in entry.extra)

    def into(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor, out: torch.Tensor) -> None:
        refuse_grad(name, x, *inputs)
        try:
            call(x, packed, out, setting, *inputs)
        except ValueError:
            whole = (x, *inputs)
            if all(item.is_contiguous() for item in whole):
                raise
            x, *given_too = (item.contiguous() for item in whole)  # torch's own ops take any strides
            call(x, packed, out, setting, *given_too)

    def fresh(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        if not torch.is_grad_enabled():
            try:
                result: torch.Tensor = call(x, packed, None, setting, *inputs)
                return result
            except REFUSED:  # or torch has no exchange table, and the output comes from here
                if x.dim() == 0:
                    raise
        out = x.new_empty((*x.shape[:-1], n), dtype=kind)
        into(x, packed, *inputs, out=out)
        return out

    def check(x: torch.Tensor) -> None:
        torch._check(x.dim() >= 1 and x.shape[-1] == k, lambda: f"{name}: x must be (..., {k})")

    def shape(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        check(x)
        return x.new_empty((*x.shape[:-1], n), dtype=kind)

    def nothing(x: torch.Tensor, packed: torch.Tensor, *inputs: torch.Tensor, out: torch.Tensor) -> None:
        check(x)

    takes = f"Tensor x, Tensor packed{extra}"
    define_pair(library, name, takes, "CPU", fresh=fresh, into=into, shape=shape, nothing=nothing)
