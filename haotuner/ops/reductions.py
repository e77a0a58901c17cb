"""reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod over the last or the first axis of a matrix; transpose."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any

import numpy as np

from haotuner.ops.formula import Formula, Load, Reduce, mean
from haotuner.ops.kind import Arrays, OpKind, Option, Options, plain, sum_rounding

_OPTIONS = {"over": Option(default="last", choices=("last", "first"))}


def _axis(options: Options) -> int:
    return 0 if options.get("over") == "first" else 1


def _sum_tolerance(inputs: Arrays, options: Options) -> Any:
    x, axis = inputs["x"], _axis(options)
    return sum_rounding(x.shape[axis]) * np.abs(x).sum(axis=axis) + 2.0**-100


def _mean_tolerance(inputs: Arrays, options: Options) -> Any:
    return (_sum_tolerance(inputs, options) + np.abs(inputs["x"]).sum(axis=_axis(options))) / inputs["x"].shape[
        _axis(options)
    ]


def _product_tolerance(inputs: Arrays, options: Options) -> Any:
    x, axis = inputs["x"], _axis(options)
    return np.abs(x.prod(axis=axis)) * (2.0 * x.shape[axis]) + 2.0**-100


def _no_tolerance(inputs: Arrays, options: Options) -> Any:
    return np.zeros(inputs["x"].shape[1 - _axis(options)])


def _reduction(
    name: str, meaning: str, formula: Callable[[str], Formula], tolerance: Callable[[Arrays, Options], Any]
) -> OpKind:
    @cache
    def of(over: str) -> OpKind:
        reduced, selected = ("n", "m") if over == "last" else ("m", "n")
        return OpKind(
            name=name,
            meaning=meaning,
            axes={axis: "reduction" if axis == reduced else "spatial" for axis in ("m", "n")},
            operands=(plain("x", "input", "m", "n"), plain("y", "output", selected)),
            flops=lambda e: e["m"] * e["n"],
            formula=formula(reduced),
            tolerance=tolerance,
            own_options=_OPTIONS,
            example=f"{name}:over={over}",
        )

    return replace(of("last"), variant=lambda options: of(options["over"]))


_X = Load("x")
REDUCTION_KINDS = (
    _reduction("reduce_sum", "the sum of X over an axis", lambda axis: Reduce("sum", axis, _X), _sum_tolerance),
    _reduction("reduce_mean", "the mean of X over an axis", lambda axis: mean(axis, _X), _mean_tolerance),
    _reduction("reduce_max", "the maximum of X over an axis", lambda axis: Reduce("max", axis, _X), _no_tolerance),
    _reduction("reduce_min", "the minimum of X over an axis", lambda axis: Reduce("min", axis, _X), _no_tolerance),
    _reduction("reduce_prod", "the product of X over an axis", lambda axis: Reduce("prod", axis, _X), _product_tolerance),
)


def _transposed(order: tuple[str, ...], axes: tuple[str, ...]) -> OpKind:
    return OpKind(
        name="transpose",
        meaning="swap: Y[b,n,m] = X[b,m,n]; heads: Y[b,n,m,k] = X[b,m,n,k]",
        axes=dict.fromkeys(axes, "spatial"),
        operands=(plain("x", "input", *axes), plain("y", "output", *order)),
        flops=lambda e: prod(e[axis] for axis in axes),  # whole numbers, or columns of them
        formula=_X,
        tolerance=lambda inputs, options: np.zeros(1),
        own_options={"order": Option(default="swap", choices=("swap", "heads"))},
        example="transpose:order=heads",
    )


_SWAP = _transposed(("b", "n", "m"), ("b", "m", "n"))
_HEADS = _transposed(("b", "n", "m", "k"), ("b", "m", "n", "k"))
TRANSPOSE = replace(_SWAP, variant=lambda options: _HEADS if options["order"] == "heads" else _SWAP)
