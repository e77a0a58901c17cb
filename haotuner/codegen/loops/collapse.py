"""Groups of tensors with the same elements in the same order, with one axis each: a row, whatever axes it has.

Loops over rows of 24 elements leave half a vector unused in each.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from haotuner.graph.extents import product
from haotuner.graph.graph import Graph
from haotuner.graph.types import TensorType


def collapsed(graph: Graph) -> Graph:
    """The group over one axis; itself where some tensor has other axes, or something moves or is summed."""
    shape = graph.types[graph.outputs[0]].shape
    names = [*graph.inputs, *(node.output for node in graph.nodes)]
    if len(shape) < 2 or any(node.primitive not in ("map", "cast") for node in graph.nodes):
        return graph
    if any(graph.types[name].shape != shape for name in names):
        return graph
    row = (product(shape),)
    types = {**graph.types, **{name: TensorType(row, graph.types[name].dtype) for name in names}}
    types |= {name: TensorType((), graph.types[name].dtype) for name in graph.constants}
    constants = {name: np.asarray(value).reshape(()) for name, value in graph.constants.items()}
    return replace(graph, types=types, constants=constants)
