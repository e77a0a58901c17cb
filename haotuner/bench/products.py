"""batch_matmul in a race: factors that every contender gets alike, who is set up for it, the check."""

from __future__ import annotations

import math

import numpy as np

from haotuner.bench.contender import Array
from haotuner.bench.encoding import rounded
from haotuner.bench.inputs import rolled
from haotuner.ops.dtypes import DTYPES
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

PEERS = {name: f"haotuner.bench.peers.products:{name.capitalize()}Products" for name in ("torch", "onnxruntime", "numpy")}
OURS = "haotuner.bench.peers.products:OurProducts"
DIRECT_FLOPS = 2**26  # of the matrices that are checked element by element
Factors = tuple[Array, Array]


def raceable(op: Op) -> bool:
    """Whether peers are set up for the op."""
    return op.kind == "batch_matmul" and DTYPES[op.dtype].eps > 0 and not op.epilogue and bool(op.dynamic)


def draw(op: Op, shape: Shape, seed: int) -> Factors:
    """Both factors as the op stores them."""
    rng = np.random.default_rng([seed, *op.extents(shape).values()])
    x, w = (rounded(rng.standard_normal(op.operand_shape(o, shape), dtype=np.float32), op.dtype) for o in op.meaning.inputs)
    return x, w


def copy(factors: Factors, index: int) -> Factors:
    """What the call of that number takes: second factors differ."""
    return factors[0], rolled(factors[1], index)


def error_share(op: Op, factors: Factors, y: Array) -> float:
    """Largest error of a result as a share of what sums in fp32, and its type, may leave; over 1 (or inf) is wrong.

    The first and the last matrices are compared element by element, as many as are soon done.
    """
    x, w = factors
    if y.shape[0] != x.shape[0] or not np.isfinite(y).all():
        return math.inf
    count = max(1, min(len(y), int(DIRECT_FLOPS // (2 * x[0].size * y.shape[2]))))
    some = sorted({*range((count + 1) // 2), *range(len(y) - count // 2, len(y))})
    static = tuple((axis, extent) for axis, extent in op.static if axis != "b")
    plain_op = Op(kind=op.kind, static=static, dtype=op.dtype, options=op.options)
    return numerics.check(plain_op, {"x": x[some], "w": w[some]}, y[some]).worst
