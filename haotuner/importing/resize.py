"""Rules of Resize: axis by axis, each a sum of gathered neighbours times weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, floor

import sympy

from haotuner.graph.composites import extent_value
from haotuner.graph.extents import Extent, canonical, floor_division, same
from haotuner.importing.call import Call, Rule
from haotuner.importing.folding import Folding
from haotuner.importing.layout import reshaped

PRECISE = "fp64"  # of coordinates: a rounding error there takes another neighbour


def _resize(c: Call) -> str:
    older = c.op == "Upsample" or c.opset < 11
    mode = c.attribute("mode", "nearest")
    rank = c.type().rank
    axes = [c.axis(axis) for axis in c.attribute("axes", range(rank))]
    at_scales, at_sizes = (1, 9) if older else (2, 3)
    outputs, scales = _targets(c, axes, at_scales, at_sizes)
    where = "asymmetric" if older else c.attribute("coordinate_transformation_mode", "half_pixel")
    region = c.floats(1) if where == "tf_crop_and_resize" else []
    x = c.tensor(0)
    for place in _order(axes, scales):
        axis = axes[place]
        extent, out, scale = c.shape()[axis], outputs[place], scales[place]
        if same(extent, out) and where != "tf_crop_and_resize" and not (isinstance(scale, float) and scale != 1):
            continue
        if same(extent, 1) and not region:  # one pixel, whatever the weights: of an image's mean, for instance
            shape = c.g.types[x].shape
            x = c.g.add("broadcast", x, shape=(*shape[:axis], out, *shape[axis + 1 :]))
            continue
        bounds = (region[place], region[len(axes) + place]) if region else None
        line = _coordinates(c, where, extent, out, scale, bounds)
        if mode == "nearest":
            x = _nearest(c, x, axis, line, extent, "floor" if older else c.attribute("nearest_mode", "round_prefer_floor"))
        elif mode in ("linear", "cubic"):
            x = _weighted(c, x, axis, line, extent, out, scale, mode)
        else:
            raise c.bad(f"mode {mode!r} is unknown")
        if region:
            x = _outside(c, x, axis, line, extent)
    return x


def _order(axes: Sequence[int], scales: Sequence[Extent | float]) -> list[int]:
    """Places of the axes, the innermost first: its elements are gathered one by one, of fewer rows before the others grow.

    Where it is known to shrink it comes last, when there are fewer rows.
    """
    order = sorted(range(len(axes)), key=lambda place: -axes[place])
    inner = scales[order[0]]
    return order[::-1] if isinstance(inner, (int, float)) and inner < 1 else order


def _targets(c: Call, axes: Sequence[int], at_scales: int, at_sizes: int) -> tuple[list[Extent], list[Extent | float]]:
    """Extents of the result and scales of the axes. A scale that the file gives stays a number, others are quotients."""
    shape = c.shape()
    if c.given(at_sizes) and c.shape(at_sizes) != (0,):
        sizes = c.numbers(at_sizes)
        policy = c.attribute("keep_aspect_ratio_policy", "stretch")
        if policy != "stretch":
            choose = min if policy == "not_larger" else max
            ratios = [float(size) / float(shape[axis]) for size, axis in zip(sizes, axes, strict=True)]
            scale = choose(ratios)
            sizes = [floor(scale * float(shape[axis]) + 0.5) for axis in axes]
            return sizes, [scale] * len(axes)
        return sizes, [sympy.sympify(size) / shape[axis] for size, axis in zip(sizes, axes, strict=True)]
    if not c.given(at_scales):
        given: list[Extent] = list(c.required("scales"))
    else:
        known = c.g.known(c.tensor(at_scales))
        if known is None:
            raise c.bad("scales that depend on data")
        given = [one if isinstance(one, sympy.Basic) else float(one) for one in known.reshape(-1)]
    outputs: list[Extent] = []
    for scale, axis in zip(given, axes, strict=True):
        exact = sympy.Rational(scale) if isinstance(scale, float) else scale
        outputs.append(floor_division(exact * shape[axis], 1))
    return outputs, given


def _number(c: Call, value: Extent | float) -> str:
    """A number, or a quotient of extents, as a tensor."""
    if isinstance(value, (int, float)):
        return c.g.constant(float(value), PRECISE)
    numerator, denominator = sympy.fraction(sympy.together(sympy.sympify(value)))
    parts = [extent_value(c.g, canonical(one), PRECISE) for one in (numerator, denominator)]
    return parts[0] if denominator == 1 else c.g.map("div", *parts)


def _coordinates(
    c: Call, where: str, extent: Extent, out: Extent, scale: Extent | float, bounds: tuple[float, float] | None
) -> str:
    """Of each element of the result its place in the input, between elements."""
    g = c.g
    own, wide, high = g.add("iota", extent=out, dtype=PRECISE), _number(c, extent), _number(c, out)
    factor = _number(c, scale)
    last, end = g.map("sub", wide, 1), g.map("sub", high, 1)
    if where in ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel"):
        found = g.map("sub", g.map("div", g.map("add", own, 0.5), factor), 0.5)
        if where == "half_pixel_symmetric":
            adjust = g.map("div", high, g.map("mul", factor, wide))
            found = g.map(
                "add", found, g.map("mul", g.map("mul", wide, 0.5), g.map("sub", g.constant(1.0, PRECISE), adjust))
            )
        if where == "pytorch_half_pixel":
            found = g.map("select", g.map("greater", high, 1.0), found, 0.0)
        return found
    if where == "asymmetric":
        return g.map("div", own, factor)
    if where == "align_corners":
        end = g.map("sub", g.map("mul", factor, wide), 1) if isinstance(scale, float) else end  # as given, not rounded
        single = g.map("less_equal", end, 0.0)
        return g.map("select", single, 0.0, g.map("div", g.map("mul", own, last), g.map("select", single, 1.0, end)))
    if where == "tf_crop_and_resize" and bounds is not None:
        start, stop = bounds
        single = g.map("less_equal", end, 0.0)
        step = g.map("div", g.map("mul", last, stop - start), g.map("select", single, 1.0, end))
        many = g.map("add", g.map("mul", last, start), g.map("mul", own, step))
        return g.map("select", single, g.map("mul", last, (start + stop) / 2), many)
    raise c.bad(f"coordinate_transformation_mode {where!r} is unknown")


def _clamped(c: Call, places: str, extent: Extent) -> str:
    last = c.g.map("sub", _number(c, extent), 1)
    return c.g.add("cast", c.g.map("max", c.g.map("min", places, last), 0), dtype="int64")


def _nearest(c: Call, x: str, axis: int, line: str, extent: Extent, how: str) -> str:
    g = c.g
    if how == "round_prefer_floor":
        places = g.map("ceil", g.map("sub", line, 0.5))
    elif how == "round_prefer_ceil":
        places = g.map("floor", g.map("add", line, 0.5))
    elif how in ("floor", "ceil"):
        places = g.map(how, line)
    else:
        raise c.bad(f"nearest_mode {how!r} is unknown")
    return g.add("gather", x, _clamped(c, places, extent), axis=axis)


def _weighted(c: Call, x: str, axis: int, line: str, extent: Extent, out: Extent, scale: Extent | float, mode: str) -> str:
    """Sum of neighbours; with ``antialias`` the neighbours of a smaller image are spread wider."""
    g, rank, dtype = c.g, c.g.types[x].rank, c.g.types[x].dtype
    stretch = 1.0
    if c.attribute("antialias", 0):
        try:
            stretch = max(1.0, 1.0 / float(scale))
        except TypeError as error:
            raise c.bad("antialias with a scale that depends on the request") from error
    reach = ceil((2 if mode == "cubic" else 1) * stretch)
    low = g.map("floor", line)
    taps, weights = [], []
    for tap in range(1 - reach, reach + 1):
        place = g.map("add", low, float(tap))
        away = g.map("div", g.map("abs", g.map("sub", line, place)), stretch)
        weight = _linear(c, away) if mode == "linear" else keys_cubic(g, away, c.attribute("cubic_coeff_a", -0.75))
        if c.attribute("exclude_outside", 0):
            here = g.map("and", g.map("less_equal", g.constant(0.0, PRECISE), place),
                         g.map("less", place, _number(c, extent)))  # fmt: skip
            weight = g.map("select", here, weight, 0.0)
        taps.append(_clamped(c, place, extent))
        weights.append(weight)
    if c.attribute("exclude_outside", 0) or stretch != 1:
        total = weights[0]
        for weight in weights[1:]:
            total = g.map("add", total, weight)
        weights = [g.map("div", weight, total) for weight in weights]
    found: str | None = None
    for places, weight in zip(taps, weights, strict=True):
        factor = reshaped(c, g.add("cast", weight, dtype=dtype), (out, *[1] * (rank - 1 - axis)))
        part = g.map("mul", g.add("gather", x, places, axis=axis), factor)
        found = part if found is None else g.map("add", found, part)
    assert found is not None
    return found


def _linear(c: Call, away: str) -> str:
    return c.g.map("max", c.g.map("sub", c.g.constant(1.0, PRECISE), away), 0.0)


def keys_cubic(g: Folding, s: str, a: float) -> str:
    """Keys' convolution kernel (1981) with parameter ``a`` at the distances ``s``."""
    near = g.map("add", g.map("mul", g.map("mul", g.map("sub", g.map("mul", s, a + 2), a + 3), s), s), 1.0)
    far = g.map("mul", g.map("sub", g.map("mul", g.map("add", g.map("mul", g.map("sub", s, 5.0), s), 8.0), s), 4.0), a)
    return g.map("select", g.map("less_equal", s, 1.0), near, g.map("select", g.map("less", s, 2.0), far, 0.0))


def _outside(c: Call, x: str, axis: int, line: str, extent: Extent) -> str:
    """What lies outside the image is the value that the file gives."""
    g, rank = c.g, c.g.types[x].rank
    last = g.map("sub", _number(c, extent), 1)
    there = g.map("or", g.map("less", line, 0.0), g.map("greater", line, last))
    there = reshaped(c, there, (c.g.types[x].shape[axis], *[1] * (rank - 1 - axis)))
    return g.map("select", there, c.attribute("extrapolation_value", 0.0), x)


RESIZE: Mapping[str, Rule] = {"Resize": _resize, "Upsample": _resize}
