"""grouped: many products in one call, each of a group of rows with a matrix of its own: the experts of a mixture."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from haotuner.ops.kind import Arrays, Operand, OpKind, Options, plain, sum_rounding
from haotuner.ops.product_options import PRODUCT_OPTIONS


def _groups(inputs: Arrays) -> Iterator[tuple[int, slice]]:
    """Each group with its rows, as kernels find them: ends that go back, or lie outside x, are moved to what is possible."""
    first = 0
    for group, end in enumerate(np.asarray(inputs["offsets"]).astype(np.int64).tolist()):
        end = max(first, min(end, inputs["x"].shape[0]))
        yield group, slice(first, end)
        first = end


def _product(inputs: Arrays, options: Options) -> Any:
    """Rows behind the last end belong to no group; what is computed leaves them alone, here they are NaN."""
    x, weight = inputs["x"], inputs["weight"]
    y = np.full((x.shape[0], weight.shape[1]), np.nan)
    for group, rows in _groups(inputs):
        y[rows] = x[rows] @ weight[group].T
    return y


def _tolerance(inputs: Arrays, options: Options) -> Any:
    x, weight = np.abs(inputs["x"]), np.abs(inputs["weight"])
    allowed = np.zeros((x.shape[0], weight.shape[1]))
    for group, rows in _groups(inputs):
        allowed[rows] = x[rows] @ weight[group].T
    return sum_rounding(x.shape[-1]) * allowed


GROUPED = OpKind(
    name="grouped",
    meaning="Y[i,n] = X[i,k] · W[g,n,k]^T for the rows i of group g, which end before offsets[g] and begin where g - 1 ends",
    axes={"m": "spatial", "n": "spatial", "k": "reduction", "g": "spatial"},
    operands=(
        plain("x", "input", "m", "k"),
        Operand(name="weight", role="constant", layouts={"nk": ("g", "n", "k"), "kn": ("g", "k", "n")}),
        plain("offsets", "input", "g", dtype="int32"),
        plain("y", "output", "m", "n"),
    ),
    flops=lambda e: 2 * e["m"] * e["n"] * e["k"],
    reference=_product,
    tolerance=_tolerance,
    ends={"offsets": "m"},
    rows_apart=False,
    exact=True,
    own_options=PRODUCT_OPTIONS,
    example="grouped:g=8,n=2304,k=768,dtype=fp16",
)
