"""Images with channels last: which tensors of a graph are images, and each primitive on images whose axes lie otherwise.

An image with channels first has the axes (batch, channels, sides, rest): two axes of channels where they are in groups, a
rest where windows slide. With channels last it is another tensor: (batch, sides, channels, rest).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from haotuner.graph.extents import same
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import axis_of

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
            if node.output not in result and (image := _made(node, graph, result)) is not None:
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


def _made(node: Node, graph: Graph, result: Mapping[str, Image]) -> Image | None:
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
