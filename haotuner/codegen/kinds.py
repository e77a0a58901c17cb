"""The graph of an op kind: the one written down for it, or one made of its formula."""

from __future__ import annotations

from haotuner.codegen.attention import attention
from haotuner.codegen.windows import GRAPHS as WINDOWS
from haotuner.graph.decompositions import extent_value
from haotuner.graph.extents import Extent, dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.group import graph_named
from haotuner.ops.formula import Formula, Load, Number, Reduce, Size
from haotuner.ops.groups import GROUPS
from haotuner.ops.kind import OpKind, Options

GRAPHS = {**WINDOWS, "attention": attention}


def has_graph(kind: OpKind) -> bool:
    """True if a kind says by steps what it computes, on operands of one layout."""
    known = kind.formula is not None or kind.name in GRAPHS or kind.name in GROUPS
    return known and all(len(o.layouts) == 1 for o in kind.operands)


def graph_of(kind: OpKind, options: Options) -> Graph:
    """The graph of a kind with these options (every one); inputs are named as the operands, dimensions as the axes."""
    own = kind.variant(options) if kind.variant is not None else kind
    if kind.name in GROUPS:
        return graph_named(kind.name)
    if kind.name in GRAPHS:
        return GRAPHS[kind.name](options)
    if own.formula is None:
        raise ValueError(f"op kind {kind.name} has neither a graph nor a formula to make programs from")
    return _Formula(own).graph(own.formula)


class _Formula:
    """Every tensor gets all axes of the kind, of extent 1 where it has none."""

    def __init__(self, kind: OpKind) -> None:
        self.kind, self.builder = kind, GraphBuilder()
        self.out = kind.output.axes({})
        self.order = tuple(dict.fromkeys([*self.out, *kind.axes]))
        self._known: dict[Formula, str] = {}

    def graph(self, formula: Formula) -> Graph:
        """The kind's graph."""
        for operand in self.kind.inputs:
            shape = [dimension(axis) for axis in operand.axes({})]
            self.builder.input(operand.name, shape, operand.dtype or "fp32")
        value = self._made(formula)
        extents = tuple(dimension(axis) for axis in self.out)
        whole: tuple[Extent, ...] = (*extents, *(1 for _ in self.order[len(self.out) :]))
        if self.builder.types[value].shape != whole:
            value = self.builder.add("broadcast", value, shape=whole)
        if len(whole) > len(extents):
            value = self.builder.add("reshape", value, shape=extents)
        return self.builder.finish(value)

    def _made(self, part: Formula) -> str:
        if part not in self._known:
            self._known[part] = self._add(part)
        return self._known[part]

    def _add(self, part: Formula) -> str:
        g = self.builder
        if isinstance(part, Number):
            return g.constant(part.value, "fp32")
        if isinstance(part, Size):
            return extent_value(g, dimension(part.axis), "fp32")
        if isinstance(part, Load):
            return self._spread(part.operand)
        if isinstance(part, Reduce):
            return g.add("reduce", self._made(part.of), how=part.how, axes=(self.order.index(part.axis),), keepdims=True)
        return g.map(part.function, *(self._made(argument) for argument in part.arguments))

    def _spread(self, operand: str) -> str:
        g = self.builder
        axes = next(argument for argument in self.kind.inputs if argument.name == operand).axes({})
        order = sorted(range(len(axes)), key=lambda index: self.order.index(axes[index]))
        moved = operand if order == list(range(len(axes))) else g.add("transpose", operand, order=tuple(order))
        shape = tuple(dimension(axis) if axis in axes else 1 for axis in self.order)
        return moved if g.types[moved].shape == shape else g.add("reshape", moved, shape=shape)
