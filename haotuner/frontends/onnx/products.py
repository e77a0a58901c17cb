"""Rules of products: MatMul of any rank, Gemm, Einsum; each is a contraction with a letter for every axis."""

from __future__ import annotations

import string
from collections.abc import Mapping, Sequence

from haotuner.frontends.onnx.layout import reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import same


def matmul(c: NodeContext, a: str, b: str) -> str:
    """Numpy's matmul: axes before the last two go together as element-wise ones do."""
    a, b = c.g.with_single_axes((a, b), last=2)
    first, second = c.g.types[a].shape, c.g.types[b].shape
    letters = string.ascii_lowercase[: max(len(first), len(second), 2) - 2]
    tails = ("k" if len(first) == 1 else "mk").upper(), ("k" if len(second) == 1 else "kn").upper()
    own = [letters[len(letters) - max(len(shape) - 2, 0) :] for shape in (first, second)]
    names, tensors = [], []
    for tensor, labels, other, tail in ((a, own[0], (b, own[1]), tails[0]), (b, own[1], (a, own[0]), tails[1])):
        shape, theirs = c.g.types[tensor].shape, dict(zip(other[1], c.g.types[other[0]].shape, strict=False))
        single = [
            index for index, label in enumerate(labels) if shape[index] == 1 and label in theirs and theirs[label] != 1
        ]
        selected = [extent for index, extent in enumerate(shape) if index not in single]
        tensors.append(reshaped(c, tensor, selected))
        names.append("".join(label for index, label in enumerate(labels) if index not in single) + tail)
    result = letters + tails[0].replace("K", "") + tails[1].replace("K", "")
    return c.g.add("contract", *tensors, labels=f"{names[0]},{names[1]}->{result}")


def _gemm(c: NodeContext) -> str:
    left, right = "km" if c.attribute("transA", 0) else "mk", "nk" if c.attribute("transB", 0) else "kn"
    result = c.g.add("contract", c.tensor(0), c.tensor(1), labels=f"{left},{right}->mn")
    alpha, beta = c.attribute("alpha", 1.0), c.attribute("beta", 1.0)
    result = result if alpha == 1 else c.g.map("mul", result, alpha)
    if not c.has_input(2) or beta == 0:  # nothing is read of C then, as in BLAS
        return result
    bias = c.tensor(2) if beta == 1 else c.g.map("mul", c.tensor(2), beta)
    return c.g.map("add", result, bias)


def _einsum(c: NodeContext) -> str:
    equation = str(c.required("equation")).replace(" ", "")
    inputs, arrow, output = equation.partition("->")
    operands = inputs.split(",")
    free = [letter for letter in string.ascii_letters if letter not in equation]
    tensors, names, dots = [], [], ""
    ranks = [c.type(index).rank - len(own.replace("...", "")) for index, own in enumerate(operands)]
    wide = "".join(free[: max(ranks)]) if "..." in equation else ""
    for index, own in enumerate(operands):
        dots = wide[len(wide) - ranks[index] :] if ranks[index] else ""
        names.append(own.replace("...", dots))
        diagonal, names[-1] = _diagonals(c, c.tensor(index), names[-1])
        tensors.append(diagonal)
    if not arrow:
        single = sorted(letter for letter in set("".join(operands)) - {"."} if "".join(operands).count(letter) == 1)
        output = ("..." if wide else "") + "".join(single)
    for index, (tensor, own) in enumerate(zip(tensors, names, strict=True)):
        tensors[index], names[index] = _without_single(c, tensor, own, tensors, names)
    return c.g.add("contract", *tensors, labels=f"{','.join(names)}->{output.replace('...', wide)}")


def _without_single(c: NodeContext, x: str, labels: str, tensors: Sequence[str], names: Sequence[str]) -> tuple[str, str]:
    """An operand without the axes of one element that another operand has more of: it is the same for each of these."""
    wide = {
        letter
        for tensor, own in zip(tensors, names, strict=True)
        for letter, extent in zip(own, c.g.types[tensor].shape, strict=True)
        if not same(extent, 1)
    }
    shape = c.g.types[x].shape
    rest = [index for index, letter in enumerate(labels) if not (same(shape[index], 1) and letter in wide)]
    if len(rest) == len(labels):
        return x, labels
    return reshaped(c, x, [shape[index] for index in rest]), "".join(labels[index] for index in rest)


def _diagonals(c: NodeContext, x: str, labels: str) -> tuple[str, str]:
    """An operand and its letters, each once: one that stands there twice means the elements where both are equal."""
    for letter in dict.fromkeys(labels):
        while labels.count(letter) > 1:
            first = labels.index(letter)
            second = labels.index(letter, first + 1)
            shape = c.g.types[x].shape
            rest = [index for index in range(len(labels)) if index not in (first, second)]
            n = shape[first]
            flat = reshaped(c, c.g.add("transpose", x, order=(*rest, first, second)), [*(shape[p] for p in rest), n * n])
            step = c.g.map("mul", c.g.add("iota", extent=n, dtype="int64"), c.g.of_extents([n + 1], "int64"))
            x = c.g.add("gather", flat, step, axis=len(rest))
            labels = "".join(labels[position] for position in rest) + letter
    return x, labels


def _matmul_integer(c: NodeContext) -> str:
    wide = []
    for index in (0, 1):
        item = c.g.add("cast", c.tensor(index), dtype="int32")
        if c.has_input(index + 2):
            zero = c.g.add("cast", c.tensor(index + 2), dtype="int32")
            if index == 0 and c.type(2).rank == 1 and c.shape(2)[0] != 1:
                zero = reshaped(c, zero, (*c.shape(2), 1))
            item = c.g.map("sub", item, zero)
        wide.append(item)
    return matmul(c, *wide)


PRODUCTS: Mapping[str, Rule] = {
    "MatMul": lambda c: matmul(c, c.tensor(0), c.tensor(1)),
    "Gemm": _gemm,
    "Einsum": _einsum,
    "MatMulInteger": _matmul_integer,
}
