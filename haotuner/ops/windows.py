"""avg_pool, max_pool and resize over images of b x c x h x w, height and width known only at run time."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.ops.kind import Arrays, Operand, OpKind, Option, Options, plain

IMAGE = ("b", "c", "h", "w")
INPUT: Operand = plain("x", "input", *IMAGE)
OUTPUT: Operand = plain("y", "output", "b", "c", "p", "q")
_POOL = {
    "kernel": Option(default="2", counts=(1, 2)),
    "stride": Option(default="2", counts=(1, 2)),
    "pad": Option(default="0", counts=(1, 2)),
}


def pair(value: str) -> tuple[int, int]:
    """Along the height and along the width."""
    parts = [int(part) for part in value.split(".")]
    return parts[0], parts[-1]


def _pooled(side: int, axis: str) -> Any:
    def extent(extents: Mapping[str, Any], options: Options) -> Any:
        kernel, stride, pad = (pair(options.get(name, _POOL[name].default))[side] for name in _POOL)
        return np.maximum((extents[axis] + 2 * pad - kernel) // stride + 1, 0)

    return extent


def _views(inputs: Arrays, options: Options, fill: float) -> Any:
    """Windows of the padded image: b, c, p, q, and the window's own two axes."""
    (kh, kw), (sh, sw), (ph, pw) = (pair(options.get(name, _POOL[name].default)) for name in _POOL)
    x = np.pad(inputs["x"], ((0, 0), (0, 0), (ph, ph), (pw, pw)), constant_values=fill)
    if x.shape[2] < kh or x.shape[3] < kw:
        return np.zeros((*x.shape[:2], max(0, (x.shape[2] - kh) // sh + 1), max(0, (x.shape[3] - kw) // sw + 1), kh, kw))
    return np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))[:, :, ::sh, ::sw]


def _objection(extents: Mapping[str, int], options: Options) -> str:
    for side in (0, 1):
        kernel, stride, pad = (pair(options[name])[side] for name in _POOL)
        if kernel < 1 or stride < 1:
            return f"kernel={options['kernel']} and stride={options['stride']} must be at least 1"
        if 2 * pad > kernel:
            return f"pad={options['pad']} is more than half of kernel={options['kernel']}"
    return ""


def _pool(name: str, meaning: str, reference: Any, tolerance: Any) -> OpKind:
    return OpKind(
        name=name, meaning=meaning, axes=dict.fromkeys(IMAGE, "spatial"), operands=(INPUT, OUTPUT),
        flops=lambda e: e["b"] * e["c"] * e["h"] * e["w"], tolerance=tolerance, reference=reference, own_options=_POOL,
        derived={"p": _pooled(0, "h"), "q": _pooled(1, "w")}, objection=_objection,
        example=f"{name}:kernel=3,stride=2,pad=1",
    )  # fmt: skip


MAX_POOL = _pool(
    "max_pool", "Y[b,c,p,q] = the maximum of X over a window; nothing beyond the image counts",
    lambda inputs, options: _views(inputs, options, -np.inf).max(axis=(4, 5)), lambda inputs, options: np.zeros(1),
)  # fmt: skip
AVG_POOL = _pool(
    "avg_pool", "Y[b,c,p,q] = the mean of X over a window; zeros beyond the image count, as torch has it",
    lambda inputs, options: _views(inputs, options, 0.0).mean(axis=(4, 5)),
    lambda inputs, options: 4.0 * np.abs(_views(inputs, options, 0.0)).sum(axis=(4, 5)) + 2.0**-100,
)  # fmt: skip

_SCALED = {"mode": Option(default="nearest", choices=("nearest", "linear")), "scale": Option(default="2")}


def _scaled(axis: str) -> Any:
    return lambda extents, options: extents[axis] * int(options.get("scale", "2"))


def _resized(inputs: Arrays, options: Options) -> Any:
    """As torch's ``interpolate`` with ``align_corners=False``."""
    x, scale = inputs["x"], int(options.get("scale", "2"))
    if options.get("mode", "nearest") == "nearest":
        return x.repeat(scale, axis=2).repeat(scale, axis=3)
    for axis in (2, 3):
        at = np.maximum((np.arange(x.shape[axis] * scale) + 0.5) / scale - 0.5, 0.0)
        low = np.floor(at).astype(np.int64)
        high = np.minimum(low + 1, x.shape[axis] - 1)
        part = (at - low).reshape([-1 if index == axis else 1 for index in range(4)])
        x = x.take(low, axis=axis) * (1 - part) + x.take(high, axis=axis) * part
    return x


RESIZE = OpKind(
    name="resize", meaning="Y[b,c,p,q] = X enlarged by a whole factor, nearest or linear",
    axes=dict.fromkeys(IMAGE, "spatial"), operands=(INPUT, OUTPUT),
    flops=lambda e: 4 * e["b"] * e["c"] * e["h"] * e["w"], reference=_resized,
    tolerance=lambda inputs, options: 16.0 * np.abs(inputs["x"]).max(initial=0.0) + 2.0**-100,
    own_options=_SCALED, derived={"p": _scaled("h"), "q": _scaled("w")},
    objection=lambda extents, options: "" if int(options["scale"]) >= 1 else "scale=0 leaves no image",
    example="resize:mode=linear,scale=2",
)  # fmt: skip

WINDOW_KINDS = (MAX_POOL, AVG_POOL, RESIZE)
