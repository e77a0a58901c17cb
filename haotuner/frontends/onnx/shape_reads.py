"""Requests for which a shape that a file reads is another one than was read: they are refused.

A broadcast of extents that may differ is taken to make them equal. A pack refuses requests in which they are not, as long
as something computes the broadcast. Where a file reads its shape alone, no node is left that says so.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.graph.control_flow import made_dimensions
from haotuner.graph.extents import Extent, canonical, dimensions, is_zero, same, shown
from haotuner.graph.graph import Graph, Node, Required


def with_read_shapes(g: ConstantFolding, graph: Graph) -> Graph:
    """The graph of a builder, with requirements of the nodes that only ``g.shape_reads`` need and the graph has not."""
    live = {node.output for node in graph.nodes}
    known = set(graph.dimensions).union(*(made_dimensions(node.primitive, node.attributes) for node in graph.nodes))
    needed, added = set(g.shape_reads), dict[Required, None]()
    for node in reversed(g.nodes):
        if node.output not in needed or node.output in live:
            continue
        needed.update(node.inputs)
        for extent, other in _joined(g, node):
            if not same(extent, other) and dimensions(extent) | dimensions(other) <= known:
                words = (
                    f"the model reads the shape of a tensor for which {shown(extent)} and {shown(other)} must be equal; "
                    "send a request in which they are"
                )
                equal = is_zero(canonical(extent - other))
                added[Required(equal, words, g.guards.get(node.output, ()))] = None
    return replace(graph, required=(*graph.required, *added)) if added else graph


def _joined(g: ConstantFolding, node: Node) -> Iterator[tuple[Extent, Extent]]:
    """Extents that the result of a broadcast, or of a product's batch, takes for equal."""
    shapes, result = [g.types[name].shape for name in node.inputs], g.types[node.output].shape
    if node.primitive == "map":
        for shape in shapes:
            pairs = zip(shape, result[len(result) - len(shape) :], strict=True)
            yield from (pair for pair in pairs if pair[0] != 1)
    elif node.primitive == "contract":
        labels, _, output = node.attributes["labels"].partition("->")
        extents = dict(zip(output, result, strict=True))
        for own, shape in zip(labels.split(","), shapes, strict=True):
            yield from ((extent, extents[label]) for label, extent in zip(own, shape, strict=True) if label in extents)
