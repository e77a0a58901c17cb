"""Rules of ATen operators on images: pools, and resizing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.frontends.onnx.resize import scaled_length
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule
from haotuner.graph.extents import Extent, product


def _settings(a: AtenContext) -> dict[str, Any]:
    kernel, rank = list(a.at(1)), len(a.shape()) - 2
    result: dict[str, list[int]] = {
        "kernel_shape": kernel,
        "strides": list(a.at(2) or kernel),
        "pads": list(a.at(3, [0])) * 2,
    }
    return {name: values * (rank * (2 if name == "pads" else 1) // len(values)) for name, values in result.items()}


def _most(a: AtenContext) -> list[str]:
    """The largest of each window, and its place in its own image; what nothing reads is left out later."""
    settings, wide, rank = _settings(a), list(a.at(4, [1])), len(a.shape()) - 2
    settings |= {"dilations": wide * (rank // len(wide)), "ceil_mode": int(a.at(5, False))}
    everywhere = a.several("MaxPool", a.at(0), outputs=2, **settings)[1]  # of ONNX: in the whole tensor
    inside = a.g.map("mod", everywhere, a.whole_scalar(product(a.shape()[2:])))
    return [a.onnx("MaxPool", a.at(0), **settings), inside]


def _mean(a: AtenContext) -> str:
    settings, ceil, divisor = _settings(a), bool(a.at(4, False)), a.at(6)
    if divisor is None:
        return a.onnx("AveragePool", a.at(0), **settings, ceil_mode=int(ceil), count_include_pad=int(a.at(5, True)))
    if ceil:
        raise UsageError(f"{a.op}: a divisor_override with ceil_mode has no rule")
    whole = a.onnx("AveragePool", a.at(0), **settings, count_include_pad=1)
    return a.g.map("mul", whole, prod(settings["kernel_shape"]) / divisor)


def _put_back(a: AtenContext) -> str:
    """max_unpool: each element at its place in its image, others are 0."""
    outer, image = a.shape()[: -len(a.at(2))], list(a.at(2))
    own = [product(outer), product(a.shape()[len(outer) :])]
    x, places = (a.onnx("Reshape", a.at(index), a.whole(own)) for index in (0, 1))
    none = a.onnx("Expand", a.cast(0, a.dtype), a.whole([own[0], product(image)]))
    return a.onnx("Reshape", a.onnx("ScatterElements", none, places, x, axis=1), a.whole([*outer, *image]))


def _meant(a: AtenContext) -> str:
    """Each place is the mean of a part of the image: a product with the shares of the pixels, along each axis."""
    counts = a.at(1)
    rank = len(counts)
    if all(count == 1 for count in counts):
        return a.onnx("ReduceMean", a.at(0), a.whole(list(range(-rank, 0))), keepdims=1)
    x = a.at(0)
    for index, count in enumerate(counts):
        axis = len(a.shape()) - rank + index
        shares = _shares(a, a.shape()[axis], count, a.dtype)
        order = [index for index in range(len(a.shape())) if index != axis] + [axis]
        mixed = a.onnx("MatMul", a.onnx("Transpose", x, perm=order), shares)
        x = a.onnx("Transpose", mixed, perm=[order.index(index) for index in range(len(order))])
    return str(x)


def _within(a: AtenContext, extent: Extent, count: int) -> tuple[str, str]:
    """(extent, count): whether a pixel is of a place, and (count) of how many: from ``place * extent // count``, torch's."""
    g, wide = a.g, a.cast(extent, "int64")
    position = g.add("iota", extent=count, dtype="int64")
    first = g.map("floordiv", g.map("mul", position, wide), count)
    last = g.map("floordiv", g.map("add", g.map("mul", g.map("add", position, 1), wide), count - 1), count)
    pixel = a.onnx("Reshape", g.add("iota", extent=extent, dtype="int64"), a.whole([extent, 1]))
    return g.map("and", g.map("less_equal", first, pixel), g.map("less", pixel, last)), g.map("sub", last, first)


def _shares(a: AtenContext, extent: Extent, count: int, dtype: str) -> str:
    """(extent, count): of each pixel's part in each place."""
    within, many = _within(a, extent, count)
    return a.g.map("select", within, a.g.map("div", a.g.constant(1, dtype), a.cast(many, dtype)), a.g.constant(0, dtype))


