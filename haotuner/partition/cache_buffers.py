"""Buffers of caches: past and present keys in the same memory, which has a capacity of rows.

A caller may hand the same buffer in and out (ONNX Runtime calls this ``past_present_share_buffer``). Then the new rows
alone are copied. Every reader of a cache takes the strides of the buffer: kernels of ops take strides, and generated loops
see the capacity as an extent of the cache. Without a buffer the capacity is the number of rows that are there.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from haotuner.graph.extents import Extent, dimension, product, same
from haotuner.graph.graph import Graph, Node
from haotuner.graph.types import TensorType
from haotuner.partition.greedy_fusion import Alias, Loops, Specialization, Step
from haotuner.partition.key_caches import Append
from haotuner.partition.products import Product, View

CAPACITY = "capacity_of_caches"  # the dimension of generated loops instead of the axis that grows
ROWS = " rows"  # behind the name of a cache: the rows that are there


@dataclass(frozen=True, slots=True)
class CacheBuffers:
    """Caches that may lie in buffers: all have ``past`` rows before a call and ``present`` behind it.

    ``axes``: of each cache, and of what is another shape of it, the axis that grows.
    """

    appends: tuple[Append, ...]
    past: Extent
    present: Extent
    axes: Mapping[str, int]

    def reads(self, graph: Graph) -> bool:
        """True if a group reads a cache that may lie in a buffer."""
        return any(name in self.axes for name in graph.inputs)

    def pitched(self, graph: Graph) -> Graph:
        """The group with reads of rows of buffers instead of caches."""
        read = [name for name in graph.inputs if name in self.axes]
        if not read:
            return graph
        types, nodes = dict(graph.types), list[Node]()
        for name in read:
            kind, axis = types[name], self.axes[name]
            bounds = {"axes": (axis,), "starts": (0,), "stops": (kind.shape[axis],), "steps": (1,)}
            buffer_shape = (*kind.shape[:axis], dimension(CAPACITY), *kind.shape[axis + 1 :])
            types[name], types[name + ROWS] = TensorType(buffer_shape, kind.dtype), kind
            nodes.append(Node("slice", (name,), name + ROWS, bounds))
        renamed = {name: name + ROWS for name in read}
        nodes += [replace(node, inputs=tuple(renamed.get(name, name) for name in node.inputs)) for node in graph.nodes]
        return replace(graph, types=types, nodes=tuple(nodes))


def cache_buffers(graph: Graph, ways: Sequence[Specialization]) -> CacheBuffers | None:
    """Caches of a model whose steps can all read them from buffers; None where there are none."""
    appends_by_way = [{step.output: step for step in way.steps if isinstance(step, Append)} for way in ways]
    first, *others = appends_by_way
    appends = {name: step for name, step in first.items() if all(name in way for way in others)}
    extents = {
        name: (graph.types[step.past].shape[step.axis], graph.types[name].shape[step.axis]) for name, step in appends.items()
    }
    axes: dict[str, dict[str, int]] = {}
    for name, step in appends.items():
        alike = all(same(*pair) for pair in zip(extents[name], next(iter(extents.values())), strict=True))
        read = ((way.graph or graph, step) for way in ways for step in way.steps)
        grown_axes = _axes(graph, read, appends[name]) if alike else None
        if grown_axes is not None:
            axes[name] = grown_axes
    if not axes:
        return None
    past, present = extents[next(iter(axes))]
    axis_by_tensor = {tensor: axis for grown_axes in axes.values() for tensor, axis in grown_axes.items()}
    return CacheBuffers(tuple(appends[name] for name in axes), past, present, axis_by_tensor)


def _axes(graph: Graph, steps: Iterable[tuple[Graph, Step]], cache: Append) -> dict[str, int] | None:
    """The axis that grows, of the cache and of its other shapes; None where a step cannot read it at strides."""
    cache_shape = graph.types[cache.output].shape
    result = {cache.output: cache.axis}
    for own, step in steps:
        if isinstance(step, Alias):
            axis = _axis_that_grows(own.types[step.tensor].shape, cache_shape, cache.axis) if step.of in result else 0
            if axis is None:
                return None
            if step.of in result:
                result[step.tensor] = axis
        elif isinstance(step, Product):
            plain = [*step.passed.values(), *step.rows.values()]
            views = _views(step)
            if views is None:
                plain, views = list(step.reads), []
            shapes = [view.shape or own.types[view.tensor].shape for view in views if view.tensor in result]
            grown = [_axis_that_grows(shape, cache_shape, cache.axis) for shape in shapes]
            if None in grown or any(name in result for name in plain):
                return None
        elif not isinstance(step, Loops) and any(name in result for name in step.reads):
            return None
    return result


def _views(step: Product) -> list[View] | None:
    """The operands of a kernel that takes strides; None of a kernel that takes none."""
    if step.kind == "online":
        return list(step.views.values())
    return [step.x, step.w] if step.kind == "product" and step.w is not None else None


def _axis_that_grows(shape: Sequence[Extent], cache_shape: Sequence[Extent], axis: int) -> int | None:
    """The axis of another shape of the same memory that is ``axis`` of ``whole``, with as much behind it; None: none is."""
    inner = product(cache_shape[axis + 1 :])
    for index, extent in enumerate(shape):
        if same(extent, cache_shape[axis]) and same(product(shape[index + 1 :]), inner):
            return index
    return None
