"""A graph some of whose images have channels last: each in either layout or both, turned where it is wanted otherwise."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, Literal, TypeAlias

from haotuner.graph.channels_last import Image, Relayout, relayout, with_channels_last
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import TensorType

Place: TypeAlias = tuple[str, bool]  # a tensor, and whether it lies with channels last
# How a tensor comes to lie somewhere: as its primitive makes it, with channels last, of the other layout, from outside.
How: TypeAlias = Literal["first", "last", "turn", "given"]


@dataclass(slots=True)
class _Written:
    """A graph in the making."""

    types: dict[str, TensorType]
    constants: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)


class LayoutCandidates:
    """Graphs of the primitives of one, by the layouts of its ``images``."""

    def __init__(self, graph: Graph, images: Mapping[str, Image]) -> None:
        self.graph, self.images = graph, images

    @cached_property
    def rules(self) -> dict[str, Relayout]:
        """By what they make the primitives that can read channels last."""
        result = {node.output: relayout(node, self.graph, self.images) for node in self.graph.nodes}
        return {name: rule for name, rule in result.items() if rule is not None}

    def called(self, image: Place) -> str:
        """The name of a tensor where it lies."""
        name, last = image
        return self._free(f"{name}@last") if last else name

    def _free(self, name: str) -> str:
        """A name that no tensor of the graph has."""
        while name in self.graph.types:
            name += "'"
        return name

    def written(
        self, outputs: Sequence[Place], how: Callable[[Place], How], *, inputs: Sequence[str] | None = None
    ) -> Graph:
        """The graph of these outputs. ``how``: where tensors come from; ``inputs``: of the graph, else what is given."""
        ways = self._ways(outputs, how)
        images = [image for image, way in ways.items() if way == "given"]
        made = _Written({name: self.graph.types[name] for name in inputs or ()}, {})
        for image in images:
            self._typed(made, image)
        for image_ in sorted(ways, key=lambda item: (self._order[item[0]], ways[item] == "turn")):
            if ways[image_] == "turn":
                self._turn(made, image_)
            elif ways[image_] != "given":
                self._compute(made, self._made[image_[0]], image_, ways[image_])
        names = [self.called(item) for item in images] if inputs is None else inputs
        return Graph(tuple(names), tuple(map(self.called, outputs)), tuple(made.nodes), made.types, made.constants)

    @cached_property
    def _made(self) -> dict[str, Node]:
        return {node.output: node for node in self.graph.nodes}

    @cached_property
    def _order(self) -> dict[str, int]:
        """Places of tensors, those that no primitive makes first."""
        sources = [name for name in self.graph.types if name not in self._made and name not in self.graph.constants]
        return {name: index for index, name in enumerate([*sources, *self._made])}

    def _ways(self, outputs: Iterable[Place], how: Callable[[Place], How]) -> dict[Place, How]:
        """Choice for each tensor on the way to the wanted ones, from the last one back."""
        result, waiting = dict[Place, How](), [(-self._order[name], name, last) for name, last in outputs]
        heapify(waiting)
        while waiting:
            _, name, last = heappop(waiting)
            if (name, last) in result:
                continue
            way = result[name, last] = how((name, last))
            reads = [(name, not last)] if way == "turn" else self._reads(name, way)
            for item, so in reads:
                heappush(waiting, (-self._order[item], item, so))
        return result

    def _reads(self, name: str, way: How) -> list[Place]:
        """The tensors that a way of making one reads, but constants and the other layout."""
        if way not in ("first", "last"):
            return []
        node = self._made[name]
        places = zip(node.inputs, self._rule(node, way).reads, strict=True)
        return [image for image in places if image[0] not in self.graph.constants]

    def _rule(self, node: Node, way: How) -> Relayout:
        """A primitive as it was, or on images with channels last."""
        return (
            self.rules[node.output] if way == "last" else Relayout(node.attributes, (False,) * len(node.inputs), last=False)
        )

    def _typed(self, made: _Written, image: Place) -> str:
        """The name of a place, with its type."""
        name, called = image[0], self.called(image)
        kind = self.graph.types[name]
        if image[1]:
            order = self.images[name].order(kind.rank)
            kind = TensorType(tuple(kind.shape[axis] for axis in order), kind.dtype)
        made.types[called] = kind
        return called

    def _turn(self, made: _Written, image: Place) -> None:
        """A tensor of the same in the other layout."""
        name, last = image
        order = self.images[name].order(self.graph.types[name].rank)
        if not last:
            order = tuple(order.index(axis) for axis in range(len(order)))
        made.nodes.append(_reordered(made, self.called((name, not last)), self._typed(made, image), order))

    def _compute(self, made: _Written, node: Node, image: Place, way: How) -> None:
        """A primitive, with the constants that it reads."""
        rule = self._rule(node, way)
        reads = [
            self._constant(made, name, node.output if last else None)
            if name in self.graph.constants
            else self.called((name, last))
            for name, last in zip(node.inputs, rule.reads, strict=True)
        ]
        called = self._typed(made, image)
        if way == "last" and node.primitive == "transpose":
            made.nodes.append(_reordered(made, reads[0], called, rule.attributes["order"]))
        else:
            made.nodes.append(Node(node.primitive, tuple(reads), called, rule.attributes))

    def _constant(self, made: _Written, name: str, beside: str | None) -> str:
        """A constant as it was, or turned as the image beside it."""
        value, called = self.graph.constants[name], name
        if beside is not None:
            rank = self.graph.types[beside].rank
            value = with_channels_last(value, self.images[beside], rank)
            called = self._free(f"{name}@{''.join(map(str, self.images[beside].order(rank)))}")
        made.constants[called], made.types[called] = value, TensorType(value.shape, self.graph.types[name].dtype)
        return called


def _reordered(made: _Written, read: str, called: str, order: Sequence[int]) -> Node:
    """A tensor with its axes in another order; a reshape, which costs nothing, where no axis of several elements moves.

    That of a reshape is one of what was reshaped, which lies in memory.
    """
    several = [axis for axis in order if made.types[read].shape[axis] != 1]
    if several == sorted(several):
        shaped = {node.output: node.inputs[0] for node in made.nodes if node.primitive == "reshape"}
        while read in shaped:
            read = shaped[read]
        return Node("reshape", (read,), called, {"shape": made.types[called].shape})
    return Node("transpose", (read,), called, {"order": tuple(order)})
