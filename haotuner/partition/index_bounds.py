"""Bounds of indices among a graph's inputs: how many rows each may choose from, through views of them.

Strided views: which elements of an input a tensor holds that slices, reshapes and the like made, without arithmetic.

Inputs of a graph that choose rows, through whatever moves them on the way: what a drawn request may hold follows.

ONNX calls an index outside of -n..n-1 an error. What the inputs hold is asked once a call, before any step runs. Indices
that the graph computes are not asked: loops keep these inside of the tensor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from haotuner.graph.extents import Extent, canonical, product, same
from haotuner.graph.graph import Graph, Node
from haotuner.graph.layouts import sliced_extent


@dataclass(frozen=True, slots=True)
class View:
    """Elements ``first`` + sum of i * stride, i below each axis's extent, of a flat input; ``axes``: (extent, stride) each.

    ``ordered``: whether the axes are those of the tensor. Where not, the elements are known, and not where each lies.
    """

    input: str
    first: Extent
    axes: tuple[tuple[Extent, Extent], ...]
    ordered: bool = True

    def merged(self) -> View:
        """View of the same elements in as few axes as strides allow: none of one element, none that repeats elements."""
        axes: list[tuple[Extent, Extent]] = []
        for extent, stride in self.axes:
            if same(extent, 1) or same(stride, 0):
                continue
            if axes and same(axes[-1][1], canonical(extent * stride)):
                axes[-1] = (canonical(axes[-1][0] * extent), stride)
            else:
                axes.append((extent, stride))
        return replace(self, axes=tuple(axes), ordered=False)


def whole(name: str, shape: Sequence[Extent]) -> View:
    """All elements of an input."""
    return View(name, 0, _contiguous(shape, 1))


def views(graph: Graph, made: Mapping[str, Node], tensor: str) -> list[View]:
    """Of what a tensor holds, the elements of inputs of whole numbers; what is computed or constant is left out."""
    if tensor in graph.inputs:
        kind = graph.types[tensor]
        return [whole(tensor, kind.shape)] if "int" in kind.dtype else []
    node = made.get(tensor)
    if node is None or node.primitive not in ("cast", *_MOVES):
        return []
    result = [view for name in node.inputs[: None if node.primitive == "concat" else 1] for view in views(graph, made, name)]
    if node.primitive in ("cast", "concat"):
        return result
    return [moved for view in result for moved in _MOVES[node.primitive](view, node, graph)]


def _contiguous(shape: Sequence[Extent], stride: Extent) -> tuple[tuple[Extent, Extent], ...]:
    return tuple((extent, canonical(stride * product(shape[axis + 1 :]))) for axis, extent in enumerate(shape))


def _reshaped(view: View, node: Node, graph: Graph) -> list[View]:
    shape, before = node.attributes["shape"], graph.types[node.inputs[0]].shape
    if view.ordered and _covers(view, before):
        wide = [axis for axis in view.axes if not same(axis[0], 1)]
        if [str(extent) for extent, _ in wide] == [str(extent) for extent in shape if not same(extent, 1)]:
            rest = iter(wide)
            return [replace(view, axes=tuple((1, 0) if same(extent, 1) else next(rest) for extent in shape))]
        merged = view.merged().axes
        if len(merged) <= 1:
            return [replace(view, axes=_contiguous(shape, merged[0][1] if merged else 0))]
    return [view.merged()]


def _covers(view: View, shape: Sequence[Extent]) -> bool:
    """True if a view is all of a tensor, no part that a concat joined to others."""
    return all(same(extent, own) for (extent, _), own in zip(view.axes, shape, strict=True))


def _transposed(view: View, node: Node, graph: Graph) -> list[View]:
    return [replace(view, axes=tuple(view.axes[axis] for axis in node.attributes["order"])) if view.ordered else view]


def _broadcast(view: View, node: Node, graph: Graph) -> list[View]:
    if not view.ordered:
        return [view]
    shape = node.attributes["shape"]
    axes = [(extent, 0) for extent in shape[: len(shape) - len(view.axes)]]
    own, behind = graph.types[node.inputs[0]].shape, shape[len(axes) :]
    for axis, item, wide in zip(view.axes, own, behind, strict=True):
        axes.append(axis if same(item, wide) else (wide, 0))
    return [replace(view, axes=tuple(axes))]


def _sliced(view: View, node: Node, graph: Graph) -> list[View]:
    shape = graph.types[node.inputs[0]].shape
    for axis, start, stop, step in zip(*(node.attributes[key] for key in ("axes", "starts", "stops", "steps")), strict=True):
        axis %= len(shape)
        if not view.ordered or step < 0 or not same(view.axes[axis][0], shape[axis]):
            return []
        view = _part(view, axis, start, sliced_extent(start, stop, step), step)
    return [view]


def _part(view: View, axis: int, start: Extent, extent: Extent, step: int) -> View:
    stride = view.axes[axis][1]
    axes = (*view.axes[:axis], (extent, canonical(stride * step)), *view.axes[axis + 1 :])
    return replace(view, first=canonical(view.first + start * stride), axes=axes)


def _chosen(view: View, node: Node, graph: Graph) -> list[View]:
    """A gather by constants, each of which is a part of its own."""
    shape = graph.types[node.inputs[0]].shape
    stored, axis = graph.constants.get(node.inputs[1]), node.attributes["axis"] % len(shape)
    extent = shape[axis]
    if stored is None or not view.ordered or not same(view.axes[axis][0], extent) or np.size(stored) > _MOST_PARTS:
        return []
    starts = [canonical(extent + int(index)) if index < 0 else int(index) for index in np.unique(stored)]
    parts = [_part(view, axis, start, 1, 1) for start in starts]
    if np.ndim(stored) == 0:
        return [replace(part, axes=(*part.axes[:axis], *part.axes[axis + 1 :])) for part in parts]
    if np.size(stored) == 1:
        ones = ((1, 0),) * np.ndim(stored)
        return [replace(part, axes=(*part.axes[:axis], *ones, *part.axes[axis + 1 :])) for part in parts]
    return [part.merged() for part in parts]


_MOST_PARTS = 16  # constants of one gather: each is checked by itself at every request
_MOVES: Mapping[str, Callable[[View, Node, Graph], list[View]]] = {
    "reshape": _reshaped, "transpose": _transposed, "broadcast": _broadcast, "slice": _sliced, "gather": _chosen,
    "concat": lambda view, node, graph: [view],
}  # fmt: skip


_LAYOUT_PRIMITIVES = frozenset({"broadcast", "cast", "concat", "pad", "reshape", "slice", "transpose", "window"})


def index_sources(graph: Graph) -> dict[str, list[Extent]]:
    """Of each input of whole numbers that gathers or scatters read as indices: how many rows each of these chooses from."""
    made = {node.output: node for node in graph.nodes}
    result: dict[str, dict[Extent, None]] = {}
    for node in graph.nodes:
        if node.primitive not in ("gather", "scatter"):
            continue
        extent = graph.types[node.inputs[0]].shape[node.attributes.get("axis", 0)]
        waiting, seen = [node.inputs[1]], set[str]()
        while waiting:
            tensor = waiting.pop()
            if tensor in seen:
                continue
            seen.add(tensor)
            if tensor in graph.inputs and "int" in graph.types[tensor].dtype:
                result.setdefault(tensor, {})[extent] = None
            elif tensor in made:
                waiting.extend(_moved(made[tensor].primitive, made[tensor].inputs, made[tensor].attributes.get("function")))
    return {name: list(extents) for name, extents in result.items()}


def _moved(primitive: str, inputs: tuple[str, ...], function: str | None) -> Iterator[str]:
    """The tensors whose elements a result holds as they are."""
    if primitive in _LAYOUT_PRIMITIVES:
        yield from inputs
    elif primitive == "gather":
        yield inputs[0]
    elif primitive == "scatter":
        yield from (inputs[0], inputs[2])
    elif primitive == "map" and function == "select":
        yield from inputs[1:]


@dataclass(frozen=True, slots=True)
class IndexBound:
    """Bound of indices: elements of ``view`` lie in -extent..extent-1; ``reader``: who asks it."""

    view: View
    extent: Extent
    reader: str

    @property
    def input(self) -> str:
        """The input's name."""
        return self.view.input


