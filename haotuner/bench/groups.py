"""grouped in a race, on GPUs: rows and cuts that every contender gets alike, who is set up for it, the check."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Array
from haotuner.bench.encoding import rounded
from haotuner.spec import numerics
from haotuner.spec.op import Op

PEERS = {
    "torch": "haotuner.bench.peers.gpu_groups:GpuTorchGroups",
    "torch_grouped": "haotuner.bench.peers.gpu_groups:GpuTorchGroupedMm",
}
OURS = "haotuner.bench.peers.gpu_groups:GpuOurGroups"
DIRECT_FLOPS = 2**27  # of the rows that are checked element by element
Rows = tuple[Array, NDArray[np.int32]]  # x, and where each group ends


def raceable(op: Op) -> bool:
    """Whether peers are set up for the op: weights (g, n, k), no epilogue, a dynamic m."""
    return op.kind == "grouped" and not op.options and not op.epilogue and op.dynamic == ("m",)


def draw(op: Op, m: int, seed: int) -> Rows:
    """Rows, and a cut of them as a router of experts makes it: uneven, some groups perhaps empty."""
    rng = np.random.default_rng([seed, m, op["k"], op["g"]])
    shares = rng.dirichlet(np.full(op["g"], 2.0))
    ends = np.rint(np.cumsum(shares) * m).astype(np.int32)
    ends[-1] = m
    return rounded(rng.standard_normal((m, op["k"]), dtype=np.float32), op.dtype), ends


def error_share(op: Op, rows: Rows, weight: Array, y: Array) -> float:
    """Largest error of a result as a share of what sums in fp32, and its type, may leave; over 1 (or inf) is wrong.

    Of every group its first and last rows are compared element by element, as many as are soon done.
    """
    x, ends = rows
    if y.shape != (x.shape[0], op["n"]) or not np.isfinite(y).all():
        return math.inf
    dense = Op(kind="dense", static=(("n", op["n"]), ("k", op["k"])), dtype=op.dtype)
    most = max(2, DIRECT_FLOPS // (2 * op["n"] * op["k"] * op["g"]))
    worst, first = 0.0, 0
    for group, end in enumerate(ends.tolist()):
        picked = np.unique(np.concatenate((np.arange(first, end)[: most // 2], np.arange(first, end)[-(most // 2) :])))
        if len(picked):
            verdict = numerics.check(dense, {"x": x[picked], "weight": weight[group]}, y[picked])
            worst = max(worst, math.inf if verdict.wrong else verdict.worst)
        first = end
    return worst
