"""Rules of Resize: axis by axis, each a sum of gathered neighbours times weights; lengths of scaled images.

Lengths of scaled images: a length times a scale, multiplied and cut as ONNX Runtime and torch do in floating point.

The product is rounded before it is cut: 10 x 0.7 is 7 in float32, though the float32 next to 0.7 is less than 0.7.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import ceil, prod

import numpy as np
import sympy

from haotuner.frontends.onnx.constant_folding import ConstantFolding
from haotuner.frontends.onnx.layout import cut, reshaped
from haotuner.frontends.onnx.node_context import NodeContext, Rule
from haotuner.graph.extents import (
    Extent,
    canonical,
    ceiling_division,
    dimensions,
    evaluate,
    floor_division,
    largest,
    same,
    smallest,
)
from haotuner.graph.types import FLOATS, numpy_dtype
from haotuner.spec.shape import Span


def scaled_length(g: ConstantFolding, extent: Extent, scale: float | str, dtype: str) -> Extent:
    """The whole part of ``extent`` x ``scale`` in the arithmetic of ``dtype``, that of a scale which is a scalar tensor.

    Where only the request's data tell the scale, the length is a dimension of its own.
    """
    own = g.cast(g.of_extents(np.array(extent, object), "int64"), dtype)
    length = g.cast(g.map("floor", g.map("mul", own, scale)), "int64")
    return g.whole_numbers(length, "a scaled length")[0]


PRECISE = "fp64"  # of coordinates: a rounding error there takes another neighbour
SINGLE = "fp32"  # of coordinates that a scale of the file divides: ONNX Runtime and torch round these
NEAR_HALF = 1e-6  # pixels from the middle of two that still count as the middle, as in ONNX Runtime: 4.5 / 0.3 is 15


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis that is resized: ``extent`` pixels become ``out``.

    ``scale``: fp64, a scalar. ``ratio``: its number where it is known. ``rounded``: it was given, not made of both extents.
    ``shrinks``: quotients of which the largest is at least 1 / scale. ``counts_in``: in which a nearest pixel is sought.
    """

    axis: int
    extent: Extent
    out: Extent
    scale: str
    ratio: float | None
    rounded: bool
    shrinks: tuple[tuple[Extent, Extent], ...]
    counts_in: str = PRECISE

    @property
    def unchanged(self) -> bool:
        """True if every pixel is known to stay what it is."""
        return same(self.extent, self.out) and (not self.rounded or self.ratio == 1)


def _resize(c: NodeContext) -> str:
    older = c.op == "Upsample" or c.opset < 11
    mode = c.attribute("mode", "nearest")
    where = "asymmetric" if older else c.attribute("coordinate_transformation_mode", "half_pixel")
    places = [c.axis(axis) for axis in c.attribute("axes", range(c.type().rank))]
    axes = _axes(c, places, *((1, 9) if older else (2, 3)))
    region = c.floats(1) if where == "tf_crop_and_resize" else []
    own = c.type().dtype
    x = c.tensor(0) if mode == "nearest" or own in FLOATS else c.g.cast(c.tensor(0), SINGLE)
    moved = [axis for axis in axes if not axis.unchanged]
    if own not in FLOATS and mode == "linear" and not (region or c.attribute("antialias", 0)) and 1 <= len(moved) <= 2:
        return _whole(c, _of_corners(c, x, where, moved), own, nearest=False)
    for axis in _order(axes, c.g.ranges, shrinks=bool(c.attribute("antialias", 0))):
        if axis.unchanged and not region:
            continue
        if same(axis.extent, 1) and not region:  # one pixel, whatever the weights: of an image's mean, for instance
            shape = c.g.types[x].shape
            x = c.g.add("broadcast", x, shape=(*shape[: axis.axis], axis.out, *shape[axis.axis + 1 :]))
            continue
        at = axes.index(axis)
        bounds = (region[at], region[len(axes) + at]) if region else None
        line = _coordinates(c, where, axis, bounds, mode)
        if mode == "nearest":
            x = (
                _older_nearest(c, x, axis, line)
                if older
                else _nearest(c, x, axis, line, c.attribute("nearest_mode", "round_prefer_floor"))
            )
        elif mode in ("linear", "cubic"):
            x = _weighted(c, x, axis, line, mode)
        else:
            raise c.bad(f"mode {mode!r} is unknown")
        if region:
            x = _outside(c, x, axis, line)
    return (
        x if c.g.types[x].dtype == own else _whole(c, x, own, nearest=mode == "cubic" or bool(c.attribute("antialias", 0)))
    )


