"""Rules of operators whose results depend on data, chance, or bounds that come with the request.

Rules of slices and ranges whose bounds come with the request: computed when it runs, negative and too large ones too.

Bounds that some tensor's size is already are left to the rules of ``layout.py``: what a model joins keeps one length.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import sympy

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.layout import LAYOUT, cut, divides, inside, reshaped
from haotuner.frontends.onnx.lengths import computed_length, length_at_least_0, lengths_of, new_dimension
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.frontends.onnx.typed_numbers import DataDependentError
from haotuner.frontends.onnx.types import dtype_of_onnx
from haotuner.graph.extents import Extent, canonical, largest, product, same, smallest
from haotuner.ops.host_steps import nonzero

_SEEDS = 1 << 32


def places_of(c: NodeContext) -> str:
    """Indices of what is not 0: (rank, how many)."""
    known = c.g.numbers(c.tensor(0))
    if known is not None:
        return c.g.constant(nonzero(known))
    alike = (node.output for node in c.g.nodes if node.primitive == "nonzero" and node.inputs == (c.tensor(0),))
    same = filter(c.g.seen, alike)
    return next(same, None) or c.g.plain("nonzero", c.tensor(0), extent=new_dimension(c.g, "count"))


def _compress(c: NodeContext) -> str:
    """The places of an axis, or of the flat tensor, where a condition holds.

    A condition longer than the axis ends with the axis, as in ONNX Runtime: a pack has no other answer than an element.
    """
    x, flat = c.tensor(0), "axis" not in c.attributes
    x = reshaped(c, x, (product(c.shape()),)) if flat else x
    axis = 0 if flat else c.axis(c.attributes["axis"])
    condition, length = c.tensor(1), c.shape(1)[0]
    shorter = smallest([length, c.g.types[x].shape[axis]])
    if not same(shorter, length):
        condition = cut(c, condition, 0, 0, shorter)
    indices = places_of(replace(c, inputs=(condition,), attributes={}))
    return c.g.add("gather", x, reshaped(c, indices, (c.g.types[indices].shape[1],)), axis=axis)


def drawn(
    g: ConstantFolding, law: str, shape: Sequence[Extent], dtype: str, *, low: float = 0.0, high: float = 1.0, **more: Any
) -> str:
    """Numbers of a distribution: ``normal`` of mean ``low`` and deviation ``high``, or ``uniform`` between both."""
    number = sum(node.primitive == "random" for node in g.nodes)
    return g.plain("random", shape=tuple(shape), dtype=dtype, law=law, number=number, low=low, high=high, **more)


def _random(c: NodeContext, law: str, shape: Sequence[Extent], dtype: str) -> str:
    low, high = ("mean", "scale") if law == "normal" else ("low", "high")
    more: dict[str, Any] = {}
    if "seed" in c.attributes:  # a float whose bits are the seed
        more["seed"] = int(np.float32(c.attributes["seed"]).view(np.uint32)) % _SEEDS
    return drawn(c.g, law, shape, dtype, low=float(c.attribute(low, 0.0)), high=float(c.attribute(high, 1.0)), **more)


def _like(law: str) -> Rule:
    def rule(c: NodeContext) -> str:
        kind = c.type()
        c.g.shape_reads[c.tensor(0)] = None
        return _random(
            c, law, kind.shape, dtype_of_onnx(c.attributes["dtype"], c.op) if "dtype" in c.attributes else kind.dtype
        )

    return rule


def _shaped(law: str) -> Rule:
    def rule(c: NodeContext) -> str:
        return _random(c, law, c.required("shape"), dtype_of_onnx(c.attribute("dtype", 1), c.op))

    return rule


DATA: Mapping[str, Rule] = {
    "NonZero": places_of,
    "Compress": _compress,
    "RandomNormal": _shaped("normal"),
    "RandomNormalLike": _like("normal"),
    "RandomUniform": _shaped("uniform"),
    "RandomUniformLike": _like("uniform"),
}


def _bounds(c: NodeContext, index: int) -> list[Extent | str]:
    """The elements of an input: extents, or scalar tensors of what is not known before the request."""
    return _elements(c, c.tensor(index)) if c.has_input(index) else []


def _elements(c: NodeContext, tensor: str) -> list[Extent | str]:
    shape = c.g.types[tensor].shape
    if "int" not in c.g.types[tensor].dtype or len(shape) > 1 or not all(isinstance(extent, int) for extent in shape):
        raise c.bad(f"bounds of {c.g.types[tensor]}; expected a fixed number of whole numbers")
    try:
        result = lengths_of(c.g, tensor, new=False)
    except DataDependentError:
        result = None
    if result is not None:
        return [item if isinstance(item, sympy.Basic) else int(item) for item in np.asarray(result).reshape(-1)]
    parts = c.g.joined[tensor][0] if tensor in c.g.joined else ()
    if len(parts) > 1:
        return [element for part in parts for element in _elements(c, part)]
    wide = c.g.cast(tensor, "int64")
    flat = reshaped(c, wide, (1,)) if not shape else wide
    return [reshaped(c, cut(c, flat, 0, at, at + 1), ()) for at in range(c.g.types[flat].shape[0])]


def _scalar(c: NodeContext, value: Extent | str) -> str:
    return value if isinstance(value, str) else c.g.of_extents(np.array(value, object), "int64")


def _size(c: NodeContext, extent: Extent) -> str:
    """A size as a number of the run: known ones would be folded with what they bound."""
    return c.g.constant(extent, "int64") if isinstance(extent, int) else c.g.plain("size", extent=extent, dtype="int64")


def _slice(c: NodeContext) -> str:
    starts, ends, steps = _bounds(c, 1), _bounds(c, 2), _bounds(c, 4)
    by_size = not all(isinstance(step, int) for step in steps)
    if not by_size and not any(isinstance(start, str) for start in (*starts, *ends, *steps)):
        return _laid_out("Slice", c)
    axes = c.settings("axes", 3) or list(range(len(starts)))
    x = c.tensor(0)
    for start, end, axis, step in zip(starts, ends, axes, steps or [1] * len(starts), strict=True):
        position = c.axis(axis)
        if any(isinstance(item, str) for item in (start, end, step)) or not isinstance(step, int):
            x = _sliced(c, x, position, start, end, step)
        else:
            parts = (c.g.of_extents(np.array([item], object), "int64") for item in (start, end, position, step))
            x = _laid_out("Slice", replace(c, inputs=(x, *parts)))
    return x


def _laid_out(op: str, c: NodeContext) -> str:
    result = LAYOUT[op](c)
    assert isinstance(result, str)
    return result


def _sliced(c: NodeContext, x: str, axis: int, start: Extent | str, end: Extent | str, step: Extent | str) -> str:
    """One axis of a slice. A step that the file does not give is taken by index."""
    g, extent = c.g, c.g.types[x].shape[axis]
    if isinstance(step, int) and step:
        up = step > 0
        begin = _first(c, start, extent, up)
        last = canonical(extent if up else extent - 1)
        if isinstance(end, str):
            bound = _clamped(c, end, extent, 0 if up else -1, 0 if up else 1)
            bound = bound if up else g.map("add", bound, 1)  # -1 says: to the first element
            stop = smallest([canonical(computed_length(g, bound) - (0 if up else 1)), last])
        else:
            stop = inside(c, end, extent, 0 if up else -1, last)
        stop = largest([begin, stop]) if up else smallest([begin, stop])
        return g.add("slice", x, axes=(axis,), starts=(begin,), stops=(stop,), steps=(step,))
    by = _scalar(c, step)
    back = g.map("less", by, 0)
    first, behind = (
        g.map("select", back, _clamped(c, item, extent, low, 1), _clamped(c, item, extent, 0, 0))
        for item, low in ((start, 0), (end, -1))
    )
    count = smallest([_count(c, first, behind, step), extent])  # backwards an empty axis would count one
    places = g.map("add", g.map("mul", g.add("iota", extent=count, dtype="int64"), by), first)
    return g.add("gather", x, places, axis=axis)


def _first(c: NodeContext, start: Extent | str, extent: Extent, up: bool) -> Extent:
    """Start of a slice, as an extent; where the data tell it a dimension, which is never over the extent."""
    last = canonical(extent if up else extent - 1)
    if not isinstance(start, str):
        return inside(c, start, extent, 0, last)
    return smallest([computed_length(c.g, _clamped(c, start, extent, 0, 0 if up else 1)), last])


def _clamped(c: NodeContext, bound: Extent | str, extent: Extent, low: int, less: int) -> str:
    """A bound counted from the front, from ``low`` to the extent less ``less``."""
    g, size = c.g, _size(c, extent)
    own = _scalar(c, bound)
    moved = g.map("select", g.map("less", own, 0), g.map("add", own, size), own)
    return g.map("max", g.map("min", moved, g.map("sub", size, less)), low)


def _count(c: NodeContext, first: str, last: str, step: Extent | str) -> Extent:
    """Number of whole numbers from ``first`` to before ``last``, none where they lie the other way.

    A step of 0 makes -1 of them, a size that requests are refused for.
    """
    g, by = c.g, _scalar(c, step)
    each = g.map("max", g.map("abs", by), 1)
    span = g.map("sub", last, first)
    span = g.map("select", g.map("less", by, 0), g.map("neg", span), span)
    steps = g.map("floordiv", g.map("sub", g.map("add", span, each), 1), each)
    count = g.plain("map", steps, g.constant(0, "int64"), function="max")
    if isinstance(step, str):
        zero, refused_size = g.constant(0, "int64"), g.constant(-1, "int64")
        count = g.plain("map", g.plain("map", by, zero, function="equal"), refused_size, count, function="select")
    return computed_length(g, count)


def _range(c: NodeContext) -> str:
    g, kind = c.g, c.type(0).dtype
    known = all(g.known(c.tensor(index)) is not None for index in range(3))
    if known and ("int" not in kind or divides(c.numbers(2)[0], canonical(c.numbers(1)[0] - c.numbers(0)[0]))):
        return _laid_out("Range", c)
    start, step = (g.numbers(c.tensor(index)) for index in (0, 2))
    stop = _as_whole(c, c.tensor(1))
    from_0_by_1 = start is not None and step is not None and (float(start.max()), float(step.max())) == (0, 1)
    if from_0_by_1 and stop is not None and _of_data(c, stop):
        return g.add("iota", extent=length_at_least_0(g, stop), dtype=kind)
    if "int" not in kind:
        return _laid_out("Range", c)
    if not known and not any(_of_data(c, c.tensor(index)) for index in range(3)):
        return _laid_out("Range", c)
    first, last = (g.cast(reshaped(c, c.tensor(index), ()), "int64") for index in (0, 1))
    by = reshaped(c, c.tensor(2), ())
    count = _count(c, first, last, int(step.max()) if step is not None else g.cast(by, "int64"))
    return g.map("add", g.map("mul", g.add("iota", extent=count, dtype=kind), by), reshaped(c, c.tensor(0), ()))


def _as_whole(c: NodeContext, tensor: str) -> str | None:
    """The whole number that a tensor is, or that it was cast of; None: it is a real one."""
    if "int" in c.g.types[tensor].dtype:
        return tensor
    node = next((node for node in reversed(c.g.nodes) if node.output == tensor), None)
    cast = node is not None and node.primitive == "cast" and "int" in c.g.types[node.inputs[0]].dtype
    return node.inputs[0] if node is not None and cast else None


def _of_data(c: NodeContext, tensor: str) -> bool:
    """True if a whole number is one of the data's as it is, no arithmetic of sizes, and no tensor's size yet."""
    try:
        settled = lengths_of(c.g, tensor, new=False)
    except DataDependentError:
        made = {node.output: node for node in c.g.nodes}
        while tensor in made and made[tensor].primitive in ("cast", "reshape", "slice", "gather"):
            tensor = made[tensor].inputs[0]
        return tensor not in made or made[tensor].primitive not in ("map", "concat")
    return settled is None


BOUNDS: Mapping[str, Rule] = {"Slice": _slice, "Range": _range}
