"""Rules of ATen's products: linear layers, matrix products, einsum, and attention.

A linear layer and ``matmul`` are read whole. Torch takes them apart into views, copies of weights and flat products, behind
which no bias, activation or residual would be seen.

Torch's attention: a rule of the whole operator, and one of its kernels taken apart where a file names that instead.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from haotuner.errors import UsageError
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent, floor_division

KEPT = ("linear.default", "matmul.default", "einsum.default")  # not taken apart before these rules see them


def _product(a: AtenContext) -> str:
    return a.onnx("MatMul", a.at(0), a.at(1))


def _linear(a: AtenContext) -> str:
    """(..., k) times the transpose of (n, k) or of (k,), and a bias."""
    x, w = a.at(0), a.at(1)
    lead = string.ascii_lowercase[: len(a.shape()) - 1]
    features = "N" if len(a.shape(1)) == 2 else ""
    result = a.g.add("contract", x, w, labels=f"{lead}K,{features}K->{lead}{features}")
    return result if a.at(2) is None else a.g.map("add", result, a.at(2))


def _added_product(a: AtenContext) -> str:
    result, more = a.onnx("MatMul", a.at(1), a.at(2)), a.at(0)
    result = result if a.named.get("alpha", 1) == 1 else a.g.map("mul", result, a.named["alpha"])
    if a.named.get("beta", 1) == 0:
        return result
    return a.g.map("add", result, more if a.named.get("beta", 1) == 1 else a.g.map("mul", more, a.named["beta"]))


def _added_products(a: AtenContext) -> str:
    """addbmm: the products of all matrices together."""
    x, item, other = a.at(0), a.at(1), a.at(2)
    total = a.onnx("ReduceSum", a.onnx("MatMul", item, other), a.whole(0), keepdims=0)
    beta, alpha = a.named.get("beta", 1), a.named.get("alpha", 1)
    total = total if alpha == 1 else a.g.map("mul", total, alpha)
    return a.g.map("add", total, x if beta == 1 else a.g.map("mul", x, beta)) if beta else total


def _einsum(a: AtenContext) -> str:
    """Operands two at a time, from the left, as torch joins them."""
    operands = list(a.at(1))
    labels, output = _spelled(str(a.at(0)).replace(" ", ""), [a.g.types[operand].rank for operand in operands])
    operands, labels = _without_ones(a, operands, labels)
    first, own = operands[0], labels[0]
    if len(operands) == 1:
        return a.onnx("Einsum", first, equation=f"{own}->{output}")
    for index in range(1, len(operands)):
        later = {*output, *"".join(labels[index + 1 :])}
        joined = [label for label in dict.fromkeys(own + labels[index]) if label in later]
        result = output if index == len(operands) - 1 else "".join(joined)
        first, own = a.onnx("Einsum", first, operands[index], equation=f"{own},{labels[index]}->{result}"), result
    return first


def _spelled(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Letters of each operand and of the result, those included that an ellipsis or a missing result stands for."""
    inputs, arrow, output = equation.partition("->")
    labels = inputs.split(",")
    wide = [rank - len(own.replace("...", "")) if "..." in own else 0 for own, rank in zip(labels, ranks, strict=True)]
    free = "".join(label for label in string.ascii_letters if label not in equation)[: max(wide)]
    if not arrow:
        every = "".join(labels).replace("...", "")
        output = "..." + "".join(sorted(item for item in set(every) if every.count(item) == 1))
    spelled = [own.replace("...", free[len(free) - count :]) for own, count in zip(labels, wide, strict=True)]
    return spelled, output.replace("...", free)


def _without_ones(a: AtenContext, operands: Sequence[str], labels: Sequence[str]) -> tuple[list[str], list[str]]:
    """The operands without axes of one element that meet a longer one: torch repeats them."""
    sizes: dict[str, set[Extent]] = defaultdict(set)
    for tensor, own in zip(operands, labels, strict=True):
        for label, extent in zip(own, a.g.types[tensor].shape, strict=True):
            sizes[label].add(extent)
    result: list[tuple[str, str]] = []
    for tensor, own in zip(operands, labels, strict=True):
        shape = a.g.types[tensor].shape
        selected = [index for index, label in enumerate(own) if shape[index] != 1 or sizes[label] == {1}]
        if len(selected) < len(own):
            tensor = a.g.add("reshape", tensor, shape=tuple(shape[position] for position in selected))
        result.append((tensor, "".join(own[position] for position in selected)))
    return [item for item, _ in result], [own for _, own in result]


PRODUCTS: Mapping[str, Rule] = {
    "linear.default": _linear,
    **{f"{name}.default": _product for name in ("matmul", "mm", "bmm")},
    **{f"{name}.default": _added_product for name in ("addmm", "baddbmm")},
    "addbmm.default": _added_products,
    "einsum.default": _einsum,
}


KEPT_ATTENTION = ("scaled_dot_product_attention.default",)  # not taken apart before its rule sees it

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