def _of_corners(c: NodeContext, x: str, where: str, axes: Sequence[Axis]) -> str:
    """Pixels of one or two axes by ``linear``, step for step as ONNX Runtime rounds them: fp32, one term a corner.

    What lies behind the point of a sum is dropped later, so that another last bit would be another pixel.
    """
    g, rank = c.g, c.g.types[x].rank
    lines = []
    for axis in axes:
        line = g.cast(_coordinates(c, where, replace(axis, counts_in=SINGLE), None, "nearest"), SINGLE)
        last = _number(c, canonical(axis.extent - 1), SINGLE)
        line = g.map("max", g.map("min", line, last), 0.0)
        low = g.map("floor", line)
        high = g.map("min", g.map("add", low, 1.0), last)
        weights = [g.map("sub", high, line), g.map("sub", line, low)]
        weights = [g.map("select", g.map("equal", low, high), 0.5, weight) for weight in weights]
        shape = (axis.out, *[1] * (rank - 1 - axis.axis))
        lines.append(
            [(g.cast(pixel, PRECISE), reshaped(c, w, shape)) for pixel, w in zip((low, high), weights, strict=True)]
        )
    result = ""
    for corner in product(*lines):  # the last axis is the inner one
        factor, part = "", x
        for axis, (pixel, weight) in reversed(list(zip(axes, corner, strict=True))):
            factor = g.map("mul", factor, weight) if factor else weight
            part = _pixels(c, part, axis, pixel)
        term = g.map("mul", factor, part)
        result = g.map("add", result, term) if result else term
    return result


def _whole(c: NodeContext, x: str, dtype: str, *, nearest: bool) -> str:
    """Pixels as whole numbers of a type, those beyond its ends as these; else towards zero, as ONNX Runtime does."""
    ends = np.iinfo(numpy_dtype(dtype))
    rounded = c.g.map("round", x) if nearest else x
    return c.g.cast(c.g.map("max", c.g.map("min", rounded, float(ends.max)), float(ends.min)), dtype)


def _order(axes: Sequence[Axis], ranges: Mapping[str, Span], *, shrinks: bool) -> list[Axis]:
    """The innermost axis first: its elements are gathered one by one, of fewer rows before the others grow.

    It comes last where the other axes leave fewer rows, in the middle of the asked ranges. ``shrinks``: they do where no
    number is known.
    """
    order = sorted(axes, key=lambda axis: -axis.axis)
    ratios = [_expected(axis, ranges) for axis in order[1:]]
    known = [ratio for ratio in ratios if ratio is not None]
    return order[::-1] if (shrinks if len(known) < len(ratios) else prod(known) < 1) else order


def _expected(axis: Axis, ranges: Mapping[str, Span]) -> float | None:
    """Factor by which an axis grows: its scale, or what the middle of all ranges makes; None: nothing tells."""
    if axis.ratio is not None:
        return axis.ratio
    if not (dimensions(axis.extent) | dimensions(axis.out)) <= ranges.keys():
        return None
    sizes = {name: round((span.first * span.last) ** 0.5) for name, span in ranges.items()}
    return evaluate(axis.out, sizes) / max(1, evaluate(axis.extent, sizes))


