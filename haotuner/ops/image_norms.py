"""instance_norm and group_norm: norms over images whose pixels lie one after the other. Each is a formula.

An image of height h and width w is a row of ``n = h * w`` pixels: ``x.reshape(b, c, -1)`` is a view. For ``group_norm`` the
channels are ``g`` groups of ``d``: ``x.reshape(b, g, d, -1)``, scale and bias ``(g, d)``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from haotuner.ops.formula import Formula, Load, apply, mean
from haotuner.ops.kind import Arrays, AxisRole, Operand, OpKind, Option, Options, plain, sum_rounding
from haotuner.ops.rows import EPS

X = Load("x")
_AFFINE = Option(default="none", choices=("none", "scale_bias"))
_ACTIVATION = Option(default="none", choices=("none", "relu"))


def _mean(axes: tuple[str, ...], of: Formula) -> Formula:
    for axis in reversed(axes):
        of = mean(axis, of)
    return of


def _norm(name: str, meaning: str, axes: Mapping[str, AxisRole], channels: tuple[str, ...]) -> OpKind:
    """A norm over the axes that are reductions; scale and bias belong to ``channels``."""
    folded = tuple(axis for axis, role in axes.items() if role == "reduction")
    places = tuple(list(axes).index(axis) for axis in folded)
    options = {"affine": _AFFINE, "eps": EPS, "activation": _ACTIVATION}

    @cache
    def of(affine: str, eps: str, activation: str) -> OpKind:
        moved = apply("sub", X, _mean(folded, X))
        variance = _mean(folded, apply("mul", moved, moved))
        y: Formula = apply("mul", moved, apply("rsqrt", apply("add", variance, float(eps))))
        operands: tuple[Operand, ...] = (plain("x", "input", *axes),)
        if affine == "scale_bias":
            y = apply("add", apply("mul", y, Load("scale")), Load("bias"))
            operands += (plain("scale", "constant", *channels), plain("bias", "constant", *channels))
        if activation == "relu":
            y = apply("max", y, 0.0)
        return OpKind(
            name=name,
            meaning=meaning,
            axes=axes,
            operands=(*operands, plain("y", "output", *axes)),
            flops=lambda e: 8 * prod(e[axis] for axis in axes),
            formula=y,
            tolerance=_tolerance(places, tuple(axes), channels),
            own_options=options,
            example=f"{name}:affine=scale_bias,activation=relu",
        )

    return replace(
        of(_AFFINE.default, EPS.default, _ACTIVATION.default),
        variant=lambda inputs: of(inputs["affine"], inputs["eps"], inputs["activation"]),
    )


def _tolerance(places: tuple[int, ...], axes: tuple[str, ...], channels: tuple[str, ...]) -> Any:
    """As of norms over rows: what moving by the mean rounds off, relative to the deviation, and the sums' own rounding."""

    def spread(values: Any) -> Any:
        return np.reshape(values, [values.shape[channels.index(axis)] if axis in channels else 1 for axis in axes])

    def tolerance(inputs: Arrays, options: Options) -> Any:
        x = inputs["x"]
        rounding = sum_rounding(prod(x.shape[position] for position in places))
        moved = x - x.mean(axis=places, keepdims=True)
        variance = (moved**2).mean(axis=places, keepdims=True)
        inverse = 1 / np.sqrt(variance + float(options.get("eps", EPS.default)))
        y = np.abs(moved * inverse)
        size = np.abs(x)
        off = (2 * size + rounding * size.mean(axis=places, keepdims=True)) * inverse
        result = off * (1 + y) + y * (8.0 + rounding)
        if "scale" not in inputs:
            return result
        scale = np.abs(spread(inputs["scale"]))
        return (result + y) * scale + np.abs(spread(inputs["bias"]))

    return tolerance


INSTANCE_NORM = _norm(
    "instance_norm", "Y[b,c] = (X[b,c] - mean) / sqrt(variance + eps) over the pixels n, then scale and bias by channel",
    {"b": "spatial", "c": "spatial", "n": "reduction"}, ("c",),
)  # fmt: skip
GROUP_NORM = _norm(
    "group_norm",
    "Y[b,g] = (X[b,g] - mean) / sqrt(variance + eps) over the d channels of a group and their pixels n, then "
    "scale and bias of each channel",
    {"b": "spatial", "g": "spatial", "d": "reduction", "n": "reduction"},
    ("g", "d"),
)

IMAGE_NORMS = (INSTANCE_NORM, GROUP_NORM)
