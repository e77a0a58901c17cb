"""Images with channels last: primitives on them, and graphs whose images have either layout.

An image with channels first has the axes (batch, channels, sides, rest): two axes of channels where they are in groups, a
rest where windows slide. With channels last it is another tensor: (batch, sides, channels, rest).

A graph some of whose images have channels last: each in either layout or both, turned where it is wanted otherwise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from heapq import heapify, heappop, heappush
from typing import Any, Literal, TypeAlias

from haotuner.graph.extents import same
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import TensorType, axis_of

SWEEPS = 3  # forth and back over the graph; what is an image only by a longer way stays as it is


@dataclass(frozen=True, slots=True)
class Image:
    """Numbers of a tensor's axes of channels and of sides."""

    channels: int
    sides: int

    @property
    def axes(self) -> int:
        """Axes before the rest, the batch too."""
        return 1 + self.channels + self.sides

    def order(self, rank: int) -> tuple[int, ...]:
        """For each axis with channels last the axis that it is with channels first."""
        sides = range(1 + self.channels, self.axes)
        return (0, *sides, *range(1, 1 + self.channels), *range(self.axes, rank))


@dataclass(frozen=True, slots=True)
class Relayout:
    """A primitive on images with channels last. ``reads``: whether each input is one; ``last``: whether it makes one."""

    attributes: Mapping[str, Any]
    reads: tuple[bool, ...]
    last: bool


def images_of(graph: Graph, known: Mapping[str, Image]) -> dict[str, Image]:
    """The images of a graph by what primitives make of those that are known, and of what they are made."""
    result = {name: item for name, item in known.items() if name not in graph.constants}
    for _ in range(SWEEPS):
        before = len(result)
        for node in graph.nodes:
            if node.output not in result and (image := _image_of(node, graph, result)) is not None:
                result[node.output] = image
        for node in reversed(graph.nodes):
            for name in _sources(node, graph):
                if name not in result and node.output in result:
                    image = _source(node, graph, result[node.output])
                    if image is not None and name not in graph.constants:
                        result[name] = image
        if len(result) == before:
            break
    return result


_ALIKE = ("map", "cast", "pad", "slice", "concat", "window", "broadcast")  # an image where what they read is one


def _image_of(node: Node, graph: Graph, result: Mapping[str, Image]) -> Image | None:
    """The image that a primitive makes of images."""
    rank = graph.types[node.output].rank
    images = [result[tensor] for tensor in node.inputs if tensor in result and graph.types[tensor].rank <= rank]
    if node.primitive in _ALIKE:
        return images[0] if images and images[0].axes <= rank else None
    first = result.get(node.inputs[0]) if node.inputs else None
    if first is None:
        return None
    if node.primitive == "gather":
        return first if graph.types[node.inputs[1]].rank == 1 else None
    if node.primitive == "reduce":
        keepdims = node.attributes.get("keepdims", False) or min(_axes(node, graph)) >= first.axes
        return first if keepdims else None
    if node.primitive == "reshape":
        return _reshaped(graph, node.inputs[0], node.output, first)
    return _contracted(node, first) if node.primitive == "contract" else None


def _sources(node: Node, graph: Graph) -> Sequence[str]:
    """Inputs of a node that are images if its result is one."""
    rank = graph.types[node.output].rank
    if node.primitive in ("map", "concat"):
        return [tensor for tensor in node.inputs if graph.types[tensor].rank == rank]
    return node.inputs[:1] if node.primitive in ("cast", "pad", "slice", "window", "gather", "reshape", "reduce") else ()


def _source(node: Node, graph: Graph, image: Image) -> Image | None:
    if node.primitive == "reshape":
        return _reshaped(graph, node.output, node.inputs[0], image)
    return image if image.axes <= graph.types[node.inputs[0]].rank else None


def _axes(node: Node, graph: Graph) -> list[int]:
    return [axis_of(attribute, graph.types[node.inputs[0]].rank, node.primitive) for attribute in node.attributes["axes"]]


def _reshaped(graph: Graph, name: str, other: str, image: Image) -> Image | None:
    """The other image where a reshape parts or joins axes of channels alone."""
    before, after = graph.types[name].shape, graph.types[other].shape
    rest = before[1 + image.channels :]
    channels = len(after) - len(rest) - 1
    alike = channels >= 1 and all(
        same(a, b) for a, b in zip((before[0], *rest), (after[0], *after[1 + channels :]), strict=True)
    )
    return Image(channels, image.sides) if alike else None


def _contracted(node: Node, image: Image) -> Image | None:
    """The image of a convolution: the same batch and sides, features for channels."""
    read, out = _labels(node)[0][0], _labels(node)[1]
    sides = read[1 + image.channels : image.axes]
    at = out.find(sides)
    return Image(at - 1, image.sides) if out[:1] == read[0] and at > 1 and out.endswith(sides) else None


def _labels(node: Node) -> tuple[list[str], str]:
    read, _, out = node.attributes["labels"].partition("->")
    return read.split(","), out


