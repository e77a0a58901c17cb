"""Bounds of indices among a graph's inputs: how many rows each may choose from; a request is checked against them.

ONNX calls an index outside of -n..n-1 an error. What the inputs hold is asked once a call, before any step runs. Indices
that the graph computes are not asked: loops keep these inside of the tensor.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from haotuner.graph.extents import Extent, canonical, same
from haotuner.graph.graph import Graph, Node
from haotuner.partition.index_views import View, views


@dataclass(frozen=True, slots=True)
class IndexBound:
    """Bound of indices: elements of ``view`` lie in -extent..extent-1; ``reader``: who asks it."""

    view: View
    extent: Extent
    reader: str

    @property
    def input(self) -> str:
        """The input's name."""
        return self.view.input


def index_bounds(graph: Graph) -> list[IndexBound]:
    """Bounds of whole numbers that are inputs, by gathers and scatters, in the order of the graph, each once."""
    finder = _BoundFinder(graph, {node.output: node for node in graph.nodes})
    result: dict[tuple[str, str], IndexBound] = {}
    for node in graph.nodes:
        if node.primitive in ("gather", "scatter"):
            for bound in finder.of(node):
                result.setdefault((str(bound.view), str(bound.extent)), bound)
    return list(result.values())


@dataclass(frozen=True, slots=True)
class _BoundFinder:
    graph: Graph
    made: dict[str, Node]

    def of(self, node: Node) -> Iterator[IndexBound]:
        rows, places = node.inputs[0], node.inputs[1]
        extent = self.graph.types[rows].shape[node.attributes.get("axis", 0)]
        wraps = [(places, extent)]
        if not self._views(places):
            wraps = []
            most = self._most(places, wraps)
            if most is None or not same(canonical(most + 1), extent):
                return
        for tensor, rows_of in wraps:
            for view in self._views(tensor):
                table = f" of {rows}" if rows in self.graph.constants else ""  # a weight has the name that its author knows
                yield IndexBound(view.merged(), rows_of, node.output + table)

    def _views(self, tensor: str) -> list[View]:
        return views(self.graph, self.made, tensor)

    def _most(self, tensor: str, wraps: list[tuple[str, Extent]]) -> Extent | None:
        """The largest place in a flat tensor, of indices in their axes; ``wraps`` gets these with their extents."""
        count = self._count(tensor)
        if count is not None:
            return count
        node = self.made.get(tensor)
        if node is None:
            return None
        if node.primitive == "iota":
            return canonical(node.attributes["extent"] - 1)
        if node.primitive in ("cast", "reshape", "transpose", "broadcast"):
            return self._most(node.inputs[0], wraps)
        if node.primitive != "map":
            return None
        function = node.attributes["function"]
        if function == "select":
            extent = self._wrapped(node)
            if extent is None:
                return None
            wraps.append((node.inputs[2], extent))
            return canonical(extent - 1)
        if function not in ("add", "mul"):
            return None
        first, other = (self._most(operand, wraps) for operand in node.inputs)
        if first is None or other is None:
            return None
        return canonical(first + other if function == "add" else first * other)

    def _wrapped(self, node: Node) -> Extent | None:
        """The n of ``i + n if i < 0 else i``."""
        less, behind = self.made.get(node.inputs[0]), self.made.get(node.inputs[1])
        if less is None or behind is None or less.primitive != "map" or behind.primitive != "map":
            return None
        if less.attributes["function"] != "less" or behind.attributes["function"] != "add":
            return None
        if less.inputs[0] != node.inputs[2] or behind.inputs[0] != node.inputs[2] or self._count(less.inputs[1]) != 0:
            return None
        return self._count(behind.inputs[1])

    def _count(self, tensor: str) -> Extent | None:
        """The number that a tensor of sizes or a constant holds, the largest of several; None: it holds others."""
        if tensor in self.graph.constants:
            value = self.graph.constants[tensor]
            return int(value.max()) if value.size and value.dtype.kind in "iu" and value.min() >= 0 else None
        node = self.made.get(tensor)
        if node is None or len(node.inputs) > 1:
            return None
        if node.primitive == "size":
            result: Extent = node.attributes["extent"]
            return result
        return self._count(node.inputs[0]) if node.primitive in ("cast", "reshape", "concat", "broadcast") else None
