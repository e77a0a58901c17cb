"""Initializers that are inputs, too: defaults that a request may override (ONNX's IR from version 4 on).

Old exporters list every weight as an input. What may change from call to call can neither be packed nor folded, so only
few and small initializers become inputs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from haotuner.errors import UsageError
from haotuner.graph.data_dependent_shapes import made_dimensions
from haotuner.graph.graph import Graph

FIRST_IR = 4  # before it every initializer had to be listed as an input
MOST_DEFAULTS = 16
MOST_ELEMENTS = 1 << 14  # of all together
_FLOATS = (1, 10, 11, 16)  # of TensorProto.DataType


def with_defaults(model: Any, fixed: Collection[str], read: Callable[[Mapping[str, Any]], Graph]) -> Graph:
    """The graph in which initializers that a request may override are inputs; ``read``: with these as inputs.

    An initializer stays a constant where the graph needs to know it: where a size follows from it, or a rule refuses it.
    """
    for chosen in _choices(model, fixed):
        try:
            result = read(chosen)
        except UsageError:
            continue
        if _sizes_of_data(result) <= _sizes_of_data(read({})):
            return result
    return read({})


def _sizes_of_data(graph: Graph) -> int:
    return sum(len(made_dimensions(node.primitive, node.attributes)) for node in graph.nodes)


def _choices(model: Any, fixed: Collection[str]) -> Iterator[Mapping[str, Any]]:
    listed = {item.name for item in model.graph.input} - set(fixed)
    every = {item.name: item for item in model.graph.initializer if item.name in listed}
    elements = sum(math.prod(map(int, item.dims)) for item in every.values())
    if model.ir_version < FIRST_IR or not every or len(every) > MOST_DEFAULTS or elements > MOST_ELEMENTS:
        return
    yield every
    floats = {name: item for name, item in every.items() if item.data_type in _FLOATS}
    if floats and len(floats) < len(every):
        yield floats