def _axes(c: NodeContext, places: Sequence[int], at_scales: int, at_sizes: int) -> list[Axis]:
    """Extents of the result and scales of the axes. Sizes decide the extents, and the scales where none are given."""
    sizes = c.numbers(at_sizes) if c.has_input(at_sizes) and c.shape(at_sizes) != (0,) else None
    scales: list[float | str] | None = None
    if c.has_input(at_scales) and c.shape(at_scales) != (0,):
        scales = _scales(c, c.tensor(at_scales), len(places))
    elif sizes is None:
        scales = list(c.required("scales"))
    if sizes is not None and len(sizes) != len(places) or scales is not None and len(scales) != len(places):
        raise c.bad(f"sizes or scales of another number than the {len(places)} axes that are resized")
    policy = c.attribute("keep_aspect_ratio_policy", "stretch")
    if sizes is not None and scales is None and policy != "stretch":
        return _in_proportion(c, places, sizes, policy)
    result = []
    for at, position in enumerate(places):
        extent = c.shape()[position]
        if scales is None:
            assert sizes is not None
            result.append(_by_sizes(c, position, sizes[at]))
            continue
        scale = scales[at]
        if isinstance(scale, str):
            out = scaled_length(c.g, extent, scale, c.g.types[scale].dtype) if sizes is None else sizes[at]
            wide = c.g.cast(scale, PRECISE)
            result.append(Axis(position, extent, out, wide, None, True, ((extent, largest([out, 1])),), SINGLE))
        else:
            out = scaled_length(c.g, extent, float(scale), SINGLE) if sizes is None else sizes[at]
            value = float(np.float32(scale))
            result.append(Axis(position, extent, out, c.g.constant(value, PRECISE), value, True, (), SINGLE))
    return result


def _scales(c: NodeContext, tensor: str, count: int) -> list[float | str]:
    """Each axis' scale: a number, or a scalar tensor of what sizes make or what comes with the request."""
    known = c.g.numbers(tensor)
    if known is not None:
        return [float(item) for item in known.reshape(-1)]
    if c.g.types[tensor].shape != (count,):
        raise c.bad(f"scales of the shape {list(c.g.types[tensor].shape)}; expected ({count},)")
    parts = c.g.joined[tensor][0] if tensor in c.g.joined else ()
    if len(parts) > 1:
        counts = [c.g.types[part].shape[0] for part in parts]
        if all(isinstance(count, int) for count in counts):
            return [scale for first, own in zip(parts, counts, strict=True) for scale in _scales(c, first, int(own))]
    return [reshaped(c, cut(c, tensor, 0, at, at + 1), ()) for at in range(count)]


def _by_sizes(c: NodeContext, index: int, out: Extent) -> Axis:
    extent = c.shape()[index]
    if isinstance(extent, int) and isinstance(out, int) and extent:
        ratio = out / extent
        return Axis(index, extent, out, c.g.constant(ratio, PRECISE), ratio, False, ())
    scale = c.g.map("div", _number(c, out), _number(c, extent))
    return Axis(index, extent, out, scale, None, False, ((extent, largest([out, 1])),))


def _in_proportion(c: NodeContext, places: Sequence[int], sizes: Sequence[Extent], policy: str) -> list[Axis]:
    """One scale for all axes, so that none is larger, or smaller, than its size; halves are rounded up."""
    if policy not in ("not_larger", "not_smaller"):
        raise c.bad(f"keep_aspect_ratio_policy {policy!r} is unknown")
    smaller = policy == "not_larger"
    extents = [c.shape()[position] for position in places]
    pairs = list(zip(sizes, extents, strict=True))
    if all(isinstance(item, int) for pair in pairs for item in pair):
        ratio = (min if smaller else max)(float(size) / float(extent) for size, extent in pairs)
        scale = c.g.constant(ratio, PRECISE)
    else:
        ratio = None
        quotients = [c.g.map("div", _number(c, size), _number(c, extent)) for size, extent in pairs]
        scale = quotients[0]
        for other in quotients[1:]:
            scale = c.g.map("min" if smaller else "max", scale, other)
    shrinks = tuple((extent, largest([size, 1])) for size, extent in pairs)
    result = []
    for extent, own in zip(places, extents, strict=True):
        rounded = [floor_division(canonical(2 * size * own + extent), canonical(2 * extent)) for size, extent in pairs]
        out = (smallest if smaller else largest)(rounded)
        result.append(Axis(extent, own, out, scale, ratio, True, shrinks))
    return result


