"""Sizes that the data hold: each becomes a dimension of its own, known when a request runs.

Arithmetic on the way from the data to a size is done on extents, so that what a model joins keeps one length.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.frontends.onnx.proofs import Proof
from haotuner.frontends.onnx.symbolic_values import LARGEST, applied
from haotuner.frontends.onnx.typed_numbers import DataDependentError
from haotuner.graph.extents import Extent, dimension
from haotuner.graph.graph import GraphBuilder, Node

if TYPE_CHECKING:
    from haotuner.frontends.onnx.constant_folding import ConstantFolding

MOST = 16  # sizes that one tensor of data may hold
_PASSED = ("concat", "reshape", "cast", "gather", "slice", "broadcast", "transpose")
_ARITHMETIC = ("add", "sub", "mul", "floordiv", "max", "min")


def lengths_of(g: ConstantFolding, tensor: str, *, new: bool = True) -> Any:
    """Extents of a tensor's elements, an array of objects; None where they are no whole numbers, or too many.

    Undecided without ``new`` where an element has no dimension yet that some tensor's size is.
    """
    kind = g.types[tensor]
    if "int" not in kind.dtype or not all(isinstance(extent, int) for extent in kind.shape):
        return None
    count = int(np.prod(kind.shape, dtype=np.float64))
    if count > LARGEST:
        return None
    known = g.known(tensor)
    if known is not None:
        return np.asarray(known)
    node = next((node for node in reversed(g.nodes) if node.output == tensor), None)
    result = _carried(g, node, kind.dtype, new) if node is not None else None
    if result is not None:
        return result
    if count > MOST:
        return None
    result = np.empty(count, object)
    result[:] = [_length(g, tensor, index, new) for index in range(count)]
    return result.reshape(kind.shape)


def new_dimension(g: ConstantFolding, stem: str, more: Collection[str] = ()) -> Extent:
    """A dimension that no input and no data before have, nor ``more``."""
    taken = set(more) | {str(s) for kind in g.types.values() for e in kind.shape for s in getattr(e, "free_symbols", ())}
    return dimension(next(name for name in (f"{stem}_{n}" for n in range(len(taken) + 1)) if name not in taken))


def _carried(g: ConstantFolding, node: Node, dtype: str, new: bool) -> Any:
    """The elements, where the node only moves whole numbers or does arithmetic of sizes."""
    if node.primitive not in _PASSED and not (node.primitive == "map" and node.attributes["function"] in _ARITHMETIC):
        return None
    if node.primitive == "gather" and g.known(node.inputs[1]) is None:
        return None
    if new and _clamps(g, node):
        return None
    parts = []
    for position, tensor in enumerate(node.inputs):
        known = g.known(tensor)
        index = node.primitive == "gather" and position == 1
        result = known if index else lengths_of(g, tensor, new=new)
        if result is None:
            return None
        parts.append(result)
    proof = Proof(g.ranges)
    try:
        result = applied(node.primitive, parts, node.attributes, dtype, g.types[node.inputs[0]].dtype, proof=proof)
    except (DataDependentError, TypeError):
        return None
    g.require(proof)
    return result


def _clamps(g: ConstantFolding, node: Node) -> bool:
    """True if a number of the data that is no size yet is brought to 0 or more: then the result is one, not the number."""
    known = [g.known(tensor) for tensor in node.inputs]
    if node.primitive != "map" or node.attributes["function"] != "max" or sum(item is None for item in known) != 1:
        return False
    if not all(item is None or item.dtype != object and item.min(initial=0) >= 0 for item in known):
        return False
    try:
        lengths_of(g, node.inputs[known.index(None)], new=False)
    except DataDependentError:
        return True
    return False


def computed_length(g: ConstantFolding, tensor: str) -> Extent:
    """A dimension of the number that a tensor holds, which is never negative."""
    return _length(g, tensor, 0, True)


def length_at_least_0(g: ConstantFolding, tensor: str) -> Extent:
    """A dimension of the larger of 0 and the number that a tensor of the data holds.

    It is the size that the number is elsewhere, too: a negative one is refused as soon as something takes it for a size.
    """
    tensor = _origin(g, tensor)
    if (tensor, 0) not in g.lengths:
        least = g.map("max", g.cast(tensor, "int64"), 0)
        g.lengths[tensor, 0] = extent = new_dimension(g, "length")
        g.clamped[tensor] = GraphBuilder.add(g, "counted", least, place=0, extent=extent)
    return g.lengths[tensor, 0]


def _origin(g: ConstantFolding, tensor: str) -> str:
    """The tensor of one element that others only reshape and cast."""
    made = {node.output: node for node in g.nodes}
    while tensor in made and made[tensor].primitive in ("reshape", "cast"):
        (before,) = made[tensor].inputs
        if "int" not in g.types[before].dtype:
            break
        tensor = before
    return tensor


def _length(g: ConstantFolding, tensor: str, index: int, new: bool) -> Extent:
    known = (tensor, index) in g.lengths and (new or tensor not in g.clamped)
    if not known and not new:
        raise DataDependentError
    if (tensor, index) not in g.lengths:
        extent = new_dimension(g, "length")
        GraphBuilder.add(g, "counted", tensor, place=index, extent=extent)
        g.lengths[tensor, index] = extent
    elif tensor in g.clamped:  # from now on it is a size: a negative one is refused
        counted = g.clamped.pop(tensor)
        for at, node in enumerate(g.nodes):
            if node.output == counted:
                g.nodes[at] = replace(node, inputs=(tensor,))
    return g.lengths[tensor, index]
