"""batch_matmul of a pack under ``torch.ops.haotuner``."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.placed_product import PlacedProductOp
from haotuner.runtime.products import ProductOp

_TAGS = (torch.Tag.pt2_compliant_tag,)
_BESIDE = "Tensor? bias=None, Tensor? scale=None, Tensor? mask=None"


def define_product(library: Any, op: ProductOp | PlacedProductOp) -> None:
    """``<op>(x, w, bias=None, scale=None, mask=None)`` and ``.out(…, out=y)``, which returns nothing."""
    key, dtype = "CUDA" if isinstance(op, PlacedProductOp) else "CPU", getattr(torch, DTYPES[op.entry.output.dtype].numpy)
    name, across = op.name, {operand.name: operand.dims.index("k") == 1 for operand in op.entry.inputs}

    def into(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None, *, out: Any) -> None:
        given = [tensor for tensor in (x, w, bias, scale, mask) if tensor is not None]
        if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given):
            raise ValueError(f"{name}: an input requires grad; a pack only infers: call it under torch.inference_mode()")
        op.run(x, w, out=out, bias=bias, scale=scale, mask=mask)

    def fresh(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None) -> Any:
        out = shape(x, w)
        into(x, w, bias, scale, mask, out=out)
        return out

    def shape(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None) -> Any:
        torch._check(x.dim() >= 2 and w.dim() >= 2, lambda: f"{name}: x and w must have two axes or more")
        rows, columns = x.shape[-1 if across["x"] else -2], w.shape[-1 if across["w"] else -2]
        return x.new_empty((*torch.broadcast_shapes(x.shape[:-2], w.shape[:-2]), rows, columns), dtype=dtype)

    def nothing(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None, *, out: Any) -> None:
        return None

    library.define(f"{name}(Tensor x, Tensor w, {_BESIDE}) -> Tensor", tags=_TAGS)
    # Returns nothing: torch.compile cannot functionalize an operator that returns one of its arguments.
    library.define(f"{name}.out(Tensor x, Tensor w, {_BESIDE}, *, Tensor(a!) out) -> ()", tags=_TAGS)
    library.impl(name, fresh, key)
    library.impl(f"{name}.out", into, key)
    torch.library.register_fake(f"haotuner::{name}", shape, lib=library)
    torch.library.register_fake(f"haotuner::{name}.out", nothing, lib=library)
