"""Lookup tables of 256 entries: what a model computes of one byte, element by element, and rounds to a byte again.

A gelu that a quantizer wrote is four operators with six roundings between; each element is still a function of one byte.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding, number_of
from haotuner.frontends.onnx.integers import BYTES
from haotuner.graph.graph import Node
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.types import numpy_dtype

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