def _number(c: NodeContext, value: Extent | float, dtype: str = PRECISE) -> str:
    """A number, or a quotient of extents, as a tensor.

    Extents are no known tensors there: what is computed of an axis would be folded element by element.
    """
    if isinstance(value, (int, float)) or value.is_number:
        return c.g.constant(float(value), dtype)
    numerator, denominator = sympy.fraction(sympy.together(sympy.sympify(value)))
    parts = [
        c.g.constant(float(item), dtype) if item.is_number else c.g.plain("size", extent=canonical(item), dtype=dtype)
        for item in (numerator, denominator)
    ]
    return parts[0] if denominator == 1 else c.g.map("div", *parts)


def _coordinates(c: NodeContext, where: str, axis: Axis, bounds: tuple[float, float] | None, mode: str) -> str:
    """Of each element of the result its place in the input, between elements; fp64."""
    g, scale = c.g, axis.scale
    if where == "tf_crop_and_resize" and bounds is not None:
        return _cropped(c, axis, *bounds)
    # A multiple of a scale that lies between two pixels by its rounding alone: the others compute it in fp32.
    kind = axis.counts_in if mode == "nearest" else PRECISE
    scale = g.cast(scale, kind)
    own = g.add("iota", extent=axis.out, dtype=kind)
    if where == "half_pixel_symmetric":
        return _symmetric(c, axis, kind)
    exact_ratio = mode == "nearest" and kind == PRECISE and not axis.rounded

    def over_scale(numbers: str) -> str:
        """Numbers over the scale; by both extents where the scale is their ratio, so that whole numbers are exact."""
        if not exact_ratio:
            return g.map("div", numbers, scale)
        return g.map("div", g.map("mul", numbers, _number(c, axis.extent, kind)), _number(c, axis.out, kind))

    if where in ("half_pixel", "pytorch_half_pixel"):
        line = g.map("sub", over_scale(g.map("add", own, 0.5)), 0.5)
        if where == "pytorch_half_pixel":
            line = g.map("select", g.map("greater", _number(c, axis.out, kind), 1.0), line, 0.0)
        return g.cast(line, PRECISE)
    if where == "asymmetric":
        return g.cast(over_scale(own), PRECISE)
    if where == "align_corners":
        last = _number(c, canonical(axis.extent - 1), kind)
        end = _number(c, canonical(axis.out - 1), kind)
        if axis.rounded:  # of the scale as it is, which may be no whole number
            end = g.map("sub", g.map("mul", scale, _number(c, axis.extent, kind)), 1)
        single = g.map("less_equal", end, 0.0)
        line = g.map("div", g.map("mul", own, last), g.map("select", single, 1.0, end))
        return g.cast(g.map("select", single, 0.0, line), PRECISE)
    raise c.bad(f"coordinate_transformation_mode {where!r} is unknown")


def _symmetric(c: NodeContext, axis: Axis, kind: str) -> str:
    """Coordinates of ``half_pixel_symmetric``, which puts the middle of the input on the middle of the result; fp64.

    ONNX Runtime computes the offset in fp32, the sum in fp64 and rounds that. ``kind``: the type of what it rounds.
    """
    g, scale = c.g, axis.scale
    extent = _number(c, axis.extent, kind)
    adjustment = g.map("div", _number(c, axis.out, kind), g.map("mul", g.cast(scale, kind), extent))
    offset = g.map("mul", g.map("mul", extent, 0.5), g.map("sub", g.constant(1.0, kind), adjustment))
    own = g.map("add", g.add("iota", extent=axis.out, dtype=PRECISE), 0.5)
    line = g.map("sub", g.map("add", g.cast(offset, PRECISE), g.map("div", own, scale)), 0.5)
    return g.cast(g.cast(line, kind), PRECISE)


