"""Kinds over rows: softmax, norms, activations, reductions; norms over images. Each is a formula.

instance_norm and group_norm: norms over images whose pixels lie one after the other. Each is a formula.

An image of height h and width w is a row of ``n = h * w`` pixels: ``x.reshape(b, c, -1)`` is a view. For ``group_norm`` the
channels are ``g`` groups of ``d``: ``x.reshape(b, g, d, -1)``, scale and bias ``(g, d)``.

reduce_sum, reduce_mean, reduce_max, reduce_min, reduce_prod over the last or the first axis of a matrix; transpose.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from math import pi, prod, sqrt
from typing import Any

import numpy as np

from haotuner.ops.formula import Formula, Load, Reduce, apply, mean
from haotuner.ops.kind import Arrays, AxisRole, Operand, OpKind, Option, Options, plain, sum_rounding

X = Load("x")
ROW = {"m": "spatial", "n": "reduction"}
ELEMENTS = {"m": "spatial", "n": "spatial"}
INPUT, OUTPUT = plain("x", "input", "m", "n"), plain("y", "output", "m", "n")
# 1e-5: torch's default; 1e-6: T5 and Llama; 1e-12: BERT.
EPS = Option(default="1e-5", choices=("1e-5", "1e-6", "1e-12", "1e-3"))


def _kind(name: str, meaning: str, formula: Formula, tolerance: Callable[[Arrays, Options], Any], *, flops: int,
          axes: Mapping[str, Any] = ROW, operands: tuple[Operand, ...] = (INPUT, OUTPUT)) -> OpKind:  # fmt: skip
    return OpKind(
        name=name, meaning=meaning, axes=axes, operands=operands, flops=lambda e: flops * e["m"] * e["n"],
        formula=formula, tolerance=tolerance, example=f"{name}:",
    )  # fmt: skip


# Softmax

_MOVED = apply("sub", X, Reduce("max", "n", X))
_POWER = apply("exp", _MOVED)


def _softmax_tolerance(inputs: Arrays, options: Options) -> Any:
    """exp(x - max) is off by the rounding of x - max, the sum by its own, relative to each result."""
    x = inputs["x"]
    moved = x - x.max(axis=1, keepdims=True)
    y = np.exp(moved)
    y /= y.sum(axis=1, keepdims=True)
    return y * (8.0 + np.abs(moved) + sum_rounding(x.shape[1])) + 2.0**-100


def _log_softmax_tolerance(inputs: Arrays, options: Options) -> Any:
    x = inputs["x"]
    return 8.0 + sum_rounding(x.shape[1]) + 2 * np.abs(x - x.max(axis=1, keepdims=True)) + np.log(x.shape[1])


SOFTMAX = _kind("softmax", "Y[m,n] = exp(X[m,n] - max X[m]) / their sum over n",
                apply("mul", _POWER, apply("reciprocal", Reduce("sum", "n", _POWER))), _softmax_tolerance,
                flops=5)  # the sum lies in 1..n, so its reciprocal loses nothing  # fmt: skip
LOG_SOFTMAX = _kind("log_softmax", "Y[m,n] = X[m,n] - max X[m] - log of the sum over n of exp(X - max)",
                    apply("sub", _MOVED, apply("log", Reduce("sum", "n", _POWER))), _log_softmax_tolerance,
                    flops=5)  # fmt: skip


# Norms


def _norm(
    name: str, meaning: str, x: Formula, centred: bool, operands: tuple[Operand, ...], affines: tuple[str, ...]
) -> OpKind:
    """A norm over rows, with a variant for each eps and for each of ``affines``: none, scale, scale.bias."""
    options = {"affine": Option(default="none", choices=affines), "eps": EPS}

    @cache
    def of(affine: str, eps: str) -> OpKind:
        moved = apply("sub", x, mean("n", x)) if centred else x
        variance = mean("n", apply("mul", moved, moved))
        y: Formula = apply("mul", moved, apply("rsqrt", apply("add", variance, float(eps))))
        more: tuple[Operand, ...] = ()
        if affine != "none":
            y, more = apply("mul", y, Load("scale")), (plain("scale", "constant", "n"),)
        if affine == "scale_bias":
            y, more = apply("add", y, Load("bias")), (*more, plain("bias", "constant", "n"))
        kind = _kind(name, meaning, y, _norm_tolerance(centred), flops=8, operands=(*operands[:-1], *more, operands[-1]))
        return replace(kind, own_options=options)

    return replace(of("none", EPS.default), variant=lambda inputs: of(inputs["affine"], inputs["eps"]))


def _norm_tolerance(centred: bool) -> Callable[[Arrays, Options], Any]:
    def tolerance(inputs: Arrays, options: Options) -> Any:
        """Rounding of moving by the mean, relative to the deviation, and that of the sums."""
        x = inputs["x"] + inputs.get("residual", 0.0)
        size = np.abs(inputs["x"]) + np.abs(inputs.get("residual", 0.0))
        rounding = sum_rounding(x.shape[1])
        moved = x - x.mean(axis=1, keepdims=True) if centred else x
        inverse = 1 / np.sqrt((moved**2).mean(axis=1, keepdims=True) + float(options.get("eps", EPS.default)))
        y = np.abs(moved * inverse)
        off = (2 * size + rounding * size.mean(axis=1, keepdims=True)) * inverse if centred else 2 * y
        result = off * (1 + y) + y * (8.0 + rounding)
        scale = np.abs(inputs.get("scale", 1.0))
        return result * scale + np.abs(inputs.get("bias", 0.0)) + y * scale

    return tolerance


_AFFINES = ("none", "scale", "scale_bias")
LAYER_NORM = _norm("layer_norm", "Y[m] = (X[m] - mean) / sqrt(variance + eps), then scale and bias of each column", X, True,
                   (INPUT, OUTPUT), _AFFINES)  # fmt: skip
RMS_NORM = _norm("rms_norm", "Y[m] = X[m] / sqrt(mean of squares + eps), then scale of each column", X, False,
                 (INPUT, OUTPUT), _AFFINES[:2])  # fmt: skip
ADD_LAYER_NORM = _norm("add_layer_norm", "Y[m] = layer_norm(X[m] + R[m])", apply("add", X, Load("residual")), True,
                       (INPUT, plain("residual", "input", "m", "n"), OUTPUT), _AFFINES)  # fmt: skip


# Activations


def _gelu(x: Formula) -> Formula:
    return apply("mul", apply("mul", x, 0.5), apply("add", apply("erf", apply("mul", x, sqrt(0.5))), 1.0))


def _gelu_tanh(x: Formula) -> Formula:
    cubed = apply("mul", apply("mul", x, x), x)
    inner = apply("mul", apply("add", x, apply("mul", cubed, 0.044715)), sqrt(2 / pi))
    return apply("mul", apply("mul", x, 0.5), apply("add", apply("tanh", inner), 1.0))


def _activation_tolerance(inputs: Arrays, options: Options) -> Any:
    """A few roundings, of numbers as large as the input: 1 + erf(x) cancels where x is far below 0."""
    size = np.abs(inputs["x"]) + np.abs(inputs.get("bias", 0.0))
    return 8.0 * size + 2.0**-100


GELU = _kind("gelu", "Y = X/2 * (1 + erf(X / sqrt 2))", _gelu(X), _activation_tolerance, flops=10, axes=ELEMENTS)
GELU_TANH = _kind("gelu_tanh", "Y = X/2 * (1 + tanh(sqrt(2/pi) * (X + 0.044715 X^3)))", _gelu_tanh(X), _activation_tolerance,
                  flops=12, axes=ELEMENTS)  # fmt: skip
SILU = _kind("silu", "Y = X * sigmoid(X)", apply("mul", X, apply("sigmoid", X)), _activation_tolerance, flops=6,
             axes=ELEMENTS)  # fmt: skip
BIAS_GELU = _kind("bias_gelu", "Y = gelu(X + bias of each column)", _gelu(apply("add", X, Load("bias"))),
                  _activation_tolerance, flops=11, axes=ELEMENTS,
                  operands=(INPUT, plain("bias", "constant", "n"), OUTPUT))  # fmt: skip

ROW_KINDS = (SOFTMAX, LOG_SOFTMAX, LAYER_NORM, RMS_NORM, ADD_LAYER_NORM, GELU, GELU_TANH, SILU, BIAS_GELU)


_AFFINE = Option(default="none", choices=("none", "scale_bias"))
_ACTIVATION = Option(default="none", choices=("none", "relu"))


def _mean(axes: tuple[str, ...], of: Formula) -> Formula:
    for axis in reversed(axes):
        of = mean(axis, of)
    return of


def _image_norm(name: str, meaning: str, axes: Mapping[str, AxisRole], channels: tuple[str, ...]) -> OpKind:
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


INSTANCE_NORM = _image_norm(
    "instance_norm", "Y[b,c] = (X[b,c] - mean) / sqrt(variance + eps) over the pixels n, then scale and bias by channel",
    {"b": "spatial", "c": "spatial", "n": "reduction"}, ("c",),
)  # fmt: skip
GROUP_NORM = _image_norm(
    "group_norm",
    "Y[b,g] = (X[b,g] - mean) / sqrt(variance + eps) over the d channels of a group and their pixels n, then "
    "scale and bias of each channel",
    {"b": "spatial", "g": "spatial", "d": "reduction", "n": "reduction"},
    ("g", "d"),
)

IMAGE_NORMS = (INSTANCE_NORM, GROUP_NORM)


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