def index_bounds(graph: Graph) -> list[IndexBound]:
    """Bounds of whole numbers that are inputs, by gathers and scatters, in the order of the graph, each once."""
    finder = _BoundFinder(graph, {node.output: node for node in graph.nodes})
    result: dict[tuple[str, str], IndexBound] = {}
    for node in graph.nodes:
        if node.primitive in ("gather", "scatter"):
            for bound in finder.of(node):
                result.setdefault((str(bound.view), str(bound.extent)), bound)
    return list(result.values())


@dataclass(frozen=True, slots=True)
class _BoundFinder:
    graph: Graph
    producers: dict[str, Node]

    def of(self, node: Node) -> Iterator[IndexBound]:
        rows, places = node.inputs[0], node.inputs[1]
        extent = self.graph.types[rows].shape[node.attributes.get("axis", 0)]
        wraps = [(places, extent)]
        if not self._views(places):
            wraps = []
            most = self._most(places, wraps)
            if most is None or not same(canonical(most + 1), extent):
                return
        for tensor, rows_of in wraps:
            for view in self._views(tensor):
                table = f" of {rows}" if rows in self.graph.constants else ""  # a weight has the name that its author knows
                yield IndexBound(view.merged(), rows_of, node.output + table)

    def _views(self, tensor: str) -> list[View]:
        return views(self.graph, self.producers, tensor)

    def _most(self, tensor: str, wraps: list[tuple[str, Extent]]) -> Extent | None:
        """The largest place in a flat tensor, of indices in their axes; ``wraps`` gets these with their extents."""
        count = self._count(tensor)
        if count is not None:
            return count
        node = self.producers.get(tensor)
        if node is None:
            return None
        if node.primitive == "iota":
            return canonical(node.attributes["extent"] - 1)
        if node.primitive in ("cast", "reshape", "transpose", "broadcast"):
            return self._most(node.inputs[0], wraps)
        if node.primitive != "map":
            return None
        function = node.attributes["function"]
        if function == "select":
            extent = self._wrapped(node)
            if extent is None:
                return None
            wraps.append((node.inputs[2], extent))
            return canonical(extent - 1)
        if function not in ("add", "mul"):
            return None
        first, other = (self._most(operand, wraps) for operand in node.inputs)
        if first is None or other is None:
            return None
        return canonical(first + other if function == "add" else first * other)

    def _wrapped(self, node: Node) -> Extent | None:
        """The n of ``i + n if i < 0 else i``."""
        less, behind = self.producers.get(node.inputs[0]), self.producers.get(node.inputs[1])
        if less is None or behind is None or less.primitive != "map" or behind.primitive != "map":
            return None
        if less.attributes["function"] != "less" or behind.attributes["function"] != "add":
            return None
        if less.inputs[0] != node.inputs[2] or behind.inputs[0] != node.inputs[2] or self._count(less.inputs[1]) != 0:
            return None
        return self._count(behind.inputs[1])

    def _count(self, tensor: str) -> Extent | None:
        """The number that a tensor of sizes or a constant holds, the largest of several; None: it holds others."""
        if tensor in self.graph.constants:
            value = self.graph.constants[tensor]
            return int(value.max()) if value.size and value.dtype.kind in "iu" and value.min() >= 0 else None
        node = self.producers.get(tensor)
        if node is None or len(node.inputs) > 1:
            return None
        if node.primitive == "size":
            result: Extent = node.attributes["extent"]
            return result
        return self._count(node.inputs[0]) if node.primitive in ("cast", "reshape", "concat", "broadcast") else None
