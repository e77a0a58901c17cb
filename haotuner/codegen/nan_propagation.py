"""Maxima whose NaN the outputs have anyway, so that folding them need not keep it: one instruction a vector, not three.

The case is a softmax: where a row of x has a NaN, so has its sum of exp(x - max x), whatever max x is, and every output that
reads the maximum reads that sum, too. These are conditions on the graph; none names an operator.
"""

from __future__ import annotations

from collections.abc import Sequence

from haotuner.graph.graph import Graph, Node
from haotuner.ops.functions import TRANSCENDENTAL

# NaN where an argument is.
STRICT = (TRANSCENDENTAL - {"pow"}) | {"add", "sub", "mul", "div", "reciprocal", "neg", "abs", "sqrt", "rsqrt"}


def nan_propagating_maxima(graph: Graph) -> frozenset[str]:
    """Tensors that are such maxima."""
    return frozenset(node.output for node in graph.nodes if _folds(node, ("max",)) and _propagates_nan(graph, node))


def _propagates_nan(graph: Graph, most: Node) -> bool:
    """True if all that reads a maximum stays in its row, and outputs among it are NaN where the row has one."""
    axes = most.attributes["axes"]
    reading, spoiled = {most.output}, {most.inputs[0]}  # by the maximum; by a NaN of the same element
    rows = set[str]()  # by a NaN anywhere in the row
    for node in graph.nodes:
        inputs_, strict = set(node.inputs), node.primitive == "map" and node.attributes["function"] in STRICT
        if reading & inputs_:
            if node.primitive != "map" and not _folds(node, ("sum", "mean", "max", "min"), axes):
                return False  # elsewhere rows could meet
            reading.add(node.output)
        if strict and spoiled & inputs_:
            spoiled.add(node.output)
        if rows & inputs_ and strict or spoiled & inputs_ and _folds(node, ("sum", "mean"), axes):
            rows.add(node.output)
    ranks = {graph.types[row].rank for row in (*reading, *rows)}
    return reading & set(graph.outputs) <= rows and len(ranks) == 1


def _folds(node: Node, how: Sequence[str], axes: Sequence[int] | None = None) -> bool:
    """True if a node folds so, over these axes if given, and keeps them as ones."""
    if node.primitive != "reduce" or node.attributes["how"] not in how or not node.attributes.get("keepdims", False):
        return False
    return axes is None or tuple(node.attributes["axes"]) == tuple(axes)
