"""Analysis of tensors' values: the number of a tensor of one element, tensors that are never negative."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.typed_numbers import DataDependentError, exact
from haotuner.graph.extents import Extent
from haotuner.graph.graph import Node
from haotuner.graph.types import FLOATS

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


MOST_STEPS = 64  # of a walk back
MOVING = ("reshape", "transpose", "broadcast", "slice", "concat", "window", "gather")
ALWAYS = ("sigmoid", "exp", "abs", "sqrt")
REDUCTIONS = ("max", "min", "sum", "mean")
KEEPING = ("add", "mul", "div", "max", "min", "round", "floor", "ceil")  # of such numbers they make such numbers


def never_negative(g: ConstantFolding, tensor: str) -> bool:
    """True if no element is below 0; not-a-numbers apart. False where that is not seen in a few steps."""
    made = {node.output: node for node in g.nodes}
    waiting, seen = [tensor], set[str]()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        needed = _of_what(g, name, made.get(name))
        if needed is None or len(seen) > MOST_STEPS:
            return False
        waiting += needed
    return True


def _of_what(g: ConstantFolding, name: str, node: Node | None) -> list[str] | None:
    """Tensors that must never be negative so that this one is not; None: it may be."""
    if node is None:
        value = g.numbers(name)
        return [] if value is not None and not np.any(np.asarray(value) < 0) else None
    if node.primitive in MOVING:
        return list(node.inputs[:1] if node.primitive == "gather" else node.inputs)
    if node.primitive == "reduce":
        return list(node.inputs) if node.attributes["how"] in REDUCTIONS else None
    if node.primitive == "pad":
        value = node.attributes.get("value", 0) if node.attributes["mode"] == "constant" else 0
        return None if value < 0 else list(node.inputs)
    if g.types[name].dtype not in FLOATS:  # whole numbers wrap around
        return None
    if node.primitive == "cast":
        return [] if g.types[node.inputs[0]].dtype.startswith(("uint", "bool")) else list(node.inputs)
    return _of_map(g, node) if node.primitive == "map" else None


def _of_map(g: ConstantFolding, node: Node) -> list[str] | None:
    function = node.attributes["function"]
    if function in ALWAYS:
        return []
    if function == "max":  # one that is not is enough
        bounds = [
            tensor
            for tensor in node.inputs
            if (value := g.numbers(tensor)) is not None and not np.any(np.asarray(value) < 0)
        ]
        return [] if bounds else list(node.inputs)
    if function == "select":
        return list(node.inputs[1:])
    return list(node.inputs) if function in KEEPING else None