def _cropped(c: NodeContext, axis: Axis, start: float, stop: float) -> str:
    """Places of a part of the image, in fp32 as others compute them: what lies on the image's last pixel is inside."""
    g = c.g
    own = g.add("iota", extent=axis.out, dtype=SINGLE)
    last, end = (_number(c, canonical(item - 1), SINGLE) for item in (axis.extent, axis.out))
    low, wide = np.float32(start), np.float32(stop) - np.float32(start)
    single = g.map("less_equal", end, 0.0)
    step = g.map("div", g.map("mul", g.map("mul", own, float(wide)), last), g.map("select", single, 1.0, end))
    many = g.map("add", step, g.map("mul", last, float(low)))
    middle = g.map("mul", last, float((low + np.float32(stop)) * np.float32(0.5)))
    return g.cast(g.map("select", single, middle, many), PRECISE)


def _pixels(c: NodeContext, x: str, axis: Axis, places: str) -> str:
    """The pixels at these places along an axis, those of the border beyond it.

    Places are bounded as real numbers and again as whole ones, which no NaN passes: a pixel is then read without questions.
    """
    g, end = c.g, canonical(axis.extent - 1)
    whole = g.cast(g.map("max", g.map("min", places, _number(c, end)), 0), "int64")
    last = g.constant(end, "int64") if isinstance(end, int) else g.plain("size", extent=end)
    return g.add("gather", x, g.map("max", g.map("min", whole, last), 0), axis=axis.axis, bounded=True)


def _older_nearest(c: NodeContext, x: str, axis: Axis, line: str) -> str:
    """Pixels before opset 11, which names no ``nearest_mode``: the next one where the image shrinks, else the one before."""
    g = c.g
    if axis.ratio is not None:
        return _nearest(c, x, axis, line, "ceil" if axis.ratio < 1 else "floor")
    return _pixels(c, x, axis, g.map("select", g.map("less", axis.scale, 1.0), g.map("ceil", line), g.map("floor", line)))


def _nearest(c: NodeContext, x: str, axis: Axis, line: str, how: str) -> str:
    g = c.g
    if how == "round_prefer_floor":
        nearest = g.map("ceil", g.map("sub", line, 0.5 + NEAR_HALF))
    elif how == "round_prefer_ceil":
        nearest = g.map("floor", g.map("add", line, 0.5 + NEAR_HALF))
    elif how in ("floor", "ceil"):
        nearest = g.map(how, line)
    else:
        raise c.bad(f"nearest_mode {how!r} is unknown")
    return _pixels(c, x, axis, nearest)


def _weighted(c: NodeContext, x: str, axis: Axis, line: str, mode: str) -> str:
    """Sum of neighbours; with ``antialias`` the neighbours of a smaller image are spread wider."""
    g, support = c.g, 2 if mode == "cubic" else 1
    if not c.attribute("antialias", 0) or axis.ratio is not None and axis.ratio >= 1:
        return _of_taps(c, x, axis, line, mode, None, support)
    if axis.ratio is not None:
        stretch = 1.0 / axis.ratio
        return _of_taps(c, x, axis, line, mode, g.constant(stretch, PRECISE), ceil(support * stretch))
    wider = g.map("max", g.map("div", g.constant(1.0, PRECISE), axis.scale), 1.0)
    reach = largest([support, *(ceiling_division(canonical(support * a), b) for a, b in axis.shrinks)])
    return _of_dimension(c, x, axis, line, mode, wider, reach)


