"""attention: softmax(Q Kᵀ · scale + mask) V over heads side by side; queries and keys of any number, tied or not.

``b`` counts heads of all requests, ``t`` queries, ``s`` keys, ``d`` the depth of a head. ``causal=end`` lets query i see the
keys up to i + s - t. So the last query sees all, as when a cache of keys is longer than the queries; ``causal=start`` lets
it see those up to i, as torch's ``is_causal`` does. ``heads=apart`` gives heads an axis ``h`` of their own behind ``b``, so
that they may lie at any stride, such as those of (b, t, h, d). A query that sees no key has NaN, as softmax of nothing has.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from haotuner.ops.kind import Arrays, Operand, OpKind, Option, Options, plain, sum_rounding

_OPTIONS = {
    "causal": Option(default="none", choices=("none", "end", "start"), prefixed=True),
    "mask": Option(default="none", choices=("none", "keys", "full"), prefixed=True),  # added: b x s, or b x t x s
    "heads": Option(default="folded", choices=("folded", "apart"), prefixed=True),
    "scale": Option(default="sqrt", choices=("sqrt", "one"), prefixed=True),  # 1 / sqrt(d), or none
}


def scale_of(options: Options, depth: int) -> float:
    """Factor of the scores."""
    return float(depth) ** -0.5 if options.get("scale", "sqrt") == "sqrt" else 1.0


def _scores(inputs: Arrays, options: Options) -> tuple[Any, Any]:
    """Scores after scale and mask, and how far each may be off."""
    q, k = inputs["q"], inputs["k"]
    scale = scale_of(options, q.shape[-1])
    result = (q @ k.swapaxes(-1, -2)) * scale
    off = sum_rounding(q.shape[-1]) * scale * (np.abs(q) @ np.abs(k).swapaxes(-1, -2)) + 2.0 * np.abs(result)
    if "mask" in inputs:
        own = inputs["mask"]
        mask = own if own.ndim == result.ndim else own.reshape(own.shape[0], *[1] * (result.ndim - 2), own.shape[-1])
        result = result + mask
        off = off + np.where(np.isfinite(result), np.abs(result), 0.0)
    if options.get("causal", "none") != "none":
        t, s = result.shape[-2:]
        last = np.arange(t)[:, None] + (s - t if options["causal"] == "end" else 0)
        result = np.where(np.arange(s)[None, :] <= last, result, -np.inf)
    return result, off


def _weights(scores: Any) -> Any:
    with np.errstate(invalid="ignore", divide="ignore"):
        result = np.exp(scores - scores.max(axis=-1, keepdims=True, initial=-np.inf))
        return result / result.sum(axis=-1, keepdims=True)


def _attention(inputs: Arrays, options: Options) -> Any:
    return _weights(_scores(inputs, options)[0]) @ inputs["v"]


def _tolerance(inputs: Arrays, options: Options) -> Any:
    """Each weight is off by what its score and the largest one are, relative to it; sums by their own rounding."""
    scores, off = _scores(inputs, options)
    with np.errstate(invalid="ignore"):
        moved = scores - scores.max(axis=-1, keepdims=True, initial=-np.inf)
    far = np.where(np.isfinite(moved), np.abs(moved), 0.0)
    each = 2.0 * off.max(axis=-1, keepdims=True, initial=0.0) + far + 8.0 + 2.0 * sum_rounding(max(1, scores.shape[-1]))
    return (np.nan_to_num(_weights(scores)) * each) @ np.abs(inputs["v"]) + 2.0**-100


def _rounded(inputs: Arrays, options: Options, roundoff: Callable[[Any], Any]) -> Any:
    """Exponentials enter the second product in its type; sums of them are at least 1, so weights are off no more."""
    return roundoff(np.nan_to_num(_weights(_scores(inputs, options)[0]))) @ np.abs(inputs["v"])


@cache
def _kind(causal: str, mask: str, heads: str) -> OpKind:
    outer = ("b", "h") if heads == "apart" else ("b",)
    rows = {name: plain(name, "input", *outer, axis, "d") for name, axis in (("q", "t"), ("k", "s"), ("v", "s"))}
    operands: tuple[Operand, ...] = tuple(rows.values())
    if mask != "none":
        # The option of that name is the kind's and says no layout.
        own = ("b", "s") if mask == "keys" else (*outer, "t", "s")
        operands += (Operand(name="mask", role="input", layouts={"".join(own): own}, option="mask layout"),)
    return OpKind(
        name="attention",
        meaning="Y[b,t] = sum over s of softmax(Q[b,t] · K[b,s] * scale + mask) V[b,s]",
        # What a query may see depends on where it stands, so that causal rows cannot be had by calls of their own.
        axes={**dict.fromkeys(outer, "spatial"), "t": "spatial" if causal == "none" else "reduction", "s": "reduction",
              "d": "reduction"},
        operands=(*operands, plain("y", "output", *outer, "t", "d")),
        flops=lambda e: 4 * prod(e[axis] for axis in (*outer, "t", "s", "d")),
        reference=_attention,
        tolerance=_tolerance,
        rounded=_rounded,
        own_options=_OPTIONS,
        example="attention:d=64,causal=end",
    )  # fmt: skip


ATTENTION = replace(
    _kind("none", "none", "folded"),
    variant=lambda options: _kind(options["causal"], options["mask"], options["heads"]),
)
