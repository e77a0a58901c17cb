"""Rules of ATen operators that make images larger or smaller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from haotuner.frontends.onnx.scaled_lengths import scaled_length
from haotuner.frontends.torch_export.aten_call import AtenContext, Rule


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
