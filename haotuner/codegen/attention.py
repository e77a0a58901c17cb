"""The graph of attention: two products with a softmax between them."""

from __future__ import annotations

from haotuner.graph.decompositions import extent_value, softmax
from haotuner.graph.extents import dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.ops.attention import scale_of
from haotuner.ops.kind import Options


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
