"""Plain definitions that tests derive from, with iterators of any names, windows, strides and dilations of any size."""

from __future__ import annotations

import random
import string

from haotuner.derive.expression import Scope, names, renamed
from haotuner.derive.text import parse


def conv(window: int = 3, stride: int = 1, dilation: int = 1, weight: str = "K", features: str = "f") -> Scope:
    """A convolution of a batch of images with channels last, of ``h`` x ``w`` results."""
    pad = dilation * (window // 2)
    image = f"A(n, {stride}*h, {stride}*w, c)"
    at = [f"{stride}*{x} + {dilation}*{r} - {pad}" for x, r in (("y", "r"), ("x", "s"))]
    return parse(
        f"{image}, {weight}({window}, {window}, {features}, c)!; L[b:0..n, y:0..h, x:0..w, o:0..{features}] "
        f"S[i:0..c, r:0..{window}, s:0..{window}] A[b, {at[0]}, {at[1]}, i] * {weight}[r, s, o, i]"
    )


def transposed_conv(window: int = 4, stride: int = 2, pad: int = 1) -> Scope:
    """A transposed convolution: every element of the image, times the weight's element that lies above the result's."""
    at = [f"{y} + {pad} - {stride}*{p}" for y, p in (("y", "p"), ("x", "q"))]
    return parse(
        f"X(n, h, w, c), K({window}, {window}, c, f)!; L[b:0..n, y:0..{stride}*h, x:0..{stride}*w, o:0..f] "
        f"S[i:0..c, p:0..h, q:0..w] X[b, p, q, i] * K[{at[0]}, {at[1]}, i, o]"
    )


def band(width: int = 4, dilation: int = 4) -> Scope:
    """A band of a product of two activations, as Longformer's attention has it."""
    return parse(
        f"Q(b, s, k), K(b, s, k); L[n:0..b, i:0..s, w:0..{2 * width + 1}] S[d:0..k] "
        f"Q[n, i, d] * K[n, i + {dilation}*w - {dilation * width}, d]"
    )


def matmul(number: int, features: str) -> Scope:
    """A product of X with a weight of its own."""
    return parse(f"X(m, k), W{number}({features}, k)!; L[a:0..m, o:0..{features}] S[d:0..k] X[a, d] * W{number}[o, d]")


def other_names(scope: Scope, seed: int) -> Scope:
    """Copy with random names of iterators."""
    draw = random.Random(seed)
    letters = {name: "".join(draw.choices(string.ascii_lowercase, k=5)) for name in sorted(names(scope))}
    return renamed(scope, lambda name: f"z{letters[name]}")
