"""Generated kinds in a race, on GPUs: operands that every contender gets alike, who is set up for it, the check."""

from __future__ import annotations

import math
from typing import TypeAlias

import numpy as np

from haotuner import judge
from haotuner.bench.contender import Array
from haotuner.bench.encoding import rounded
from haotuner.ops.dtypes import DTYPES
from haotuner.words.op import Op
from haotuner.words.shape import Shape

PEERS = {
    "torch": "haotuner.bench.peers.gpu_generated:GpuTorchGenerated",
    "inductor": "haotuner.bench.peers.gpu_generated:GpuInductorGenerated",
}
OURS = "haotuner.bench.peers.gpu_generated:GpuOurGenerated"
Operands: TypeAlias = dict[str, Array]  # by name, in the op's order, fp32 that the op's type holds exactly
_OTHERS = ("dense", "grouped", "batch_matmul")


def raceable(op: Op) -> bool:
    """Whether the op is of a kind that programs are generated for, without epilogue, with a dynamic axis."""
    from haotuner.microkernels.cpu.online import CpuOnline
    from haotuner.microkernels.cuda.generated import CudaGenerated

    bare = op.kind not in _OTHERS and not op.epilogue and bool(op.dynamic)
    return bare and DTYPES[op.dtype].eps > 0 and (CudaGenerated.covers(op.meaning) or CpuOnline.covers(op.meaning))


def draw(op: Op, shape: Shape, seed: int) -> Operands:
    """Inputs and constants of a call."""
    found = judge.draw(op, shape, np.random.default_rng([seed, *op.extents(shape).values()]))
    return {name: rounded(values.astype(np.float32), op.dtype) for name, values in found.items()}


def error_share(op: Op, operands: Operands, y: Array) -> float:
    """Largest error as a share of the kind's tolerance for the op's type; inf where no number stands."""
    if not np.isfinite(y).all():
        return math.inf
    return judge.check(op, operands, y).worst
