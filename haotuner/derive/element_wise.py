"""Element-wise functions behind merged products, computed before the merged tensor is cut into its parts.

A product's kernel takes a bias and a function along. Behind a cut it could not: they would be loops over every part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from haotuner.graph.graph import Graph, GraphBuilder, Node
from haotuner.graph.rewrites import Site


def with_functions(graph: Graph, site: Site) -> Site:
    """The site of merged products with all element-wise functions that each of its tensors is read by, and nobody else.

    Functions and their order must be the same for all tensors. Their other operands must be constants along the cut axis.
    """
    form = site.form
    assert form is not None
    cuts = [form.producer(output) for output in form.outputs]
    first = cuts[0]
    if first is None or len(_cut_of(first)) < 2 or any(cut is None or _cut_of(cut) != _cut_of(first) for cut in cuts):
        return site
    whole, axis = _cut_of(first)
    widths = [cut.attributes["stops"][0] - cut.attributes["starts"][0] for cut in cuts if cut is not None]
    if not all(isinstance(width, int) for width in widths) or form.types[whole].shape[axis] != sum(widths):
        return site
    g = GraphBuilder(list(form.inputs), list(form.nodes), dict(form.types), dict(form.constants))
    readers: dict[str, list[Node]] = {}
    for node in graph.nodes:
        for tensor in dict.fromkeys(node.inputs):
            readers.setdefault(tensor, []).append(node)
    ends, passed = list(site.tensors), set[str]()
    while True:
        joined = _joined(graph, [_reader(graph, readers, end) for end in ends], ends, axis, widths)
        if joined is None:
            break
        nodes, operands = joined
        names = [whole if operand is None else g.constant(operand) for operand in operands]
        whole = g.add("map", *names, **nodes[0].attributes)
        passed |= {node.output for node in nodes}
        ends = [node.output for node in nodes]
    if not passed:
        return site
    parts = [g.add("slice", whole, **cut.attributes) for cut in cuts if cut is not None]
    return replace(site, tensor=ends[0], beside=tuple(ends[1:]), nodes=site.nodes | passed, form=g.finish(*parts))


def _cut_of(node: Node) -> tuple[Any, ...]:
    """The tensor and the axis that a node cuts a part of; of another node itself."""
    a = node.attributes
    cuts = node.primitive == "slice" and tuple(a["steps"]) == (1,) and len(a["axes"]) == 1
    return (node.inputs[0], a["axes"][0]) if cuts else (node.output,)


def _reader(graph: Graph, readers: Mapping[str, Sequence[Node]], tensor: str) -> Node | None:
    """The element-wise function that alone reads a tensor."""
    nodes = readers.get(tensor, ())
    alone = len(nodes) == 1 and tensor not in graph.outputs and nodes[0].primitive == "map"
    return nodes[0] if alone and graph.types[nodes[0].output] == graph.types[tensor] else None


def _joined(
    graph: Graph, readers: Sequence[Node | None], ends: Sequence[str], axis: int, widths: Sequence[int]
) -> tuple[list[Node], list[Any]] | None:
    """The functions that read some tensors, and their operands side by side, None for the tensors; None: they differ."""
    nodes = [node for node in readers if node is not None]
    if len(nodes) < len(ends) or any(
        node.attributes != nodes[0].attributes or len(node.inputs) != len(nodes[0].inputs) for node in nodes
    ):
        return None
    operands: list[Any] = []
    for at in range(len(nodes[0].inputs)):
        is_end = [node.inputs[at] == end for node, end in zip(nodes, ends, strict=True)]
        if all(is_end):
            operands.append(None)
            continue
        arrays = [graph.constants.get(node.inputs[at]) for node in nodes]
        if any(is_end) or any(array is None for array in arrays):
            return None
        beside = _side_by_side([np.asarray(array) for array in arrays], graph.types[ends[0]].rank, axis, widths)
        if beside is None:
            return None
        operands.append(beside)
    return (nodes, operands) if None in operands else None


def _side_by_side(arrays: Sequence[Any], rank: int, axis: int, widths: Sequence[int]) -> Any:
    """Constants as one along the cut axis; None where they differ along another one."""
    shaped = [np.reshape(array, (1,) * (rank - np.ndim(array)) + np.shape(array)) for array in arrays]
    if any(size != 1 for array in shaped for at, size in enumerate(array.shape) if at != axis):
        return None
    if all(array.size == 1 and array.item() == shaped[0].item() for array in shaped):
        return arrays[0]
    full = [np.broadcast_to(array, (1,) * axis + (width,) + (1,) * (rank - axis - 1))
            for array, width in zip(shaped, widths, strict=True)]  # fmt: skip
    return np.ascontiguousarray(np.concatenate(full, axis=axis))
