"""The graph of an op kind: written down for attention, pools and resize, or made of its formula."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from haotuner.graph.decompositions import extent_value, softmax
from haotuner.graph.extents import Extent, dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.graph.group import graph_named
from haotuner.ops.attention import scale_of
from haotuner.ops.formula import Formula, Load, Number, Reduce, Size
from haotuner.ops.groups import GROUPS
from haotuner.ops.kind import OpKind, Options
from haotuner.ops.windows import IMAGE, pair


def attention(options: Options) -> Graph:
    """The graph with these options; ``d`` among them: the depth of a head, where it is known."""
    g = GraphBuilder()
    b, h, t, s = (dimension(axis) for axis in "bhts")
    outer = (b, h) if options.get("heads") == "apart" else (b,)
    ones, of = (1,) * len(outer), "bh"[: len(outer)]
    d = int(options["d"]) if "d" in options else dimension("d")
    q, k, v = (g.input(name, (*outer, rows, d)) for name, rows in (("q", t), ("k", s), ("v", s)))
    scores = g.add("contract", q, k, labels=f"{of}td,{of}sd->{of}ts")
    if isinstance(d, int) and scale_of(options, d) != 1.0:
        scores = g.map("mul", scores, scale_of(options, d))
    elif not isinstance(d, int) and options.get("scale", "sqrt") == "sqrt":
        scores = g.map("mul", scores, g.map("rsqrt", extent_value(g, d, "fp32")))
    if options.get("mask", "none") == "keys":
        mask = g.input("mask", (b, s))
        scores = g.map("add", scores, g.add("reshape", mask, shape=(b, *ones, s)))
    elif options.get("mask", "none") == "full":
        scores = g.map("add", scores, g.input("mask", (*outer, t, s)))
    if options.get("causal", "none") != "none":
        last = g.add("iota", extent=t)
        if options["causal"] == "end":
            last = g.map("add", last, g.add("size", extent=s - t, dtype="int64"))
        key = g.add("reshape", g.add("iota", extent=s), shape=(*ones, 1, s))
        seen = g.map("less_equal", key, g.add("reshape", last, shape=(*ones, t, 1)))
        scores = g.map("select", seen, scores, float("-inf"))
    return g.finish(g.add("contract", softmax(g, scores), v, labels=f"{of}ts,{of}sd->{of}td"))


def _pool(options: Options, *, how: str, fill: float) -> Graph:
    g = GraphBuilder()
    x = g.input("x", [dimension(axis) for axis in IMAGE])
    (kh, kw), (sh, sw), (ph, pw) = (pair(options[name]) for name in ("kernel", "stride", "pad"))
    if ph or pw:
        x = g.add("pad", x, before=(0, 0, ph, pw), after=(0, 0, ph, pw), mode="constant", value=fill)
    windows = g.add("window", x, axes=(2, 3), sizes=(kh, kw), strides=(sh, sw), dilations=(1, 1))
    result = g.add("reduce", windows, how=how, axes=(4, 5), keepdims=False)
    return g.finish(result if how == "max" else g.map("div", result, float(kh * kw)))


def _resize(options: Options) -> Graph:
    g = GraphBuilder()
    extents, scale = [dimension(axis) for axis in IMAGE], int(options["scale"])
    x = g.input("x", extents)
    for axis in (2, 3):
        x = (_nearest if options["mode"] == "nearest" else _linear)(g, x, axis, scale)
    return g.finish(x)


def _nearest(g: GraphBuilder, x: str, axis: int, scale: int) -> str:
    """Every element ``scale`` times: an axis more, broadcast and merged."""
    shape = g.types[x].shape
    apart = g.add("reshape", x, shape=(*shape[: axis + 1], 1, *shape[axis + 1 :]))
    wide = g.add("broadcast", apart, shape=(*shape[: axis + 1], scale, *shape[axis + 1 :]))
    return g.add("reshape", wide, shape=(*shape[:axis], shape[axis] * scale, *shape[axis + 1 :]))


def _linear(g: GraphBuilder, x: str, axis: int, scale: int) -> str:
    """Between the neighbours of (i + 1/2) / scale - 1/2, which lie inside the axis."""
    shape = g.types[x].shape
    position = g.add("iota", extent=shape[axis] * scale, dtype="fp32")
    at = g.map("max", g.map("sub", g.map("div", g.map("add", position, 0.5), float(scale)), 0.5), 0.0)
    low = g.map("floor", at)
    part = g.add("reshape", g.map("sub", at, low), shape=(shape[axis] * scale, *[1] * (3 - axis)))
    first = g.add("cast", low, dtype="int64")
    last = g.add("size", extent=shape[axis] - 1, dtype="int64")
    second = g.map("min", g.map("add", first, 1), last)
    left, other = (g.add("gather", x, index, axis=axis) for index in (first, second))
    return g.map("add", g.map("mul", left, g.map("sub", g.constant(np.float32(1)), part)), g.map("mul", other, part))


WINDOWS: Mapping[str, Callable[[Options], Graph]] = {
    "max_pool": lambda options: _pool(options, how="max", fill=float("-inf")),
    "avg_pool": lambda options: _pool(options, how="sum", fill=0.0),
    "resize": _resize,
}


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
        value = self._lowered(formula)
        extents = tuple(dimension(axis) for axis in self.out)
        whole: tuple[Extent, ...] = (*extents, *(1 for _ in self.order[len(self.out) :]))
        if self.builder.types[value].shape != whole:
            value = self.builder.add("broadcast", value, shape=whole)
        if len(whole) > len(extents):
            value = self.builder.add("reshape", value, shape=extents)
        return self.builder.finish(value)

    def _lowered(self, part: Formula) -> str:
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
            return g.add("reduce", self._lowered(part.of), how=part.how, axes=(self.order.index(part.axis),), keepdims=True)
        return g.map(part.function, *(self._lowered(argument) for argument in part.arguments))

    def _spread(self, operand: str) -> str:
        g = self.builder
        axes = next(argument for argument in self.kind.inputs if argument.name == operand).axes({})
        order = sorted(range(len(axes)), key=lambda index: self.order.index(axes[index]))
        moved = operand if order == list(range(len(axes))) else g.add("transpose", operand, order=tuple(order))
        shape = tuple(dimension(axis) if axis in axes else 1 for axis in self.order)
        return moved if g.types[moved].shape == shape else g.add("reshape", moved, shape=shape)
