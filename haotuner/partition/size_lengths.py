"""Lengths that a model computes at run time from the sizes of a request alone: how large the asked ranges make them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.graph.data_dependent_shapes import HOST
from haotuner.graph.extents import dimensions, evaluate
from haotuner.graph.graph import Graph, Node
from haotuner.graph.interpret import interpret
from haotuner.graph.types import TensorType, numpy_dtype

LARGEST = 1 << 16  # elements of a tensor that is computed here; what sizes are made of has a few


def size_lengths(graph: Graph, requests: Sequence[Mapping[str, int]]) -> Iterator[tuple[str, int, int]]:
    """Dimensions that follow from the sizes of these requests and from no data, each with its least and largest value.

    A request that the graph refuses tells nothing.
    """
    nodes = _of_sizes(graph)
    counted = {str(node.attributes["extent"]): node for node in nodes if node.primitive == "counted"}
    if not counted:
        return
    outputs = tuple(node.output for node in counted.values())
    part = replace(graph, nodes=tuple(_needed(nodes, outputs)), outputs=outputs, guards={}, required=())
    values: dict[str, list[int]] = {name: [] for name in counted}
    for sizes in requests:
        if not _small(part, sizes):
            continue
        try:
            results = interpret(part, {name: _zeros(graph.types[name], sizes) for name in graph.inputs})
        except (HaotunerError, ValueError, IndexError, MemoryError):
            continue
        for name, node in counted.items():
            values[name].append(results[node.output].shape[-1])
    yield from ((name, min(every), max(every)) for name, every in values.items() if every)


def _of_sizes(graph: Graph) -> list[Node]:
    """Nodes behind which no input lies, outside of branches, and the lengths that they come to."""
    known = set(graph.constants)
    nodes: list[Node] = []
    for node in graph.nodes:
        host = node.primitive in HOST and node.primitive != "counted"
        if not host and not graph.guards.get(node.output) and known.issuperset(node.inputs):
            known.add(node.output)
            nodes.append(node)
    return nodes


def _needed(nodes: Sequence[Node], outputs: Sequence[str]) -> list[Node]:
    """The nodes that make these tensors, or sizes of tensors that do."""
    tensors, needed = set(outputs), list[Node]()
    for node in reversed(nodes):
        if node.output in tensors or node.primitive == "counted":
            tensors.update(node.inputs)
            needed.append(node)
    return needed[::-1]


def _small(part: Graph, sizes: Mapping[str, int]) -> bool:
    """True if no tensor is large, of those whose shapes the request tells."""
    shapes = (part.types[node.output].shape for node in part.nodes)
    known = (shape for shape in shapes if all(dimensions(extent) <= sizes.keys() for extent in shape))
    return all(prod(evaluate(extent, sizes) for extent in shape) <= LARGEST for shape in known)


def _zeros(kind: TensorType, sizes: Mapping[str, int]) -> Any:
    """An input of which nothing but its shape is read; it has no memory of its own."""
    return np.broadcast_to(np.zeros((), numpy_dtype(kind.dtype)), [evaluate(extent, sizes) for extent in kind.shape])
