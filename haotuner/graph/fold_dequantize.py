"""Sums of bytes as real numbers, where data tell the scale and the zero point: a factor and a shift for each feature.

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
    made: dict[str, Node] = field(default_factory=dict)
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
            self.made[node.output] = node

    def graph(self) -> Graph:
        """All that was taken, without what nothing reads any more for that."""
        needed, nodes = set(self.whole.outputs), list[Node]()
        before = {tensor for node in self.whole.nodes for tensor in node.inputs}
        for node in reversed(self.made.values()):
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
            self._map(like, "mul", wide, self._placed(row, sums, like), output=like)
            return
        times = self._map(like, "mul", wide, self._placed(row, sums, like))
        shift = self._map(like, "mul", self._add(like, "cast", self._row(moved[0], sums, like), dtype="fp32"), row)
        placed = self._placed(self._map(like, "neg", shift), sums, like)
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
            self._map(node.output, "add", shift.of, self._placed(whole, shift.sums, node.output), output=node.output)
            del self.made[tensor]
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
        node = self.made.get(tensor)
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

    def _placed(self, row: str, sums: _Sums, like: str) -> str:
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
        self.made[name] = Node(primitive, inputs, name, attributes)
        self.reads.update(inputs)
        if like in self.guards:
            self.guards[name] = self.guards[like]
        return name

    def _constant(self, value: Any) -> str:
        name = free_name("bias", self.types)
        self.constants[name] = np.ascontiguousarray(value, np.float32)
        self.types[name] = TensorType(self.constants[name].shape, "fp32")
        return name
