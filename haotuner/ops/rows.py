"""Kinds over the rows of a matrix: softmax, norms and activations. Each is a formula; programs are generated from it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from math import pi, sqrt
from typing import Any

import numpy as np

from haotuner.ops.formula import Formula, Load, Reduce, apply, mean
from haotuner.ops.kind import Arrays, Operand, OpKind, Option, Options, plain, sum_rounding

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
