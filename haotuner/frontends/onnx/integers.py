"""Products of bytes as sums of whole numbers, and lookup tables of 256 entries.

Products of bytes: sums of whole numbers, which have kernels of their own, and what they stand for.

``sum (x - a) (w - b) = sum x (w - b) - a sum (w - b)``: the weight's zero point goes while the file is read, that of x into
a number for each feature. Real numbers that DequantizeLinear made of bytes are multiplied as these bytes, too.

Lookup tables of 256 entries: what a model computes of one byte, element by element, and rounds to a byte again.

A gelu that a quantizer wrote is four operators with six roundings between; each element is still a function of one byte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding, Stored, number_of
from haotuner.frontends.onnx.convolutions import CONVOLUTIONS, Windows, biased, convolved, windows_of
from haotuner.frontends.onnx.layout import padded, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.products import PRODUCTS, matmul
from haotuner.graph.extents import same
from haotuner.graph.graph import Node
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.types import numpy_dtype

BYTES = ("uint8", "int8")


@dataclass(frozen=True, slots=True)
class Weight:
    """``near + rest``: numbers that int8 has, and what lies beyond them as one number for each feature; None: nothing does.

    ``moved``: the same numbers, together.
    """

    moved: Any
    near: Any
    rest: Any

    @property
    def transposed(self) -> Weight:
        """Of a matrix, with its axes the other way round."""
        return Weight(self.moved.T, self.near.T, self.rest)


def weight_of(c: NodeContext, w: str, zero: str | None, axis: int, groups: int = 1) -> Weight | None:
    """A known weight less its zero point, of one number or of one for each feature, which ``axis`` counts; else None.

    None of a convolution in several groups, too, where something lies beyond int8.
    """
    stored, less = c.g.numbers(w), np.zeros((), np.int32) if zero is None else c.g.numbers(zero)
    if stored is None or less is None or c.g.types[w].dtype not in BYTES:
        return None
    if less.size != 1 and (less.ndim != 1 or less.size != stored.shape[axis]):
        return None
    shape = [-1 if index == axis else 1 for index in range(stored.ndim)]
    less = np.broadcast_to(less.reshape(-1), stored.shape[axis]).astype(np.int32).reshape(shape)
    moved = stored.astype(np.int32) - less
    if moved.min(initial=0) >= -128 and moved.max(initial=0) <= 127:
        return Weight(moved, moved, None)
    if groups > 1:
        return None
    middle = 128 if stored.dtype == np.uint8 else 0
    return Weight(moved, stored.astype(np.int32) - middle, (middle - less).reshape(-1))


def sums(
    c: NodeContext, x: str, zero: str | None, weight: Weight, axis: int, behind: int, multiplied: Callable[[str, str], str]
) -> str:
    """Products of bytes x, whose zero point is one number, with a weight: int32.

    ``axis``: of the weight's features; ``behind``: axes of the result behind that of the features.
    """
    g, wide = c.g, _wide(c, x)
    others = tuple(index for index in range(weight.near.ndim) if index != axis)
    ends = (-1, *[1] * behind)
    result = multiplied(wide, g.constant(weight.near.astype(np.int32)))
    if weight.rest is not None:  # beyond int8: so many times the sum of x
        shape = [1 if index == axis else extent for index, extent in enumerate(weight.near.shape)]
        ones = multiplied(wide, g.constant(np.ones(shape, np.int32)))
        result = g.map("add", result, g.map("mul", ones, g.constant(weight.rest.reshape(ends).astype(np.int32))))
    if zero is None or is_zero(c, zero):
        return result
    totals = g.constant(weight.moved.sum(axis=others).reshape(ends).astype(np.int32))
    less = g.map("mul", _wide(c, reshaped(c, zero, ())), totals)
    known = g.known(less)
    return g.map("sub", result, less) if known is None else g.map("add", result, g.constant(-known))


def _wide(c: NodeContext, x: str) -> str:
    """In 32 bits."""
    return c.g.add("cast", x, dtype="int32")


def is_zero(c: NodeContext, zero: str) -> bool:
    """True if a zero point is known to be 0 everywhere."""
    known = c.g.numbers(zero)
    return known is not None and not known.any()


def single(c: NodeContext, item: str | None) -> bool:
    """True if a scale or a zero point is one number, or is left out."""
    return item is None or all(same(extent, 1) for extent in c.g.types[item].shape)


def image_sums(c: NodeContext, x: str, zero: str | None, weight: Weight, w: Windows, groups: int) -> str:
    """A convolution of bytes; pads are what the zero point stands for."""
    if zero is not None and not is_zero(c, zero):
        x, w = _surrounded(c, x, zero, w), replace(w, before=(0,) * len(w.sizes), after=(0,) * len(w.sizes))
    return sums(c, x, zero, weight, 0, len(w.sizes), lambda item, other: convolved(c, item, other, w, groups))


def _surrounded(c: NodeContext, x: str, zero: str, w: Windows) -> str:
    """An image with its zero point as pads."""
    g, ends, known = c.g, ((0, 0, *w.before), (0, 0, *w.after)), c.g.numbers(zero)
    if known is not None:
        return padded(c, x, *ends, "constant", float(known.reshape(())))
    item = _wide(c, reshaped(c, zero, ()))
    moved = padded(c, g.map("sub", _wide(c, x), item), *ends, "constant", 0.0)
    return g.add("cast", g.map("add", moved, item), dtype=g.types[x].dtype)


def matrix_sums(c: NodeContext, x: str, zero: str | None, weight: Weight) -> str:
    """(…, k) bytes times a weight (k, n)."""
    return sums(c, x, zero, weight, 1, 0, lambda item, other: matmul(c, item, other))


def _both(c: NodeContext, x: str, w: str, axis: int, groups: int = 1) -> tuple[Stored, Stored, Weight] | None:
    """Origins of two real operands, and the weight; ``axis``: of its features. None where no kernel of bytes fits."""
    left, right = c.g.stored.get(x), c.g.stored.get(w)
    if left is None or right is None or c.g.types[left.bytes].dtype not in BYTES or c.g.known(left.bytes) is not None:
        return None
    of_one = single(c, right.scale) and single(c, right.zero)
    if not (single(c, left.scale) and single(c, left.zero)) or not (of_one or right.axis == axis):
        return None
    if not c.g.types[left.scale].dtype == c.g.types[right.scale].dtype == "fp32":
        return None
    weight = weight_of(c, right.bytes, right.zero, axis, groups)
    return None if weight is None else (left, right, weight)


def _real(c: NodeContext, text: str, left: Stored, right: Stored, behind: int) -> str:
    """Sums times both scales; ``behind``: axes behind that of the features."""
    factor, g = right.scale, c.g
    count = g.types[factor].shape
    factor = reshaped(c, factor, () if single(c, factor) else (*count, *[1] * behind))
    return g.map("mul", g.add("cast", text, dtype="fp32"), g.map("mul", reshaped(c, left.scale, ()), factor))


def product(c: NodeContext, x: str, w: str) -> str:
    """Numpy's matmul of real numbers: of the bytes that they were made of, where both were."""
    both = _both(c, x, w, 1) if c.g.types[w].rank == 2 and c.g.types[x].rank > 1 else None
    if both is None:
        return matmul(c, x, w)
    left, right, weight = both
    return _real(c, matrix_sums(c, left.bytes, left.zero, weight), left, right, 0)


