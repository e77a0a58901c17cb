"""Rules of pools: a reduction over sliding windows."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

import numpy as np

from haotuner.frontends.onnx.convolutions import Windows, windows_of
from haotuner.frontends.onnx.layout import padded, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph import decompositions
from haotuner.graph.extents import canonical, product

PAYS = 2.5  # comparisons that windows taken an axis at a time save for each that is left: a row more is stored and read


def _windows(c: NodeContext) -> Windows:
    return windows_of(c, list(c.required("kernel_shape")), c.shape()[2:], cuts=True)


def _slid(c: NodeContext, x: str, w: Windows, value: float) -> tuple[str, tuple[int, ...]]:
    """The windows, and their axes at the end: those along which a window has one element, and moves by one, have none."""
    rank = len(w.sizes)
    x = padded(c, x, (0, 0, *w.before), (0, 0, *w.after), "constant", value)
    moved = [axis for axis in range(rank) if (w.sizes[axis], w.strides[axis]) != (1, 1)] or [rank - 1]
    sizes, strides, dilations = (tuple(item[axis] for axis in moved) for item in (w.sizes, w.strides, w.dilations))
    x = c.g.add("window", x, axes=tuple(2 + axis for axis in moved), sizes=sizes, strides=strides, dilations=dilations)
    return x, tuple(range(2 + rank, 2 + rank + len(moved)))


def _lowest(dtype: str) -> float:
    return float(np.iinfo(dtype).min) if "int" in dtype else -np.inf


def _max_pool(c: NodeContext) -> list[str]:
    w, x = _windows(c), c.tensor(0)
    if c.outputs < 2 and prod(w.sizes) >= PAYS * sum(w.sizes):
        return [_by_axis(c, x, w, "max", _lowest(c.type().dtype))]
    slid, ends = _slid(c, x, w, _lowest(c.type().dtype))
    result = c.g.add("reduce", slid, how="max", axes=ends, keepdims=False)
    if c.outputs < 2:
        return [result]
    shape = c.g.types[slid].shape
    flat = reshaped(c, slid, (*shape[: ends[0]], product(w.sizes)))
    first = c.g.add("arg_reduce", flat, how="max", axis=ends[0], keepdims=False)
    return [result, _input_indices(c, w, first)]


def _by_axis(c: NodeContext, x: str, w: Windows, how: str, beyond: float) -> str:
    """Maxima or sums an axis at a time: of 13 x 13 elements 26 are read, not 169. ``beyond``: what pads are."""
    rank = len(w.sizes)
    for axis in reversed(range(rank)):
        before, after = ([0] * (2 + axis) + [ends[axis]] + [0] * (rank - 1 - axis) for ends in (w.before, w.after))
        line = padded(c, x, before, after, "constant", beyond)
        sizes, strides, dilations = w.sizes[axis : axis + 1], w.strides[axis : axis + 1], w.dilations[axis : axis + 1]
        slid = c.g.add("window", line, axes=(2 + axis,), sizes=sizes, strides=strides, dilations=dilations)
        x = c.g.add("reduce", slid, how=how, axes=(2 + rank,), keepdims=False)
    return x


def _sums(c: NodeContext, x: str, w: Windows) -> str:
    """Sums of windows, an axis at a time where that reads far fewer elements and no half rounds them in between."""
    if prod(w.sizes) >= PAYS * sum(w.sizes) and c.g.types[x].dtype in ("fp32", "fp64"):
        return _by_axis(c, x, w, "sum", 0.0)
    slid, ends = _slid(c, x, w, 0.0)
    return c.g.add("reduce", slid, how="sum", axes=ends, keepdims=False)


def _input_indices(c: NodeContext, w: Windows, inside: str) -> str:
    """Of an element's place in its window the place in the whole input."""
    image = c.shape()[2:]
    rank = len(image)
    total: str | None = None
    column_first = bool(c.attribute("storage_order", 0))
    rest = inside
    for axis in reversed(range(rank)):
        size = w.sizes[axis]
        tap = c.g.map("mod", rest, size)
        rest = c.g.map("div", rest, size)
        steps = c.g.add("iota", extent=c.g.types[inside].shape[2 + axis], dtype="int64")
        steps = reshaped(c, steps, (c.g.types[inside].shape[2 + axis], *[1] * (rank - 1 - axis)))
        position = c.g.map("add", c.g.map("mul", steps, w.strides[axis]), c.g.map("mul", tap, w.dilations[axis]))
        position = c.g.map("sub", position, c.g.of_extents([w.before[axis]], "int64"))
        weight = product(image[:axis]) if column_first else product(image[axis + 1 :])
        part = c.g.map("mul", position, c.g.of_extents([weight], "int64"))
        total = part if total is None else c.g.map("add", total, part)
    assert total is not None
    b, n = c.shape()[:2]
    image_number = c.g.add("iota", extent=canonical(b * n), dtype="int64")
    image_number = reshaped(c, image_number, (b, n, *[1] * rank))
    return c.g.map("add", total, c.g.map("mul", image_number, c.g.of_extents([product(image)], "int64")))


def _average_pool(c: NodeContext) -> str:
    w, x = _windows(c), c.tensor(0)
    total = _sums(c, x, w)
    padded_at_all = any(item != 0 for item in (*w.before, *w.after))
    if not padded_at_all:
        return c.g.map("div", total, float(product(w.sizes)))
    image = c.shape()[2:]
    item = c.g.constant(1, c.type().dtype)
    ones = c.g.add("broadcast", item, shape=(1, 1, *image))
    if c.attribute("count_include_pad", 0):  # pads that are given count, those of ceil_mode do not
        auto, none = c.attribute("auto_pad", "NOTSET"), [0] * 2 * len(image)
        pads = list(c.attribute("pads", none)) if auto == "NOTSET" else none
        same = auto in ("SAME_UPPER", "SAME_LOWER")
        before, after = (w.before, w.after) if same else (pads[: len(image)], pads[len(image) :])
        ones = padded(c, ones, (0, 0, *before), (0, 0, *after), "constant", 1.0)
        left = [canonical(a - b) for a, b in zip(w.after, after, strict=True)]
        w = Windows(w.sizes, w.strides, w.dilations, (0,) * len(image), tuple(left))
    return c.g.map("div", total, _sums(c, ones, w))


def _power(c: NodeContext, x: str, p: float) -> str:
    return c.g.map("mul", x, x) if p == 2 else c.g.map("pow", c.g.map("abs", x), p)


def _root(c: NodeContext, x: str, p: float) -> str:
    return c.g.map("sqrt", x) if p == 2 else c.g.map("pow", x, 1 / p)


def _lp_pool(c: NodeContext) -> str:
    p = float(c.attribute("p", 2))
    return _root(c, _sums(c, _power(c, c.tensor(0), p), _windows(c)), p)


def _image_axes(c: NodeContext) -> tuple[int, ...]:
    return tuple(range(2, c.type().rank))


def _global_lp(c: NodeContext) -> str:
    p = float(c.attribute("p", 2))
    powers = _power(c, c.tensor(0), p)
    return _root(c, c.g.add("reduce", powers, how="sum", axes=_image_axes(c), keepdims=True), p)


POOLING: Mapping[str, Rule] = {
    "MaxPool": _max_pool,
    "AveragePool": _average_pool,
    "LpPool": _lp_pool,
    "GlobalAveragePool": lambda c: decompositions.mean(c.g, c.tensor(0), _image_axes(c)),
    "GlobalMaxPool": lambda c: c.g.add("reduce", c.tensor(0), how="max", axes=_image_axes(c), keepdims=True),
    "GlobalLpPool": _global_lp,
}
