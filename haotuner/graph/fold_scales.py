"""Factors and shifts folded into products: of channels, as batch norms, and of bytes whose scale is data.

Sums of bytes as real numbers, where data tell the scale and the zero point: a factor and a shift for each feature.

``(sums - zero * totals) * scale + bias`` becomes ``sums * factor + (bias - zero * totals * factor)``: a kernel takes both
rows along. Sums stay exact; as real numbers they are rounded before the zero point goes, not behind.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

from haotuner.graph.extents import Extent
from haotuner.graph.graph import Graph, Node, free_name
from haotuner.graph.primitives import PRIMITIVES
from haotuner.graph.types import TensorType

LARGEST_RATIO = 4096.0  # of one shift over its sum with another: half of the sum's 24 bits are left
LARGEST_SHIFT = 2.0**10  # of a bias; a larger shift rounds what it is added to by more than 2**-14, on purpose perhaps
LEAST_WEIGHT = 2.0**-102  # of the largest element: 24 bits below it are normal numbers


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
    """State of the folding: the node of each tensor, in order, and tensors that others stand for."""

    whole: Graph
    reads: Counter[str] = field(init=False)
    producers: dict[str, Node] = field(default_factory=dict)
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
            self.producers[node.output] = node

    def graph(self) -> Graph:
        """All that was taken, without what nothing reads any more for that."""
        read = {tensor for node in self.producers.values() for tensor in node.inputs}
        gone = self.replaced - read - set(self.producers) - set(self.whole.outputs)
        return replace(
            self.whole,
            nodes=tuple(self.producers.values()),
            types={name: kind for name, kind in self.types.items() if name not in gone},
            constants={name: value for name, value in self.constants.items() if name not in gone},
            guards={name: guard for name, guard in self.whole.guards.items() if name not in gone},
        )

    def _operands(self, node: Node) -> tuple[str, Any] | None:
        """A tensor and the fp32 constant that it meets, which asks for no larger result."""
        for tensor, other in (node.inputs, node.inputs[::-1]):
            value = self.constants.get(other)
            if value is not None and tensor in self.producers and self.types[other].dtype == "fp32":
                apart = self.whole.guards.get(tensor) != self.whole.guards.get(node.output)
                return None if apart or self.types[tensor] != self.types[node.output] else (tensor, value)
        return None

    def _alone(self, tensor: str, primitive: str, function: str | None = None) -> Node | None:
        """The node of a tensor that one other reads, if it is of this kind."""
        node = self.producers.get(tensor)
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
        if shift is not None and np.max(np.abs(shift[1]), initial=0.0) > LARGEST_SHIFT:
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
        if not _joinable(first[1], result[1]):
            return False
        self._put(result[0], first[0], first[1] + result[1], node.output)
        self.replaced.update(node.inputs)
        return True

    def _put(self, gone: str, tensor: str, shift: Any, output: str) -> None:
        """The sum of a tensor and a new constant in place of the sum ``gone``."""
        node = self.producers.pop(gone)
        self.replaced |= {gone, *node.inputs}
        self.producers[output] = replace(node, inputs=(tensor, self._constant(shift)), output=output)

    def _renamed(self, gone: str, output: str) -> None:
        node = self.producers.pop(gone)
        self.replaced.add(gone)
        self.producers[output] = replace(node, output=output)

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
            if turned is not None and _scalable(value, turned):
                inputs = list(product.inputs)
                inputs[index] = self._constant(value * turned)
                self.reads[inputs[index]] = 1
                self.replaced.add(name)
                self.producers[product.output] = replace(product, inputs=tuple(inputs))
                return True
        return False


def _joinable(first: Any, second: Any) -> bool:
    """True if two shifts in turn may be one: in no channel one rounds away what the other says, as 2**23 does."""
    whole = first + second
    before, later, size = (np.abs(item) for item in (first, second, whole))
    small = (np.maximum(before, later) <= LARGEST_SHIFT) & (before <= LARGEST_RATIO * size)
    grown = (size >= before) & (first.astype(np.float64) + second == whole)  # rounds no less, and loses nothing
    return bool(np.all((before == 0) | (later == 0) | small | grown))


def _scalable(weight: Any, factor: Any) -> bool:
    """True if fp32 holds a weight times a factor of each channel; elements far below the largest may be flushed."""
    with np.errstate(all="ignore"):
        size = np.abs(np.float32(weight) * np.float32(factor))
    largest = np.max(size, initial=0.0)
    return bool(np.isfinite(largest) and (largest >= LEAST_WEIGHT or not np.any(weight) or not np.any(factor)))


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


LONGEST = (2**31 - 1) // (255 * 128)  # terms whose sum has a number of 32 bits, whatever the bytes are


def dequantised_by_rows(graph: Graph) -> Graph:
    """The graph with a row of factors and one of shifts behind each product of bytes whose scale is no constant."""
    result = _Rows(graph)
    for node in graph.nodes:
        result.take(node)
    return result.graph() if result.scaled else graph


@dataclass(frozen=True, slots=True)
class _Sums:
    """Sums of bytes, and which of their axes counts the features."""

    tensor: str
    axis: int
    features: int


@dataclass(frozen=True, slots=True)
class _Shift:
    """``row``: what is subtracted of each feature of the sums ``of``, as real numbers."""

    of: str
    row: str
    sums: _Sums


@dataclass(slots=True)
class _Rows:
    """``made``: nodes by what they make, in order; ``shifts``: of results that a bias may still join."""

    whole: Graph
    scaled: int = 0
    shifts: dict[str, _Shift] = field(default_factory=dict)
    producers: dict[str, Node] = field(default_factory=dict)
    reads: Counter[str] = field(init=False)
    types: dict[str, TensorType] = field(init=False)
    constants: dict[str, Any] = field(init=False)
    guards: dict[str, Any] = field(init=False)

    def __post_init__(self) -> None:
        self.reads = Counter(tensor for node in self.whole.nodes for tensor in node.inputs)
        self.reads.update(self.whole.outputs)
        self.types, self.constants, self.guards = dict(self.whole.types), dict(self.whole.constants), dict(self.whole.guards)

    def take(self, node: Node) -> None:
        """A node as it is, or as rows."""
        function = node.attributes.get("function") if node.primitive == "map" else None
        if function not in ("mul", "add") or not (self._scaled(node) if function == "mul" else self._biased(node)):
            self.producers[node.output] = node

    def graph(self) -> Graph:
        """All that was taken, without what nothing reads any more for that."""
        needed, nodes = set(self.whole.outputs), list[Node]()
        before = {tensor for node in self.whole.nodes for tensor in node.inputs}
        for node in reversed(self.producers.values()):
            if node.output in needed or (node.output in self.whole.types and node.output not in before):
                nodes.append(node)
                needed.update(node.inputs)
        used = needed | set(self.whole.inputs) | {node.output for node in nodes}
        return replace(
            self.whole,
            nodes=tuple(reversed(nodes)),
            types={name: kind for name, kind in self.types.items() if name in used},
            constants={name: value for name, value in self.constants.items() if name in used},
            guards={name: guard for name, guard in self.guards.items() if name in used},
        )

    def _scaled(self, node: Node) -> bool:
        """Sums, perhaps less what a zero point makes of them, as real numbers times a scale that data tell."""
        for real, scale in (node.inputs, node.inputs[::-1]):
            cast = self._alone(real, "cast")
            if cast is None or scale in self.constants or self.types[node.output].dtype != "fp32":
                continue
            less = self._alone(cast.inputs[0], "map")
            whole, *moved = less.inputs if less is not None and less.attributes["function"] == "sub" else cast.inputs
            sums = self._sums(whole)
            if sums is None or self.types[node.output] != self.types[real]:
                continue
            if all(self._is_row(item, sums) for item in (scale, *moved)):
                self._put(node.output, sums, scale, moved)
                return True
        return False

    def _put(self, like: str, sums: _Sums, scale: str, moved: Sequence[str]) -> None:
        """The result ``like``, of sums that zero points moved by a row, or by none."""
        self.scaled += 1
        row = self._row(scale, sums, like)
        wide = self._add(like, "cast", sums.tensor, dtype="fp32")
        if not moved:
            self._map(like, "mul", wide, self._broadcast(row, sums, like), output=like)
            return
        times = self._map(like, "mul", wide, self._broadcast(row, sums, like))
        shift = self._map(like, "mul", self._add(like, "cast", self._row(moved[0], sums, like), dtype="fp32"), row)
        placed = self._broadcast(self._map(like, "neg", shift), sums, like)
        self._map(like, "add", times, placed, output=like)
        self.shifts[like] = _Shift(times, shift, sums)

    def _biased(self, node: Node) -> bool:
        """A bias behind such a product: both shifts are one."""
        for tensor, other in (node.inputs, node.inputs[::-1]):
            shift = self.shifts.get(tensor)
            if shift is None or self.reads[tensor] != 1 or self.types[node.output] != self.types[tensor]:
                continue
            if other not in self.constants or not self._is_row(other, shift.sums):
                continue
            bias = np.broadcast_to(self.constants[other].reshape(-1), shift.sums.features)
            whole = self._map(node.output, "sub", self._constant(bias), shift.row)
            self._map(node.output, "add", shift.of, self._broadcast(whole, shift.sums, node.output), output=node.output)
            del self.producers[tensor]
            return True
        return False

    def _sums(self, tensor: str) -> _Sums | None:
        """A product of bytes with a constant weight, its groups joined; None: it is none."""
        joined = self._alone(tensor, "reshape")
        product = self._alone(joined.inputs[0] if joined is not None else tensor, "contract")
        if product is None or self.types[tensor].dtype != "int32" or len(product.inputs) != 2:
            return None
        labels, _, out = product.attributes["labels"].partition("->")
        read, weight = labels.split(",")
        value = self.constants.get(product.inputs[1])
        if joined is not None and not (weight.startswith(out[1:3]) and self.types[tensor].rank == len(out) - 1):
            return None
        axes = [1] if joined is not None else [index for index, label in enumerate(out) if label not in read]
        features = self.types[tensor].shape[axes[0]] if len(axes) == 1 else None
        if value is None or not isinstance(features, int) or value.size > LONGEST * features or out[axes[0]] not in weight:
            return None
        return _Sums(tensor, axes[0], features)

    def _alone(self, tensor: str, primitive: str) -> Node | None:
        """The node of a tensor that one other reads, if it is of this kind."""
        node = self.producers.get(tensor)
        return node if node is not None and self.reads[tensor] == 1 and node.primitive == primitive else None

    def _is_row(self, tensor: str, sums: _Sums) -> bool:
        """True if it is one number, or one for each feature, as sums meet it."""
        shape, rank = self.types[tensor].shape, self.types[sums.tensor].rank
        whole: Sequence[Extent] = (*(1,) * (rank - len(shape)), *shape)
        others = [extent for index, extent in enumerate(whole) if index != sums.axis]
        return len(whole) == rank and all(item == 1 for item in others) and whole[sums.axis] in (1, sums.features)

    def _row(self, tensor: str, sums: _Sums, like: str) -> str:
        """One number for each feature, whether there was one for all or not."""
        shape = self.types[tensor].shape
        flat = tensor if len(shape) == 1 else self._add(like, "reshape", tensor, shape=(prod(shape),))
        if self.types[flat].shape == (sums.features,):
            return flat
        return self._add(like, "broadcast", flat, shape=(sums.features,))

    def _broadcast(self, row: str, sums: _Sums, like: str) -> str:
        """A row as sums meet it."""
        rank = self.types[sums.tensor].rank
        if sums.axis == rank - 1:
            return row
        return self._add(like, "reshape", row, shape=tuple(sums.features if at == sums.axis else 1 for at in range(rank)))

    def _map(self, like: str, function: str, *inputs: str, output: str = "") -> str:
        return self._add(like, "map", *inputs, output=output, function=function)

    def _add(self, like: str, primitive: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        """A new node, where a tensor ``like`` it is made."""
        name = output or free_name(like, self.types)
        self.types[name] = PRIMITIVES[primitive].infer([self.types[operand] for operand in inputs], attributes)
        self.producers[name] = Node(primitive, inputs, name, attributes)
        self.reads.update(inputs)
        if like in self.guards:
            self.guards[name] = self.guards[like]
        return name

    def _constant(self, value: Any) -> str:
        name = free_name("bias", self.types)
        self.constants[name] = np.ascontiguousarray(value, np.float32)
        self.types[name] = TensorType(self.constants[name].shape, "fp32")
        return name