def _gemm(c: NodeContext) -> str:
    turned = bool(c.attribute("transB", 0))
    plain = not c.attribute("transA", 0) and c.attribute("alpha", 1.0) == c.attribute("beta", 1.0) == 1
    both = _both(c, c.tensor(0), c.tensor(1), 0 if turned else 1) if plain else None
    if both is None:
        return _first_result(PRODUCTS["Gemm"], c)
    left, right, weight = both
    result = _real(c, matrix_sums(c, left.bytes, left.zero, weight.transposed if turned else weight), left, right, 0)
    return c.g.map("add", result, c.tensor(2)) if c.has_input(2) else result


def _conv(c: NodeContext) -> str:
    groups = int(c.attribute("group", 1))
    both = _both(c, c.tensor(0), c.tensor(1), 0, groups)
    if both is None or list(c.attribute("kernel_shape", c.shape(1)[2:])) != list(c.shape(1)[2:]):
        return _first_result(CONVOLUTIONS["Conv"], c)
    left, right, weight = both
    sizes = [int(extent) for extent in weight.near.shape[2:]]
    result = image_sums(c, left.bytes, left.zero, weight, windows_of(c, sizes, c.shape()[2:]), groups)
    return biased(c, _real(c, result, left, right, len(sizes)))


def _first_result(rule: Rule, c: NodeContext) -> str:
    result = rule(c)
    assert isinstance(result, str)
    return result


