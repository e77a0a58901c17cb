"""What is timed to know the cost of a region that follows another one in the same shape, where the weight is in cache."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.measure.setting import Setting
from haotuner.microkernels.cpu_dense import computed_columns
from haotuner.words.composition import Composition
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op
from haotuner.words.record import Trial
from haotuner.words.shape import Shape

TILES = 2  # the first still warms L1 for the second, as it does behind another region


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """A trial, and what its time is to be multiplied by for one more tile of the op behind another region."""

    trial: Trial
    scale: float


def follow(kernel: MicroKernel, op: Op, device: Device) -> Follow:
    """Of a dense op: the columns of one block, whose weight stays in L2, as an op of its own."""
    nr, n = kernel["nr"], op["n"]
    columns = min(max(nr, Setting.of(op, [kernel], device).col_block // nr * nr), -(-n // nr) * nr)
    block = Op(kind=op.kind, static=(("n", columns), ("k", op["k"])), dtype=op.dtype)
    shape = Shape.of(m=TILES * kernel["mr"])
    trial = Trial.of(block.name, Composition.of(kernel.name), shape, cache="hot")
    return Follow(trial=trial, scale=computed_columns(kernel, n) / columns / TILES)
