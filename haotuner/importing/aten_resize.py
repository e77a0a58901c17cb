"""Rules of ATen operators that make images larger or smaller."""

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


def _spread_wider(mode: str, curve: float) -> Rule:
    """With antialias: pixels beyond the edge do not count."""

    def rule(a: Aten) -> str:
        how = "align_corners" if a.at(2, False) else "half_pixel"
        settings = {"mode": mode, "coordinate_transformation_mode": how, "cubic_coeff_a": curve, "antialias": 1,
                    "exclude_outside": 1}  # fmt: skip
        sizes, factors = list(a.at(1)), [a.at(3), a.at(4)]
        if None not in factors and not a.at(2, False) and _follow(a, sizes, factors):
            scales = a.g.constant(np.array([1.0, 1.0, *map(float, factors)], np.float32))
            return a.onnx("Resize", a.at(0), None, scales, **settings)
        return a.onnx("Resize", a.at(0), None, None, a.whole([*a.shape()[:2], *sizes]), **settings)

    return rule


def _follow(a: Aten, sizes: list[Extent], factors: list[float]) -> bool:
    """Whether the sizes are what the factors make."""
    return all(a.scaled(one, factor) == size for one, factor, size in zip(a.shape()[2:], factors, sizes, strict=True))


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
    "_upsample_bilinear2d_aa.default": _spread_wider("linear", -0.75),
    "_upsample_bicubic2d_aa.default": _spread_wider("cubic", -0.5),
}  # fmt: skip