def _matmul_integer(c: NodeContext) -> str:
    x, w, zero = c.tensor(0), c.tensor(1), c.maybe(2)
    weight = weight_of(c, w, c.maybe(3), 1) if c.g.types[w].rank == 2 and c.type().rank > 1 and single(c, zero) else None
    if weight is None or c.g.known(x) is not None:
        return _first_result(PRODUCTS["MatMulInteger"], c)
    return matrix_sums(c, x, zero, weight)


INTEGERS: Mapping[str, Rule] = {
    "MatMul": lambda c: product(c, c.tensor(0), c.tensor(1)),
    "Gemm": _gemm,
    "Conv": _conv,
    "MatMulInteger": _matmul_integer,
}


SIMPLE = frozenset({"add", "sub", "mul", "div", "max", "min", "round", "neg", "abs", "floor", "ceil", "select"})
LEAST_NODES = 24  # of simple ones, which loops compute for sixteen elements at once, so many take as long as looking up


def tables_of_bytes(g: ConstantFolding) -> None:
    """Puts tables in the place of such functions that take long; exact, since the reference computes the table."""
    made = {node.output: node for node in g.nodes}
    sources: dict[str, list[str]] = {}  # of a tensor: the bytes each of whose elements makes one of its own, the first first
    for index, node in enumerate(g.nodes):
        result = _common(g, node, sources)
        kind = g.types[node.output]
        whole = node.primitive == "cast" and kind.dtype in BYTES and g.types[node.inputs[0]].dtype == "fp32"
        if result and whole:
            inside = _between(made, node.output, result[0])
            if _takes_long(inside):
                table = g.constant(_table(g, inside, result[0], node.output))
                g.nodes[index] = Node("gather", (table, result[0]), node.output, {"axis": 0})
        sources[node.output] = [*result, node.output] if kind.dtype in BYTES else result


def _common(g: ConstantFolding, node: Node, sources: Mapping[str, list[str]]) -> list[str]:
    """Bytes of which every element of a node's result is made, each of one."""
    if node.primitive not in ("map", "cast"):
        return []
    wide = [tensor for tensor in node.inputs if g.numbers(tensor) is None or g.numbers(tensor).size != 1]
    if not wide or any(g.types[item].shape != g.types[node.output].shape for item in wide):
        return []
    first, *others = (sources.get(item, []) for item in wide)  # inputs are none's: of indices a request is asked
    return [item for item in first if all(item in more for more in others)]


def _between(made: Mapping[str, Node], output: str, source: str) -> list[Node]:
    """The nodes that lead from one tensor to another, in the order of the model's; ``made`` has those of all tensors."""
    needed, waiting = set[str](), [output]
    while waiting:
        name = waiting.pop()
        if name != source and name in made and name not in needed:
            needed.add(name)
            waiting.extend(made[name].inputs)
    return [node for name, node in made.items() if name in needed]


def _takes_long(nodes: list[Node]) -> bool:
    dear = any(node.primitive == "map" and node.attributes["function"] not in SIMPLE for node in nodes)
    return dear or len(nodes) >= LEAST_NODES


def _table(g: ConstantFolding, nodes: list[Node], source: str, output: str) -> np.ndarray[tuple[int], np.dtype[np.generic]]:
    """The result for every byte; those under 0 come last, as places counted from the end."""
    values = {source: np.arange(256).astype(np.uint8).view(numpy_dtype(g.types[source].dtype))}
    for node in nodes:
        inputs = [
            values[tensor] if tensor in values else np.asarray(g.numbers(tensor)).reshape(()) for tensor in node.inputs
        ]
        values[node.output] = PRIMITIVES[node.primitive].compute(inputs, node.attributes, number_of)
    return np.ascontiguousarray(np.broadcast_to(values[output], 256))
