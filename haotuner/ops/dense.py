"""dense: a matrix product with a constant second factor, as ``torch.nn.Linear`` has it."""

from __future__ import annotations

from typing import Any

import numpy as np

from haotuner.ops.kind import Arrays, Operand, OpKind, Options, plain, sum_rounding
from haotuner.ops.product_options import PRODUCT_OPTIONS


def _product(inputs: Arrays, options: Options) -> Any:
    return inputs["x"] @ inputs["weight"].T


def _tolerance(inputs: Arrays, options: Options) -> Any:
    depth = inputs["x"].shape[-1]
    return sum_rounding(depth) * (np.abs(inputs["x"]) @ np.abs(inputs["weight"]).T)


DENSE = OpKind(
    name="dense",
    meaning="Y[m,n] = X[m,k] · W[n,k]^T",
    axes={"m": "spatial", "n": "spatial", "k": "reduction"},
    operands=(
        plain("x", "input", "m", "k"),
        Operand(name="weight", role="constant", layouts={"nk": ("n", "k"), "kn": ("k", "n")}),
        plain("y", "output", "m", "n"),
    ),
    flops=lambda e: 2 * e["m"] * e["n"] * e["k"],
    reference=_product,
    tolerance=_tolerance,
    exact=True,
    own_options=PRODUCT_OPTIONS,
    example="dense:n=2304,k=768",
)