def _largest_parts(a: AtenContext) -> list[str]:
    """The largest of each part, an axis at a time."""
    x, counts = a.at(0), list(a.at(1))
    rank = len(a.shape())
    for axis, count in enumerate(counts, rank - len(counts)):
        behind = rank - 1 - axis
        extent = a.shape()[axis]
        within = a.onnx("Reshape", _within(a, extent, count)[0], a.whole([extent, count, *[1] * behind]))
        lined = a.onnx("Unsqueeze", x, a.whole(axis + 1))
        parts = a.g.map("select", within, lined, a.g.constant(-np.inf, a.dtype))
        x = a.g.add("reduce", parts, how="max", axes=(axis,), keepdims=False)
    return [x]


POOLS: Mapping[str, Rule] = {
    **{f"max_pool{rank}d_with_indices.default": _most for rank in (2, 3)},
    **{f"avg_pool{rank}d.default": _mean for rank in (1, 2, 3)},
    **{f"max_unpool{rank}d.default": _put_back for rank in (2, 3)},
    **{f"{name}{rank}d.default": _meant for name in ("_adaptive_avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3)},
    **{f"adaptive_max_pool{rank}d.default": _largest_parts for rank in (2, 3)},
}  # fmt: skip


def _resized(mode: str, *, exact: bool = False) -> Rule:
    """``vec`` gives sizes or factors, ``default`` sizes, and the factors that they came from."""

    def rule(a: AtenContext) -> str:
        linear, vec = mode != "nearest", a.op.endswith(".vec")
        rank = len(a.shape()) - 2
        factors = a.at(len(a.inputs) - 1) if vec else list(a.inputs[3 if linear else 2 :])
        aligned = linear and bool(a.at(2, False))
        how = "align_corners" if aligned else "half_pixel" if linear or exact else "asymmetric"
        settings = {"mode": mode, "coordinate_transformation_mode": how, "cubic_coeff_a": -0.75,
                    "nearest_mode": "round_prefer_ceil" if exact else "floor"}  # fmt: skip
        sizes = a.at(1)
        if sizes is None:  # torch multiplies in double precision
            sizes = [
                scaled_length(a.g, extent, float(by), "fp64") for extent, by in zip(a.shape()[2:], factors, strict=True)
            ]
        scales = None if aligned else _scales(a, factors)
        return a.onnx("Resize", a.at(0), None, scales, a.whole([*a.shape()[:2], *list(sizes)[:rank]]), **settings)

    return rule


def _spread_wider(mode: str, curve: float) -> Rule:
    """With antialias: pixels beyond the edge do not count."""

    def rule(a: AtenContext) -> str:
        how = "align_corners" if a.at(2, False) else "half_pixel"
        settings = {"mode": mode, "coordinate_transformation_mode": how, "cubic_coeff_a": curve, "antialias": 1,
                    "exclude_outside": 1}  # fmt: skip
        scales = None if a.at(2, False) else _scales(a, [a.at(3), a.at(4)])
        return a.onnx("Resize", a.at(0), None, scales, a.whole([*a.shape()[:2], *a.at(1)]), **settings)

    return rule


def _scales(a: AtenContext, factors: Sequence[float | None] | None) -> str | None:
    """Scales of the coordinates where every factor is given; None: the sizes say them."""
    known = [factor for factor in factors or () if factor is not None]
    if factors is None or not known or len(known) < len(factors):
        return None
    return a.g.constant(np.array([1.0, 1.0, *map(float, known)], np.float32))


def _sampled(a: AtenContext) -> str:
    mode = ("bilinear", "nearest", "bicubic")[a.at(2, 0)]
    edge = ("zeros", "border", "reflection")[a.at(3, 0)]
    ends = int(a.at(4, False))
    return a.onnx("GridSample", a.at(0), a.at(1), mode=mode, padding_mode=edge, align_corners=ends, within_first=1)


RESIZE: Mapping[str, Rule] = {
    **{f"{name}.default": _sampled for name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")},
    **{f"upsample_{name}.{kind}": _resized(mode) for kind in ("vec", "default") for name, mode in
       (("nearest1d", "nearest"), ("nearest2d", "nearest"), ("nearest3d", "nearest"), ("linear1d", "linear"),
        ("bilinear2d", "linear"), ("trilinear3d", "linear"), ("bicubic2d", "cubic"))},
    **{f"_upsample_nearest_exact{rank}d.{kind}": _resized("nearest", exact=True) for kind in ("vec", "default")
       for rank in (1, 2, 3)},
    "_upsample_bilinear2d_aa.default": _spread_wider("linear", -0.75),
    "_upsample_bicubic2d_aa.default": _spread_wider("cubic", -0.5),
}  # fmt: skip
