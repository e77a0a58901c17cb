"""Rules of com.microsoft's attention operators: projections, masks and caches of keys, as primitives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import sqrt

from haotuner.frontends.onnx.layout import cut, reshaped, transposed
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.products import matmul
from haotuner.graph import decompositions
from haotuner.graph.extents import Extent, canonical

_NEVER = -3e38  # of keys that come later: a mask of the file may be added to it
_HEADS = (0, 2, 1, 3)  # (batch, tokens, heads, depth) <-> (batch, heads, tokens, depth)


def _heads(c: NodeContext, x: str, heads: int) -> str:
    """(batch, tokens, heads * depth) -> (batch, heads, tokens, depth)."""
    rows, tokens, wide = c.g.types[x].shape
    return transposed(c, reshaped(c, x, (rows, tokens, heads, int(wide) // heads)), _HEADS)


def _joined(c: NodeContext, x: str) -> str:
    """The inverse."""
    rows, heads, tokens, depth = c.g.types[x].shape
    return reshaped(c, transposed(c, x, _HEADS), (rows, tokens, canonical(heads * depth)))


def _part(c: NodeContext, x: str, axis: int, index: int) -> str:
    """One of the tensors that lie beside each other along an axis, which is gone then."""
    shape = c.g.types[x].shape
    return reshaped(c, cut(c, x, axis, index, index + 1), (*shape[:axis], *shape[axis + 1 :]))


def _behind(c: NodeContext, past: str | None, x: str) -> str:
    return x if past is None else c.g.add("concat", past, x, axis=2)


def _attended(c: NodeContext, q: str, k: str, v: str, biases: Sequence[str]) -> str:
    """(batch, tokens, heads * depth) of tensors (batch, heads, tokens, depth)."""
    g, depth = c.g, int(c.g.types[q].shape[-1])
    scale = float(c.attribute("scale", 0.0)) or 1 / sqrt(depth)
    cap = float(c.attribute("softcap", 0.0))
    if cap:
        scores = g.map("mul", g.add("contract", q, k, labels="bhqd,bhkd->bhqk"), scale / cap)
        scores = g.map("mul", g.map("tanh", scores), cap)
        for biase in biases:
            scores = g.map("add", scores, biase)
        return _joined(c, g.add("contract", decompositions.softmax(g, scores), v, labels="bhqk,bhkd->bhqd"))
    mask: str | None = None
    for biase_ in biases:
        mask = biase_ if mask is None else g.map("add", mask, biase_)
    return _joined(c, decompositions.attention(g, q, k, v, scale, mask))


def _numbers(c: NodeContext, extent: Extent, *behind: int) -> str:
    return reshaped(c, c.g.add("iota", extent=extent, dtype="int64"), (extent, *behind))


def _causal(c: NodeContext, queries: Extent, keys: Extent, window: int = -1) -> str:
    """Keys up to the query's own; the last query is that of the last key. ``window``: of the last ones alone."""
    g = c.g
    own = g.map("add", _numbers(c, queries, 1), g.of_extents([canonical(keys - queries)], "int64"))
    seen = g.map("less_equal", _numbers(c, keys), own)
    if window > 0:
        seen = g.map("and", seen, g.map("greater", _numbers(c, keys), g.map("sub", own, window)))
    return g.map("select", seen, g.constant(0.0, "fp32"), _NEVER)


def _of_keys(c: NodeContext, mask: str, keys: Extent, rows: Extent) -> str:
    """A mask that is 0 where a key is left out, or how many keys each row has -> what is added to scores."""
    g, shape = c.g, c.g.types[mask].shape
    left_out = float(c.attribute("mask_filter_value", -10000.0))
    if len(shape) == 1:
        if shape[0] != rows:
            raise c.bad(f"a mask of shape {list(shape)}; known: lengths of rows, or a number for each key")
        counts = reshaped(c, g.add("cast", mask, dtype="int64"), (rows, 1, 1, 1))
        selected = g.map("less", _numbers(c, keys), counts)
    elif len(shape) == 4:
        raise c.bad("a mask of four axes")
    else:
        wide = (shape[0], 1, 1, shape[1]) if len(shape) == 2 else (shape[0], 1, *shape[1:])
        selected = g.map("not", g.map("equal", reshaped(c, mask, wide), 0))
    return g.map("select", selected, g.constant(0.0, "fp32"), left_out)


