"""batch_matmul: matrix products side by side, both factors known with the call only, as attention has them."""

from __future__ import annotations

from typing import Any

import numpy as np

from haotuner.ops.kind import Arrays, Operand, OpKind, Options, plain, sum_rounding
from haotuner.ops.product_options import PRODUCT_OPTIONS

# How the factors are stored: n as written, t transposed; the first letter is x's, the second w's.
_X = {"nn": ("b", "m", "k"), "nt": ("b", "m", "k"), "tn": ("b", "k", "m")}
_W = {"nn": ("b", "k", "n"), "nt": ("b", "n", "k"), "tn": ("b", "k", "n")}


def _product(inputs: Arrays, options: Options) -> Any:
    return inputs["x"] @ inputs["w"]


def _tolerance(inputs: Arrays, options: Options) -> Any:
    return sum_rounding(inputs["x"].shape[-1]) * (np.abs(inputs["x"]) @ np.abs(inputs["w"]))


# Batch axes of any number are folded into b; x and w may lack some or have one element there (they are broadcast), and the
# matrices of every operand may lie at any strides. `BESIDE` is added by a call where it is given.
BATCH_MATMUL = OpKind(
    name="batch_matmul",
    meaning="Y[b,m,n] = X[b,m,k] · W[b,k,n]",
    axes={"b": "spatial", "m": "spatial", "n": "spatial", "k": "reduction"},
    operands=(
        Operand(name="x", role="input", layouts=_X, option="layout"),
        Operand(name="w", role="input", layouts=_W, option="layout", own=True),
        plain("y", "output", "b", "m", "n"),
    ),
    flops=lambda e: 2 * e["b"] * e["m"] * e["n"] * e["k"],
    reference=_product,
    tolerance=_tolerance,
    exact=True,
    own_options=PRODUCT_OPTIONS,
    example="batch_matmul:k=64,layout=nt",
)

# What a call may bring beside: y = (x · w) * scale + bias + mask; an epilogue, whose steps read nothing, follows. Scale has
# a number for each matrix or for all of them, the mask any axis of the output or one element there.
BESIDE: dict[str, tuple[str, ...]] = {"bias": ("n",), "scale": ("b",), "mask": ("b", "m", "n")}


def finished(product: Any, bias: Any = None, scale: Any = None, mask: Any = None) -> Any:
    """The product with what a call brings beside, in float64. ``scale`` has the product's batch axes, or is broadcast."""
    result = np.asarray(product, np.float64)
    if scale is not None:
        result = result * np.asarray(scale, np.float64)[..., None, None]
    for more in (bias, mask):
        result = result if more is None else result + np.asarray(more, np.float64)
    return result
