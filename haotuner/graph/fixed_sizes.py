"""Graph of one request: the same primitives with a number for every dimension."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from haotuner.graph.extents import evaluate, is_symbolic
from haotuner.graph.graph import Graph
from haotuner.graph.types import TensorType


def at_sizes(graph: Graph, sizes: Mapping[str, int]) -> Graph:
    """Copy of a graph without control flow, with the constants that it reads.

    ``sizes``: of all dimensions of its tensors and attributes.
    """
    read = {name for node in graph.nodes for name in node.inputs}
    constants = {name: value for name, value in graph.constants.items() if name in read or name in graph.outputs}
    names = {*graph.inputs, *constants, *(node.output for node in graph.nodes)}
    types = {
        name: TensorType(tuple(evaluate(extent, sizes) for extent in graph.types[name].shape), graph.types[name].dtype)
        for name in names
    }
    nodes = tuple(
        replace(node, attributes={key: _number(value, sizes) for key, value in node.attributes.items()})
        for node in graph.nodes
    )
    return replace(graph, nodes=nodes, types=types, constants=constants)


def _number(value: Any, sizes: Mapping[str, int]) -> Any:
    if isinstance(value, (tuple, list)):
        return tuple(_number(item, sizes) for item in value)
    return evaluate(value, sizes) if is_symbolic(value) else value