def relayout(node: Node, graph: Graph, images: Mapping[str, Image]) -> Relayout | None:
    """The primitive on images with channels last; None where it has to read them as they were."""
    if not node.inputs:
        return None
    made, first = images.get(node.output), images.get(node.inputs[0])
    attributes = dict(node.attributes)
    if node.primitive in ("map", "cast", "concat"):
        return _element_wise(node, graph, images, made)
    if first is None:
        return None
    rank = graph.types[node.inputs[0]].rank
    order = first.order(rank)
    reads = (True, *(False for _ in node.inputs[1:]))
    if node.primitive == "reduce":
        axes = _axes(node, graph)
        attributes["axes"] = tuple(sorted(order.index(axis) for axis in axes))
        sides, keeps = set(range(1 + first.channels, first.axes)), node.attributes.get("keepdims", False)
        left = [axis for axis in order if keeps or axis not in axes]
        last = made is not None and tuple(map(sorted(left).index, left)) == made.order(len(left))
        return Relayout(attributes, reads, last) if last or sides <= set(axes) and not keeps else None
    if node.primitive == "contract":
        (read, *others), out = _labels(node)
        read = "".join(read[axis] for axis in order)
        if made is not None:
            out = "".join(out[axis] for axis in made.order(len(out)))
        attributes["labels"] = f"{','.join([read, *others])}->{out}"
        return Relayout(attributes, reads, made is not None)
    if node.primitive == "transpose":  # of what lies with channels last it may move nothing
        attributes["order"] = tuple(order.index(axis) for axis in node.attributes["order"])
        return Relayout(attributes, reads, last=False)
    if made is None or not _alike(node, graph, first, made):
        return None
    if node.primitive == "pad":
        attributes |= {side: tuple(node.attributes[side][axis] for axis in order) for side in ("before", "after")}
    elif node.primitive in ("slice", "window"):
        attributes["axes"] = tuple(order.index(axis) for axis in _axes(node, graph))
    elif node.primitive == "gather":
        attributes["axis"] = order.index(axis_of(node.attributes["axis"], rank, "gather"))
    elif node.primitive in ("reshape", "broadcast"):
        shape = tuple(node.attributes["shape"])
        attributes["shape"] = tuple(shape[axis] for axis in made.order(len(shape)))
    else:
        return None
    return Relayout(attributes, reads, last=True)


def _alike(node: Node, graph: Graph, first: Image, made: Image) -> bool:
    """True if channels are the same axes of what is read and made; what is known of both may come from two sides."""
    if node.primitive == "reshape":
        return _reshaped(graph, node.inputs[0], node.output, first) == made
    rank, after = graph.types[node.inputs[0]].rank, graph.types[node.output].rank
    return (rank == after or node.primitive == "window") and first.order(after) == made.order(after)


def _element_wise(node: Node, graph: Graph, images: Mapping[str, Image], made: Image | None) -> Relayout | None:
    """Relayout of an element-wise node; None if its inputs lie otherwise. Constants are turned as what they meet."""
    if made is None:
        return None
    rank, reads, attributes = graph.types[node.output].rank, list[bool](), dict(node.attributes)
    for name in node.inputs:
        kind, value = graph.types[name], graph.constants.get(name)
        one_number = all(extent == 1 for extent in kind.shape)
        if value is None and not one_number and (images.get(name) != made or kind.rank != rank):
            return None
        reads.append(images.get(name) == made and kind.rank == rank if value is None else not one_number)
    if node.primitive == "concat":
        if not all(reads):
            return None
        attributes["axis"] = made.order(rank).index(axis_of(node.attributes["axis"], rank, "concat"))
    return Relayout(attributes, tuple(reads), last=True)


def with_channels_last(value: Any, image: Image, rank: int) -> Any:
    """A constant as primitives on images of this rank meet it."""
    whole = value.reshape((1,) * (rank - value.ndim) + value.shape)
    return whole.transpose(image.order(rank))


def convolved_images(products: Iterable[tuple[str, str, int]]) -> dict[str, Image]:
    """Images that are known: of convolutions what they read and make, and their number of sides."""
    return {name: Image(1, sides) for read, made, sides in products for name in (read, made)}


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
                self._compute(made, self._producers[image_[0]], image_, ways[image_])
        names = [self.called(item) for item in images] if inputs is None else inputs
        return Graph(tuple(names), tuple(map(self.called, outputs)), tuple(made.nodes), made.types, made.constants)

    @cached_property
    def _producers(self) -> dict[str, Node]:
        return {node.output: node for node in self.graph.nodes}

    @cached_property
    def _order(self) -> dict[str, int]:
        """Places of tensors, those that no primitive makes first."""
        sources = [name for name in self.graph.types if name not in self._producers and name not in self.graph.constants]
        return {name: index for index, name in enumerate([*sources, *self._producers])}

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
        node = self._producers[name]
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
