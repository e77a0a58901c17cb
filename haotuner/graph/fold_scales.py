"""Factors and shifts of channels behind a product, such as batch norms: they go into its constant weight and one bias."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import TensorType


def scaled_weights(graph: Graph) -> Graph:
    """The graph without constant factors of channels behind products of a constant fp32 weight.

    Rounding differs, as it does wherever batch norms are folded. A weight that several nodes read stays.
    """
    result = _Folded(graph)
    for node in graph.nodes:
        result.take(node)
    return result.graph()


@dataclass(slots=True)
class _Folded:
    """State of the folding. ``made``: the node of each tensor, in order; ``replaced``: tensors that others stand for."""

    whole: Graph
    reads: Counter[str] = field(init=False)
    made: dict[str, Node] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    types: dict[str, Any] = field(init=False)
    constants: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.reads = Counter(tensor for node in self.whole.nodes for tensor in node.inputs)
        self.reads.update(self.whole.outputs)
        self.types, self.constants = dict(self.whole.types), dict(self.whole.constants)

    def take(self, node: Node) -> None:
        """A node, or what it makes of those before it."""
        function = node.attributes.get("function") if node.primitive == "map" else None
        if function not in ("mul", "add") or not (self._scaled(node) if function == "mul" else self._shifted(node)):
            self.made[node.output] = node

    def graph(self) -> Graph:
        """All that was taken, without what nothing reads any more for that."""
        read = {tensor for node in self.made.values() for tensor in node.inputs}
        gone = self.replaced - read - set(self.made) - set(self.whole.outputs)
        return replace(
            self.whole,
            nodes=tuple(self.made.values()),
            types={name: kind for name, kind in self.types.items() if name not in gone},
            constants={name: value for name, value in self.constants.items() if name not in gone},
            guards={name: guard for name, guard in self.whole.guards.items() if name not in gone},
        )

    def _operands(self, node: Node) -> tuple[str, Any] | None:
        """A tensor and the fp32 constant that it meets, which asks for no larger result."""
        for tensor, other in (node.inputs, node.inputs[::-1]):
            value = self.constants.get(other)
            if value is not None and tensor in self.made and self.types[other].dtype == "fp32":
                apart = self.whole.guards.get(tensor) != self.whole.guards.get(node.output)
                return None if apart or self.types[tensor] != self.types[node.output] else (tensor, value)
        return None

    def _alone(self, tensor: str, primitive: str, function: str | None = None) -> Node | None:
        """The node of a tensor that one other reads, if it is of this kind."""
        node = self.made.get(tensor)
        if node is None or self.reads[tensor] != 1 or node.primitive != primitive:
            return None
        return node if node.attributes.get("function") == function else None

    def _scaled(self, node: Node) -> bool:
        """A factor behind a product, or behind its bias, which then is multiplied, too."""
        result = self._operands(node)
        if result is None or result[1].size < 2:  # one number for all: it may be a step of bytes
            return False
        tensor, factor = result
        added = self._alone(tensor, "map", "add")
        shift = self._operands(added) if added is not None else None
        if added is not None and shift is None:
            return False
        top = tensor if shift is None else shift[0]
        if not self._weighed(top, factor.reshape((1,) * (self.types[node.output].rank - factor.ndim) + factor.shape)):
            return False
        if shift is None:
            self._renamed(tensor, node.output)
        else:
            self._put(tensor, shift[0], shift[1] * factor, node.output)
        self.replaced.update(node.inputs)
        return True

    def _shifted(self, node: Node) -> bool:
        """A shift behind another one of a product: their sum."""
        result = self._operands(node)
        added = self._alone(result[0], "map", "add") if result is not None else None
        first = self._operands(added) if added is not None else None
        if result is None or first is None or self._product(first[0]) is None:
            return False
        if np.broadcast(first[1], result[1]).size > first[1].size:  # no bias any more
            return False
        self._put(result[0], first[0], first[1] + result[1], node.output)
        self.replaced.update(node.inputs)
        return True

    def _put(self, gone: str, tensor: str, shift: Any, output: str) -> None:
        """The sum of a tensor and a new constant in place of the sum ``gone``."""
        node = self.made.pop(gone)
        self.replaced |= {gone, *node.inputs}
        self.made[output] = replace(node, inputs=(tensor, self._constant(shift)), output=output)

    def _renamed(self, gone: str, output: str) -> None:
        node = self.made.pop(gone)
        self.replaced.add(gone)
        self.made[output] = replace(node, output=output)

    def _constant(self, value: Any) -> str:
        name = f"scaled_{len(self.types)}"
        while name in self.types:
            name += "_"
        self.constants[name] = np.asarray(value, np.float32)
        self.types[name] = TensorType(np.shape(value), "fp32")
        return name

    def _product(self, tensor: str) -> tuple[Node, Node | None] | None:
        """The product that a tensor is, with the reshape behind it that joins its groups, if any."""
        joined = self._alone(tensor, "reshape")
        return_of = joined.inputs[0] if joined is not None else tensor
        product = self._alone(return_of, "contract")
        return None if product is None else (product, joined)

    def _weighed(self, tensor: str, factor: Any) -> bool:
        """Multiply the weight of the product that a tensor is; False where it cannot be."""
        result = self._product(tensor)
        if result is None:
            return False
        product, joined = result
        if joined is not None:
            whole, wide = self.types[product.output].shape, self.types[joined.output].shape
            split = len(whole) == len(wide) + 1 and all(isinstance(item, int) for item in (*whole[1:3], wide[1]))
            if not split or (whole[0], prod(whole[1:3]), *whole[3:]) != tuple(wide):
                return False
            if [axis for axis, extent in enumerate(factor.shape) if extent > 1] != [1]:
                return False
            factor = factor.reshape(1, *whole[1:3], *[1] * (len(whole) - 3))
        read, _, made = product.attributes["labels"].partition("->")
        for index, labels in enumerate(read.split(",")):
            name = product.inputs[index]
            value = self.constants.get(name)
            if value is None or value.dtype != np.float32 or self.reads[name] != 1 or self.types[name].dtype != "fp32":
                continue
            turned = _along(factor, made, labels)
            if turned is not None:
                inputs = list(product.inputs)
                inputs[index] = self._constant(value * turned)
                self.reads[inputs[index]] = 1
                self.replaced.add(name)
                self.made[product.output] = replace(product, inputs=tuple(inputs))
                return True
        return False


def _along(factor: Any, made: str, labels: Sequence[str]) -> Any:
    """A factor of a result's axes as one of a weight's; None where the weight lacks one of them."""
    wide = [label for label, extent in zip(made, factor.shape, strict=True) if extent > 1]
    if any(label not in labels for label in wide):
        return None
    extents = dict(zip(made, factor.shape, strict=True))
    order = [made.index(label) for label in labels if label in wide]
    rest = [axis for axis in range(len(made)) if axis not in order]
    turned = factor.transpose(*order, *rest)
    return turned.reshape([extents[label] if label in wide else 1 for label in labels])