def _of_taps(c: NodeContext, x: str, axis: Axis, line: str, mode: str, stretch: str | None, reach: int) -> str:
    """A sum with one term a neighbour; ``reach``: neighbours on each side."""
    g, rank, dtype = c.g, c.g.types[x].rank, c.g.types[x].dtype
    low, outside = g.map("floor", line), bool(c.attribute("exclude_outside", 0))
    places = [g.map("add", low, float(tap)) for tap in range(1 - reach, reach + 1)]
    weights = [_weight(c, axis, line, position, mode, stretch) for position in places]
    if outside or stretch is not None:
        total = weights[0]
        for weight in weights[1:]:
            total = g.map("add", total, weight)
        weights = [g.map("div", weight, total) for weight in weights]
    result = ""
    for position, weight in zip(places, weights, strict=True):
        factor = reshaped(c, g.cast(weight, dtype), (axis.out, *[1] * (rank - 1 - axis.axis)))
        part = g.map("mul", _pixels(c, x, axis, position), factor)
        result = g.map("add", result, part) if result else part
    return result


def _of_dimension(c: NodeContext, x: str, axis: Axis, line: str, mode: str, stretch: str, reach: Extent) -> str:
    """A sum over neighbours whose number comes with the request."""
    g, rank, dtype, count = c.g, c.g.types[x].rank, c.g.types[x].dtype, canonical(2 * reach)
    line = reshaped(c, line, (1, axis.out))
    taps = g.map("sub", g.add("iota", extent=count, dtype=PRECISE), _number(c, canonical(reach - 1)))
    position = g.map("add", g.map("floor", line), reshaped(c, taps, (count, 1)))
    weight = _weight(c, axis, line, position, mode, stretch)
    weight = g.map("div", weight, g.add("reduce", weight, how="sum", axes=(0,), keepdims=True))
    pixels = _pixels(c, x, axis, position)  # neighbours outside: loops over pixels stay the inner ones
    factor = reshaped(c, g.cast(weight, dtype), (count, axis.out, *[1] * (rank - 1 - axis.axis)))
    return g.add("reduce", g.map("mul", pixels, factor), how="sum", axes=(axis.axis,), keepdims=False)


def _weight(c: NodeContext, axis: Axis, line: str, path: str, mode: str, stretch: str | None) -> str:
    """Weight of a pixel at a place; 0 outside of the image where the file says so."""
    g = c.g
    away = g.map("abs", g.map("sub", line, path))
    away = away if stretch is None else g.map("div", away, stretch)
    weight = _linear(c, away) if mode == "linear" else keys_cubic(g, away, c.attribute("cubic_coeff_a", -0.75))
    if not c.attribute("exclude_outside", 0):
        return weight
    low = g.map("less_equal", g.constant(0.0, PRECISE), path)
    return g.map("select", g.map("and", low, g.map("less", path, _number(c, axis.extent))), weight, 0.0)


def _linear(c: NodeContext, away: str) -> str:
    return c.g.map("max", c.g.map("sub", c.g.constant(1.0, PRECISE), away), 0.0)


def keys_cubic(g: ConstantFolding, s: str, a: float) -> str:
    """Keys' convolution kernel (1981) with parameter ``a`` at the distances ``s``."""
    near = g.map("add", g.map("mul", g.map("mul", g.map("sub", g.map("mul", s, a + 2), a + 3), s), s), 1.0)
    far = g.map("mul", g.map("sub", g.map("mul", g.map("add", g.map("mul", g.map("sub", s, 5.0), s), 8.0), s), 4.0), a)
    return g.map("select", g.map("less_equal", s, 1.0), near, g.map("select", g.map("less", s, 2.0), far, 0.0))


def _outside(c: NodeContext, x: str, axis: Axis, line: str) -> str:
    """Image with the value that the file gives for what lies outside."""
    g, rank = c.g, c.g.types[x].rank
    last = _number(c, canonical(axis.extent - 1))
    there = g.map("or", g.map("less", line, 0.0), g.map("greater", line, last))
    there = reshaped(c, there, (axis.out, *[1] * (rank - 1 - axis.axis)))
    return g.map("select", there, c.attribute("extrapolation_value", 0.0), x)


RESIZE: Mapping[str, Rule] = {"Resize": _resize, "Upsample": _resize}
