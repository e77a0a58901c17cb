"""Graphs of the kinds whose elements lie in windows of an image: pools and resize."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.ops.kind import Options
from haotuner.ops.windows import IMAGE, pair


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


GRAPHS: Mapping[str, Callable[[Options], Graph]] = {
    "max_pool": lambda options: _pool(options, how="max", fill=float("-inf")),
    "avg_pool": lambda options: _pool(options, how="sum", fill=0.0),
    "resize": _resize,
}
