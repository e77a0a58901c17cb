"""Decompositions: softmax, norms and activations as primitives, safe against overflow; on names of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from math import pi, sqrt

from haotuner.graph.extents import Extent, product
from haotuner.graph.graph import GraphBuilder


def mean(g: GraphBuilder, x: str, axes: Sequence[int], *, keepdims: bool = True) -> str:
    """The sum over the axes, divided by their number."""
    total = g.add("reduce", x, how="sum", axes=tuple(axes), keepdims=keepdims)
    return g.map("div", total, extent_value(g, product(g.types[x].shape[axis] for axis in axes), g.types[x].dtype))


def extent_value(g: GraphBuilder, extent: Extent, dtype: str) -> str:
    """An extent as a number of a type; dimensions come from the request."""
    if isinstance(extent, int):
        return g.constant(extent, dtype)
    return g.add("size", extent=extent, dtype=dtype)


def softmax(g: GraphBuilder, x: str, axis: int = -1) -> str:
    """exp(x - max) / sum of exp(x - max)."""
    e = g.map("exp", g.map("sub", x, g.add("reduce", x, how="max", axes=(axis,), keepdims=True)))
    return g.map("div", e, g.add("reduce", e, how="sum", axes=(axis,), keepdims=True))


def log_softmax(g: GraphBuilder, x: str, axis: int = -1) -> str:
    """(x - max) - log of the sum of exp(x - max)."""
    moved = g.map("sub", x, g.add("reduce", x, how="max", axes=(axis,), keepdims=True))
    total = g.add("reduce", g.map("exp", moved), how="sum", axes=(axis,), keepdims=True)
    return g.map("sub", moved, g.map("log", total))


def normalise(g: GraphBuilder, x: str, axes: Sequence[int], eps: float) -> str:
    """(x - mean) / sqrt(variance + eps), the variance of the moved values: no difference of large squares."""
    moved = g.map("sub", x, mean(g, x, axes))
    variance = mean(g, g.map("mul", moved, moved), axes)
    return g.map("mul", moved, g.map("rsqrt", g.map("add", variance, eps)))


def rms_normalise(g: GraphBuilder, x: str, axes: Sequence[int], eps: float) -> str:
    """X / sqrt(mean of squares + eps)."""
    return g.map("mul", x, g.map("rsqrt", g.map("add", mean(g, g.map("mul", x, x), axes), eps)))


def affine(g: GraphBuilder, x: str, scale: str | None, bias: str | None) -> str:
    """Scale, then bias, where given."""
    scaled = g.map("mul", x, scale) if scale else x
    return g.map("add", scaled, bias) if bias else scaled


def gelu(g: GraphBuilder, x: str) -> str:
    """x/2 * (1 + erf(x / sqrt 2))."""
    return g.map("mul", g.map("mul", x, 0.5), g.map("add", g.map("erf", g.map("mul", x, sqrt(0.5))), 1.0))


def gelu_tanh(g: GraphBuilder, x: str) -> str:
    """x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 x^3))) (Hendrycks and Gimpel 2016)."""
    cubed = g.map("mul", g.map("mul", x, x), x)
    inner = g.map("mul", g.map("add", x, g.map("mul", cubed, 0.044715)), sqrt(2 / pi))
    return g.map("mul", g.map("mul", x, 0.5), g.map("add", g.map("tanh", inner), 1.0))


def attention(g: GraphBuilder, q: str, k: str, v: str, scale: float, mask: str | None = None) -> str:
    """softmax(q k^T * scale + mask) v; q, k, v: batch x heads x tokens x depth."""
    scores = g.map("mul", g.add("contract", q, k, labels="bhqd,bhkd->bhqk"), scale)
    weights = softmax(g, g.map("add", scores, mask) if mask else scores)
    return g.add("contract", weights, v, labels="bhqk,bhkd->bhqd")
