"""Expressions of a model graph's primitives: products and sums, with the layouts that they read through.

Tensors that other primitives make are what an expression reads.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod

import numpy as np

from haotuner.derive.affine import Affine, divided, iterator, number, remainder
from haotuner.derive.expression import Body, Loop, Number, Read, Scope, Tensor, apply, fresh
from haotuner.derive.rules import inlined
from haotuner.errors import UsageError
from haotuner.graph.extents import Extent, canonical, is_symbolic, same
from haotuner.graph.extents import product as elements
from haotuner.graph.graph import Graph, Node


def expression_of(graph: Graph, output: str, *, functions: bool = False) -> Scope:
    """The expression of a tensor: its product or sum of tensors behind layouts; ``functions``: and behind functions.

    UsageError where it is no sum of products, or in whole numbers or booleans.
    """
    return _Reader(graph, functions).scope(output)


def part_of(graph: Graph, tensor: str, inputs: Sequence[str]) -> Graph:
    """The primitives through which a tensor comes of these, or of constants."""
    made = {node.output: node for node in graph.nodes}
    names, waiting = set[str](), [tensor]
    while waiting:
        name = waiting.pop()
        if name in made and name not in inputs and name not in names:
            names.add(name)
            waiting.extend(made[name].inputs)
    nodes = tuple(node for node in graph.nodes if node.output in names)
    return Graph(tuple(inputs), (tensor,), nodes, graph.types, graph.constants)


class _Reader:
    """Walks from a tensor towards the inputs."""

    def __init__(self, graph: Graph, functions: bool) -> None:
        self.graph, self.functions = graph, functions
        self.producers = {node.output: node for node in graph.nodes}
        self.iterator_names: set[str] = set(graph.dimensions)

    def scope(self, output: str) -> Scope:
        kind = self.graph.types.get(output)
        if kind is None:
            raise UsageError(f"the model has no tensor {output!r}")
        if kind.dtype not in ("fp32", "fp64"):
            raise UsageError(f"tensor {output!r} is {kind}; expressions of real numbers alone are derived from")
        node = self.producers.get(output)
        if node is None:
            raise UsageError(f"tensor {output!r} is not computed; name one that a node makes")
        axes = self.loops(kind.shape)
        return _bare(inlined(Scope(axes, (), self.node_element(node, [iterator(loop.name) for loop in axes], walks=True))))

    def loops(self, shape: Sequence[Extent], letters: str = "") -> tuple[Loop, ...]:
        result = []
        for at, extent in enumerate(shape):
            stem = letters[at] if letters else "i"
            name = stem if letters and stem not in self.iterator_names else fresh(stem, self.iterator_names)
            self.iterator_names.add(name)
            result.append(Loop(name, 0, extent))
        return tuple(result)

    def value(self, tensor: str, index: Sequence[Affine]) -> Body:
        """Element of a tensor at an index that is inside of it."""
        node = self.producers.get(tensor)
        if node is not None and self.graph.types[tensor].dtype in ("fp32", "fp64"):
            try:
                return self.node_element(node, index, walks=self.functions)
            except UsageError:
                pass  # it is what the expression reads
        constant = self.graph.constants.get(tensor)
        if constant is not None and np.asarray(constant).size == 1:
            return Number(float(np.asarray(constant).reshape(())))
        return Read(Tensor(tensor, tuple(self.graph.types[tensor].shape), constant is not None), tuple(index))

    def around(self, tensor: str, index: Sequence[Affine]) -> Body:
        """Element of a tensor, 0 outside of it."""
        loops = self.loops(self.graph.types[tensor].shape)
        inner = self.value(tensor, [iterator(loop.name) for loop in loops])
        if (
            isinstance(inner, Read)
            and isinstance(inner.source, Tensor)
            and inner.index == tuple(iterator(loop.name) for loop in loops)
        ):
            return Read(inner.source, tuple(index))
        return Read(Scope(loops, (), inner), tuple(index))

    def node_element(self, node: Node, index: Sequence[Affine], *, walks: bool) -> Body:
        a, shape = node.attributes, self.graph.types[node.output].shape
        if node.primitive in _LAYOUTS:
            return _LAYOUTS[node.primitive](self, node, index)
        if walks and node.primitive == "contract":
            labels = a["labels"].partition("->")
            letters = list(dict.fromkeys(labels[0].replace(",", "")))
            extents = {
                letter: extent
                for labels_, name in zip(labels[0].split(","), node.inputs, strict=True)
                for letter, extent in zip(labels_, self.graph.types[name].shape, strict=True)
            }
            loops = dict(zip(letters, self.loops([extents[item] for item in letters], "".join(letters)), strict=True))
            parts = [
                self.value(name, [iterator(loops[item].name) for item in labels_])
                for labels_, name in zip(labels[0].split(","), node.inputs, strict=True)
            ]
            sums = tuple(loops[item] for item in letters if item not in labels[2])
            return Read(Scope(tuple(loops[item] for item in labels[2]), sums, apply("mul", *parts)), tuple(index))
        if walks and node.primitive == "reduce" and a["how"] == "sum":
            inner_shape = self.graph.types[node.inputs[0]].shape
            axes = {axis % len(inner_shape) for axis in a["axes"]}
            loops_ = self.loops(inner_shape)
            outer = [e for at, e in enumerate(index) if not (a.get("keepdims", False) and at in axes)]
            spatial = tuple(loop for at, loop in enumerate(loops_) if at not in axes)
            body = self.value(node.inputs[0], [iterator(loop.name) for loop in loops_])
            return Read(Scope(spatial, tuple(loops_[at] for at in sorted(axes)), body), tuple(outer))
        if walks and node.primitive == "map":
            parts = [self.value(name, _narrow(index, self.graph.types[name].shape)) for name in node.inputs]
            return apply(a["function"], *parts)
        raise UsageError(f"{node.primitive} of {node.output!r} (with {shape}) is no sum of products")


def _bare(scope: Scope) -> Scope:
    """The nest that another one reads all of, as it lies."""
    if not isinstance(scope.body, Read) or scope.sums or not isinstance(scope.body.source, Scope):
        return scope
    inner, as_it_lies = scope.body.source, tuple(iterator(loop.name) for loop in scope.spatial)
    return inner if scope.body.index == as_it_lies and inner.box == scope.box else scope


def _narrow(index: Sequence[Affine], shape: Sequence[Extent]) -> list[Affine]:
    """An index of a broadcast tensor as one of the tensor."""
    behind = index[len(index) - len(shape) :]
    return [Affine() if extent == 1 else e for e, extent in zip(behind, shape, strict=True)]


def _transpose(r: _Reader, node: Node, index: Sequence[Affine]) -> Body:
    order = list(node.attributes["order"])
    return r.value(node.inputs[0], [index[order.index(axis)] for axis in range(len(order))])


def _broadcast(r: _Reader, node: Node, index: Sequence[Affine]) -> Body:
    return r.value(node.inputs[0], _narrow(index, r.graph.types[node.inputs[0]].shape))


def _slice(r: _Reader, node: Node, index: Sequence[Affine]) -> Body:
    a, result = node.attributes, list(index)
    for axis, start, step in zip(a["axes"], a["starts"], a["steps"], strict=True):
        result[axis] = index[axis] * step + number(start)
    return r.value(node.inputs[0], result)


def _pad(r: _Reader, node: Node, index: Sequence[Affine]) -> Body:
    a = node.attributes
    if a["mode"] != "constant" or a.get("value", 0) != 0:
        raise UsageError(f"pad of {node.output!r} is not by zeros")
    return r.around(node.inputs[0], [e - number(before) for e, before in zip(index, a["before"], strict=True)])


def _concat(r: _Reader, node: Node, index: Sequence[Affine]) -> Body:
    axis, parts, start = node.attributes["axis"] % len(index), [], 0
    for name in node.inputs:
        moved = [e - number(start) if at == axis else e for at, e in enumerate(index)]
        parts.append(r.around(name, moved))
        start = canonical(start + r.graph.types[name].shape[axis])
    return apply("add", *parts)


def _window(r: _Reader, node: Node, index: Sequence[Affine]) -> Body:
    a, rank = node.attributes, len(r.graph.types[node.inputs[0]].shape)
    result = list(index[:rank])
    for at, (axis, stride, dilation) in enumerate(zip(a["axes"], a["strides"], a["dilations"], strict=True)):
        result[axis] = index[axis] * stride + index[rank + at] * dilation
    return r.value(node.inputs[0], result)


def _reshape(r: _Reader, node: Node, index: Sequence[Affine]) -> Body:
    """Runs of axes of equal size before and after, each counted through; sizes inside a run must be numbers."""
    before, after = r.graph.types[node.inputs[0]].shape, r.graph.types[node.output].shape
    ranges = {name: (0, extent) for e, extent in zip(index, after, strict=True) for name in e.names if e == iterator(name)}
    result: list[Affine] = []
    at = 0
    while len(result) < len(before):
        run, other_run = [before[len(result)]], list[Extent]()
        first = at
        while not (other_run or run == [1]) or not same(elements(run), elements(other_run or [1])):
            grows = isinstance(elements(run), int) and isinstance(elements(other_run), int)
            if at < len(after) and (not grows or elements(other_run) < elements(run) or not other_run):
                other_run.append(after[at])
                at += 1
            elif len(result) + len(run) < len(before):
                run.append(before[len(result) + len(run)])
            else:
                raise UsageError(f"reshape of {node.output!r} has no runs of equal size")
        if len(run) == len(other_run) == 1:
            result.append(index[first])
            continue
        if any(is_symbolic(extent) for extent in (*run[1:], *other_run[1:])):
            raise UsageError(f"reshape of {node.output!r} counts through sizes that are not fixed")
        flat = Affine()
        for e, extent in zip(index[first:at], other_run, strict=True):
            flat = (flat * extent if not is_symbolic(extent) else flat) + e
        for position in range(len(run)):
            size = prod(int(extent) for extent in run[position + 1 :])
            part = divided(flat, size, ranges)
            result.append(part if position == 0 else remainder(part, int(run[position]), ranges))
    return r.value(node.inputs[0], result)


_LAYOUTS: Mapping[str, Callable[[_Reader, Node, Sequence[Affine]], Body]] = {
    "transpose": _transpose, "broadcast": _broadcast, "slice": _slice, "pad": _pad, "concat": _concat, "window": _window,
    "reshape": _reshape,
}  # fmt: skip
