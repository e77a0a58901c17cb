"""batch_matmul of a pack under ``torch.ops.haotuner``."""

from __future__ import annotations

from typing import Any

import torch

from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.device_product import DeviceProductOp
from haotuner.runtime.products import ProductOp
from haotuner.torch.op_definition import define_pair, refuse_grad

_BESIDE = "Tensor? bias=None, Tensor? scale=None, Tensor? mask=None"


def define_product(library: Any, op: ProductOp | DeviceProductOp) -> None:
    """``<op>(x, w, bias=None, scale=None, mask=None)`` and ``.out(…, out=y)``, which returns nothing."""
    key, dtype = "CUDA" if isinstance(op, DeviceProductOp) else "CPU", getattr(torch, DTYPES[op.entry.output.dtype].numpy)
    name, across = op.name, {operand.name: operand.dims.index("k") == 1 for operand in op.entry.inputs}

    def into(x: Any, w: Any, bias: Any = None, scale: Any = None, mask: Any = None, *, out: Any) -> None:
        refuse_grad(name, x, w, bias, scale, mask)
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

    takes = f"Tensor x, Tensor w, {_BESIDE}"
    define_pair(library, name, takes, key, fresh=fresh, into=into, shape=shape, nothing=nothing)
