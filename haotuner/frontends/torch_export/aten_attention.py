"""Torch's attention: a rule of the whole operator, and one of its kernels taken apart where a file names that instead."""

from __future__ import annotations

from collections.abc import Mapping
from math import sqrt
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import floor_division

KEPT = ("scaled_dot_product_attention.default",)  # not taken apart before its rule sees it

ORDERS = ((0, 1, 2, 3), (0, 2, 1, 3))  # of batch, heads, tokens, channels; each is its own inverse


def attention_taken_apart(torch: Any) -> dict[Any, Any]:
    """The entry of torch's table of decompositions, less its fault.

    A module that calls ``view`` on a result was traced with one that lies as the queries do. Torch's own definition has it
    by tokens first, whatever the queries are, and such a ``view`` is refused.
    """
    whole = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    own = torch._decomp.decomposition_table[whole]

    def attention(query: Any, *others: Any, **named: Any) -> tuple[Any, Any]:
        result, weights = own(query, *others, **named)
        like = torch.empty_like(query)
        for order in ORDERS:
            if like.permute(order).is_contiguous():
                return result.permute(order).contiguous().permute(order), weights
        return result, weights

    return {whole: attention}


def _attention(a: AtenContext) -> str:
    """softmax(q k^T * scale + mask) v of (..., tokens, depth), in fp32 for halves, as torch computes it.

    A query that may see no key gives 0. Queries and keys each have the root of the scale, as in torch's own definition.
    """
    if a.setting("dropout_p", 4, 0.0):
        raise UsageError(f"{a.op}: dropout_p is {a.setting('dropout_p', 4)}; export the model for inference (model.eval())")
    g, wide = a.g, "fp64" if a.dtype == "fp64" else "fp32"
    q, k, v = (a.cast(a.at(index), wide) for index in range(3))
    if a.setting("enable_gqa", 7, False):
        k, v = (_repeated(a, item, g.types[q].shape[-3]) for item in (k, v))
    scale = a.setting("scale", 6)
    order = [*range(g.types[k].rank)]
    order[-2:] = order[-1], order[-2]
    k = a.onnx("Transpose", k, perm=order)
    depth = g.types[q].shape[-1]
    if scale is None and not isinstance(depth, int):
        q = g.map("mul", q, g.map("rsqrt", a.cast(depth, wide)))
    else:
        root = depth**-0.25 if scale is None else sqrt(abs(scale))
        q, k = g.map("mul", q, -root if scale is not None and scale < 0 else root), g.map("mul", k, root)
    scores = a.onnx("MatMul", q, k)
    mask = a.setting("attn_mask", 3)
    if a.setting("is_causal", 5, False):
        queries, keys = g.types[scores].shape[-2:]
        rows = a.onnx("Unsqueeze", g.add("iota", extent=queries, dtype="int64"), a.whole(1))
        mask = g.map("less_equal", g.add("iota", extent=keys, dtype="int64"), rows)
    if mask is None:
        return a.cast(a.onnx("MatMul", a.onnx("Softmax", scores, axis=-1), v), a.dtype)
    if g.types[mask].dtype == "bool":
        mask = g.map("select", mask, a.cast(0.0, wide), a.cast(float("-inf"), wide))
    scores = g.map("add", scores, a.cast(mask, wide))
    most = g.add("reduce", scores, how="max", axes=(g.types[scores].rank - 1,), keepdims=True)
    weights = g.map("select", g.map("equal", most, float("-inf")), 0.0, a.onnx("Softmax", scores, axis=-1))
    return a.cast(a.onnx("MatMul", weights, v), a.dtype)


def _repeated(a: AtenContext, x: str, heads: Any) -> str:
    """Keys or values of fewer heads, each as often as queries have heads of it."""
    *outer, own, tokens, depth = a.g.types[x].shape
    if own == heads:
        return x
    each = floor_division(heads, own)
    apart = a.g.add("reshape", x, shape=(*outer, own, 1, tokens, depth))
    wide = a.g.add("broadcast", apart, shape=(*outer, own, each, tokens, depth))
    return a.g.add("reshape", wide, shape=(*outer, heads, tokens, depth))


ATTENTION: Mapping[str, Rule] = {"scaled_dot_product_attention.default": _attention}