def _attention(c: NodeContext) -> list[str]:
    """Queries, keys and values of one product; with the keys of earlier calls in front."""
    g, heads = c.g, c.required("num_heads")
    if c.attribute("do_rotary", 0) or c.attribute("past_present_share_buffer", 0):
        raise c.bad("do_rotary or past_present_share_buffer")
    rows, tokens, _ = c.shape()
    wide = matmul(c, c.tensor(0), c.tensor(1))
    wide = g.map("add", wide, c.tensor(2)) if c.has_input(2) else wide
    sizes = list(c.attribute("qkv_hidden_sizes", [int(c.shape(1)[-1]) // 3] * 3))
    starts = (0, sizes[0], sizes[0] + sizes[1])
    q, k, v = (_heads(c, cut(c, wide, 2, at, at + size), heads) for at, size in zip(starts, sizes, strict=True))
    if c.has_input(4):
        k, v = (_behind(c, _part(c, c.tensor(4), 0, index), item) for index, item in enumerate((k, v)))
    keys = g.types[k].shape[2]
    biases = [_of_keys(c, c.tensor(3), keys, rows)] if c.has_input(3) else []
    biases += [c.tensor(5)] if c.has_input(5) else []
    biases += [_causal(c, tokens, keys)] if c.attribute("unidirectional", 0) else []
    result = [_attended(c, q, k, v, biases)]
    if c.outputs > 1:
        result.append(g.add("concat", *(reshaped(c, item, (1, *g.types[item].shape)) for item in (k, v)), axis=0))
    return result


def _multi_head(c: NodeContext) -> list[str]:
    """Queries, keys and values each by itself; keys and values may have their heads apart."""
    g, heads = c.g, c.required("num_heads")
    rows = c.shape()[0]
    if c.type().rank == 5 or not c.has_input(1) or c.type(1).rank == 5:
        raise c.bad("queries, keys and values side by side in one tensor")
    parts = [c.tensor(index) for index in range(3)]
    if c.has_input(3):
        wide = [int(g.types[part].shape[-1]) * (heads if g.types[part].rank == 4 else 1) for part in parts]
        starts = (0, wide[0], wide[0] + wide[1])
        cuts = [cut(c, c.tensor(3), 0, at, at + size) for at, size in zip(starts, wide, strict=True)]
        parts = [part if g.types[part].rank == 4 else g.map("add", part, cut) for part, cut in zip(parts, cuts, strict=True)]
    q, k, v = (part if g.types[part].rank == 4 else _heads(c, part, heads) for part in parts)
    k, v = _behind(c, c.maybe(6), k), _behind(c, c.maybe(7), v)
    keys = g.types[k].shape[2]
    biases = [_of_keys(c, c.tensor(4), keys, rows)] if c.has_input(4) else []
    biases += [c.tensor(5)] if c.has_input(5) else []
    biases += [_causal(c, g.types[q].shape[2], keys)] if c.attribute("unidirectional", 0) else []
    return [_attended(c, q, k, v, biases), k, v]


def _rotated(c: NodeContext, x: str, cos: str, sin: str, *, pairs: bool) -> str:
    """(batch, heads, tokens, depth) rotated by angles (batch or 1, 1, tokens, half); what lies behind them stays."""
    g, shape = c.g, c.g.types[x].shape
    half, depth = int(g.types[cos].shape[-1]), int(shape[-1])
    rest = None if 2 * half == depth else cut(c, x, 3, 2 * half, depth)
    own = x if rest is None else cut(c, x, 3, 0, 2 * half)
    if pairs:
        split = reshaped(c, own, (*shape[:3], half, 2))
        left, other = (_part(c, split, 4, index) for index in (0, 1))
    else:
        left, other = cut(c, own, 3, 0, half), cut(c, own, 3, half, 2 * half)
    first = g.map("sub", g.map("mul", left, cos), g.map("mul", other, sin))
    second = g.map("add", g.map("mul", left, sin), g.map("mul", other, cos))
    if pairs:
        both = g.add("concat", *(reshaped(c, part, (*shape[:3], half, 1)) for part in (first, second)), axis=4)
        result = reshaped(c, both, (*shape[:3], 2 * half))
    else:
        result = g.add("concat", first, second, axis=3)
    return result if rest is None else g.add("concat", result, rest, axis=3)


def _angles(c: NodeContext, cache: str, places: str, tokens: Extent) -> str:
    """Rows of a table at places (1), counted from there on, or (batch, tokens)."""
    g = c.g
    if g.types[places].rank == 1:
        places = reshaped(c, g.map("add", _numbers(c, tokens), places), (1, tokens))
    rows = g.add("gather", cache, places, axis=0)
    shape = g.types[rows].shape
    return reshaped(c, rows, (shape[0], 1, *shape[1:]))


def _rotary(c: NodeContext) -> str:
    g, flat = c.g, c.type().rank == 3
    heads = c.attribute("num_heads", 0)
    if flat and not heads:
        heads = int(c.shape()[-1]) // (2 * int(c.shape(2)[-1]))
    x = _heads(c, c.tensor(0), heads) if flat else c.tensor(0)
    places = g.add("cast", c.tensor(1), dtype="int64") if c.type(1).dtype != "int64" else c.tensor(1)
    tokens = g.types[x].shape[2]
    cos, sin = (_angles(c, c.tensor(position), places, tokens) for position in (2, 3))
    result = _rotated(c, x, cos, sin, pairs=bool(c.attribute("interleaved", 0)))
    scale = c.attribute("scale", 1.0)
    result = result if scale == 1 else g.map("mul", result, scale)
    return _joined(c, result) if flat else result


def _grouped(c: NodeContext) -> list[str]:
    """Several heads of queries share one of keys; earlier keys are as many as their tensor says."""
    g, heads, few = c.g, c.required("num_heads"), c.required("kv_num_heads")
    if c.has_input(9) or c.has_input(10) or c.has_input(11) or c.attribute("smooth_softmax", 0):
        raise c.bad("position_ids, attention_bias, head_sink or smooth_softmax")
    rows, tokens, wide = c.shape()
    parts = [c.tensor(index) for index in range(3)] if c.has_input(1) else []
    if not parts:  # side by side
        depth = int(wide) // (heads + 2 * few)
        ends = (0, heads * depth, (heads + few) * depth, (heads + 2 * few) * depth)
        parts = [cut(c, c.tensor(0), 2, at, stop) for at, stop in zip(ends, ends[1:], strict=False)]
    q, k, v = (_heads(c, part, count) for part, count in zip(parts, (heads, few, few), strict=True))
    past: Extent = c.shape(3)[2] if c.has_input(3) else 0
    if c.attribute("do_rotary", 0):
        start = g.of_extents([past], "int64")
        cos, sin = (_angles(c, c.tensor(position), start, tokens) for position in (7, 8))
        q, k = (_rotated(c, item, cos, sin, pairs=bool(c.attribute("rotary_interleaved", 0))) for item in (q, k))
    k, v = _behind(c, c.maybe(3), k), _behind(c, c.maybe(4), v)
    keys = g.types[k].shape[2]
    last = reshaped(c, g.add("cast", c.tensor(5), dtype="int64"), (rows, 1, 1, 1))
    stored = g.map("less_equal", _numbers(c, keys), last)
    biases = [
        _causal(c, tokens, keys, c.attribute("local_window_size", -1)),
        g.map("select", stored, 0.0, g.constant(-1e30, "fp32")),
    ]
    wide_k, wide_v = (_shared(c, item, heads) for item in (k, v))
    return [_attended(c, q, wide_k, wide_v, biases), k, v]


def _shared(c: NodeContext, x: str, heads: int) -> str:
    """(batch, few, tokens, depth), each for as many heads of queries as share it."""
    rows, few, tokens, depth = c.g.types[x].shape
    single = reshaped(c, x, (rows, few, 1, tokens, depth))
    spread = c.g.add("broadcast", single, shape=(rows, few, heads // few, tokens, depth))
    return reshaped(c, spread, (rows, heads, tokens, depth))


ATTENTION: Mapping[str, Rule] = {
    "Attention": _attention,
    "MultiHeadAttention": _multi_head,
    "GroupQueryAttention": _grouped,
    "RotaryEmbedding": _rotary,
}
