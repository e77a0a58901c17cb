"""Tensors of one element: the number that one holds, where dimensions tell it."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.typed_numbers import DataDependentError, exact
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Node

PASSED = ("cast", "reshape", "broadcast")  # another type or shape, the same number


def plain(made: Mapping[str, Node], tensor: str) -> str:
    """Tensor that another one is without casts and shapes; ``made``: the node of each tensor."""
    while (node := made.get(tensor)) is not None and node.primitive in PASSED:
        tensor = node.inputs[0]
    return tensor


def number_held(g: ConstantFolding, made: Mapping[str, Node], tensor: str) -> Extent | None:
    """The number, or expression of dimensions, that a tensor of one element holds; None where data tell it."""
    while (known := g.known(tensor)) is None:
        node = made.get(tensor)
        if node is None:
            return None
        if node.primitive == "size":
            extent: Extent = node.attributes["extent"]
            return extent
        if node.primitive not in (*PASSED, "concat") or len(node.inputs) != 1:
            return None
        tensor = node.inputs[0]
    flat = np.asarray(known).reshape(-1)
    try:
        return exact(flat[0]) if flat.size == 1 else None
    except DataDependentError:
        return None
