"""Kinds with formulas for tests: a row sum, a softmax, a scaled row of three axes."""

from __future__ import annotations

import numpy as np

from haotuner.ops.formula import Apply, Load, Reduce
from haotuner.ops.kind import OpKind, plain, sum_rounding

_X = Load("x")
_POWER = Apply("exp", (Apply("sub", (_X, Reduce("max", "n", _X))),))
ROW_SUM = OpKind(
    name="row_sum",
    meaning="Y[m] = sum over n of X[m,n]",
    axes={"m": "spatial", "n": "reduction"},
    operands=(plain("x", "input", "m", "n"), plain("y", "output", "m")),
    flops=lambda e: e["m"] * e["n"],
    formula=Reduce("sum", "n", _X),
    tolerance=lambda inputs, options: sum_rounding(inputs["x"].shape[1]) * np.abs(inputs["x"]).sum(axis=1),
    exact=True,
)
SOFTMAX = OpKind(
    name="softmax",
    meaning="Y[m,n] = exp(X[m,n] - max X[m]) / their sum over n",
    axes={"m": "spatial", "n": "reduction"},
    operands=(plain("x", "input", "m", "n"), plain("y", "output", "m", "n")),
    flops=lambda e: 5 * e["m"] * e["n"],
    formula=Apply("div", (_POWER, Reduce("sum", "n", _POWER))),
    tolerance=lambda inputs, options: np.full(inputs["x"].shape, 8.0 + sum_rounding(inputs["x"].shape[1])),
)
SCALED = OpKind(
    name="scaled",
    meaning="Y[b,m,n] = X[b,m,n] * scale[n] + shift[b,m]",
    axes={"b": "spatial", "m": "spatial", "n": "spatial"},
    operands=(
        plain("x", "input", "b", "m", "n"),
        plain("scale", "constant", "n"),
        plain("shift", "input", "b", "m"),
        plain("y", "output", "b", "m", "n"),
    ),
    flops=lambda e: 2 * e["b"] * e["m"] * e["n"],
    formula=Apply("add", (Apply("mul", (_X, Load("scale"))), Load("shift"))),
    tolerance=lambda inputs, options: 4.0 + 4.0 * np.abs(inputs["x"] * inputs["scale"]),
)
FORMULA_KINDS = (ROW_SUM, SOFTMAX, SCALED)
