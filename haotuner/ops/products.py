"""Matrix products: dense, batch_matmul and grouped, and the options that all have.

Options that every product has: the element types of its result and, of bytes, of its input.

dense: a matrix product with a constant second factor, as ``torch.nn.Linear`` has it.

batch_matmul: matrix products side by side, both factors known with the call only, as attention has them.

grouped: many products in one call, each of a group of rows with a matrix of its own: the experts of a mixture.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from haotuner.ops.kind import Arrays, Operand, OpKind, Option, Options, plain, sum_rounding

# The element type of the result: of floats the op's own, of int8 the sums' int32, unless another is asked for.
OUTPUT_TYPE = Option(default="own", choices=("own", "fp32", "bf16", "fp16", "int32", "int8", "uint8"), prefixed=True)
# int8: bytes that come in have a sign, as the weight's do; of ops in int8 only.
INPUT_TYPE = Option(default="own", choices=("own", "int8"), prefixed=True)

PRODUCT_OPTIONS = {"out": OUTPUT_TYPE, "in": INPUT_TYPE}


def _dense_product(inputs: Arrays, options: Options) -> Any:
    return inputs["x"] @ inputs["weight"].T


def _dense_tolerance(inputs: Arrays, options: Options) -> Any:
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
    reference=_dense_product,
    tolerance=_dense_tolerance,
    exact=True,
    own_options=PRODUCT_OPTIONS,
    example="dense:n=2304,k=768",
)


# How the factors are stored: n as written, t transposed; the first letter is x's, the second w's.
_X = {"nn": ("b", "m", "k"), "nt": ("b", "m", "k"), "tn": ("b", "k", "m")}
_W = {"nn": ("b", "k", "n"), "nt": ("b", "n", "k"), "tn": ("b", "k", "n")}


def _batch_product(inputs: Arrays, options: Options) -> Any:
    return inputs["x"] @ inputs["w"]


def _batch_tolerance(inputs: Arrays, options: Options) -> Any:
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
    reference=_batch_product,
    tolerance=_batch_tolerance,
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


def _groups(inputs: Arrays) -> Iterator[tuple[int, slice]]:
    """Each group with its rows, as kernels find them: ends that go back, or lie outside x, are moved to what is possible."""
    first = 0
    for group, end in enumerate(np.asarray(inputs["offsets"]).astype(np.int64).tolist()):
        end = max(first, min(end, inputs["x"].shape[0]))
        yield group, slice(first, end)
        first = end


def _grouped_product(inputs: Arrays, options: Options) -> Any:
    """Rows behind the last end belong to no group; what is computed leaves them alone, here they are NaN."""
    x, weight = inputs["x"], inputs["weight"]
    y = np.full((x.shape[0], weight.shape[1]), np.nan)
    for group, rows in _groups(inputs):
        y[rows] = x[rows] @ weight[group].T
    return y


def _grouped_tolerance(inputs: Arrays, options: Options) -> Any:
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
    reference=_grouped_product,
    tolerance=_grouped_tolerance,
    ends={"offsets": "m"},
    rows_apart=False,
    exact=True,
    own_options=PRODUCT_OPTIONS,
    example="grouped:g=8,n=2304,k=768,dtype=fp16",
)
