"""Rules of ATen's products: linear layers, matrix products of any rank, and einsum, each one contraction.

A linear layer and ``matmul`` are read whole. Torch takes them apart into views, copies of weights and flat products, behind
which no bias, activation or residual would be seen.
"""

from __future__ import annotations

import string
from collections import defaultdict
from collections.abc import Mapping, Sequence

from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent

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
