"""Rules of ATen operators that make images larger or smaller, and of pools with a given number of places."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from haotuner.graph.extents import Extent, canonical
from haotuner.importing.aten_call import Aten, Rule


def _resized(mode: str, *, exact: bool = False) -> Rule:
    """``vec`` gives sizes or factors, ``default`` sizes, and the factors that they came from."""

    def rule(a: Aten) -> str:
        linear, vec = mode != "nearest", a.op.endswith(".vec")
        rank = len(a.shape()) - 2
        factors = a.at(len(a.inputs) - 1) if vec else list(a.inputs[3 if linear else 2 :])
        aligned = linear and bool(a.at(2, False))
        how = "align_corners" if aligned else "half_pixel" if linear or exact else "asymmetric"
        settings = {"mode": mode, "coordinate_transformation_mode": how, "cubic_coeff_a": -0.75,
                    "nearest_mode": "round_prefer_ceil" if exact else "floor"}  # fmt: skip
        sizes = a.at(1)
        if (
            factors
            and all(one is not None for one in factors)
            and not aligned
            and (sizes is None or _follow(a, sizes, factors))
        ):
            scales = a.g.constant(np.array([1.0, 1.0, *map(float, factors)], np.float32))
            return a.onnx("Resize", a.at(0), None, scales, **settings)
        if sizes is None:
            sizes = [canonical(a.scaled(one, factor)) for one, factor in zip(a.shape()[2:], factors, strict=True)]
        return a.onnx("Resize", a.at(0), None, None, a.whole([*a.shape()[:2], *list(sizes)[:rank]]), **settings)

    return rule


def _follow(a: Aten, sizes: list[Extent], factors: list[float]) -> bool:
    """Whether the sizes are what the factors make."""
    return all(a.scaled(one, factor) == size for one, factor, size in zip(a.shape()[2:], factors, sizes, strict=True))


def _pooled(a: Aten) -> str:
    """Each place is the mean of a part of the image: a product with the shares of the pixels, along each axis."""
    counts = a.at(1)
    rank = len(counts)
    if all(one == 1 for one in counts):
        return a.onnx("ReduceMean", a.at(0), a.whole(list(range(-rank, 0))), keepdims=1)
    x = a.at(0)
    for place, count in enumerate(counts):
        axis = len(a.shape()) - rank + place
        shares = _shares(a, a.shape()[axis], count, a.dtype)
        order = [one for one in range(len(a.shape())) if one != axis] + [axis]
        mixed = a.onnx("MatMul", a.onnx("Transpose", x, perm=order), shares)
        x = a.onnx("Transpose", mixed, perm=[order.index(one) for one in range(len(order))])
    return str(x)


def _shares(a: Aten, extent: Extent, count: int, dtype: str) -> str:
    """(extent, count): of each pixel's part in each place, from ``place * extent // count`` on, torch's bounds."""
    g, wide = a.g, a.cast(extent, "int64")
    place = g.add("iota", extent=count, dtype="int64")
    first = g.map("floordiv", g.map("mul", place, wide), count)
    last = g.map("floordiv", g.map("add", g.map("mul", g.map("add", place, 1), wide), count - 1), count)
    pixel = a.onnx("Reshape", g.add("iota", extent=extent, dtype="int64"), a.whole([extent, 1]))
    within = g.map("and", g.map("less_equal", first, pixel), g.map("less", pixel, last))
    share = g.map("div", g.constant(1, dtype), a.cast(g.map("sub", last, first), dtype))
    return g.map("select", within, share, g.constant(0, dtype))


def _sampled(a: Aten) -> str:
    mode = ("bilinear", "nearest", "bicubic")[a.at(2, 0)]
    edge = ("zeros", "border", "reflection")[a.at(3, 0)]
    return a.onnx("GridSample", a.at(0), a.at(1), mode=mode, padding_mode=edge, align_corners=int(a.at(4, False)))


RESIZE: Mapping[str, Rule] = {
    **{f"{name}.default": _sampled for name in ("grid_sampler", "grid_sampler_2d", "grid_sampler_3d")},
    **{f"upsample_{name}.{kind}": _resized(mode) for kind in ("vec", "default") for name, mode in
       (("nearest1d", "nearest"), ("nearest2d", "nearest"), ("nearest3d", "nearest"), ("linear1d", "linear"),
        ("bilinear2d", "linear"), ("trilinear3d", "linear"), ("bicubic2d", "cubic"))},
    **{f"_upsample_nearest_exact{rank}d.{kind}": _resized("nearest", exact=True) for kind in ("vec", "default")
       for rank in (1, 2, 3)},
    **{f"{name}{rank}d.default": _pooled for name in ("_adaptive_avg_pool", "adaptive_avg_pool") for rank in (1, 2, 3)},
}  # fmt: skip
