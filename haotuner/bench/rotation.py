"""Cold weights in a race: how many copies the calls take in turn, and what is read where these fit into the caches."""

from __future__ import annotations

import math
from dataclasses import dataclass

from haotuner.ops.dtypes import DTYPES
from haotuner.spec.cold import waiting
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape

MOST_COPIES = 256  # more are hours of compiling for peers that compile a model for each
ENOUGH_COPIES = (
    64  # where other memory is read between rounds: 32 and 256 gave the times of 911; OpenVINO takes 0.1 s for each
)
ROOM_BYTES = 1 << 30  # of all that libraries keep beside the copies
KEPT_BESIDE = 2  # graph compilers keep what a call reads and writes a second time, in an order of their own, for each copy
LATER = {"batch_matmul": ("w",), "attention": ("k", "v")}  # operands of calls that may have been written long before


@dataclass(frozen=True, slots=True, kw_only=True)
class Rotation:
    """Copies that calls take in turn, and bytes of other memory that are read after each round."""

    copies: int = 1
    evicted_bytes: int = 0


HOT = Rotation()


def resting(op: Op) -> tuple[str, ...]:
    """Operands of which a call may take one of many: weights, the second factor of a product, keys and values."""
    return waiting(op) or LATER.get(op.kind, ())


def resting_bytes(op: Op, shape: Shape) -> int:
    """Bytes of one copy of what rests; 0 where nothing does."""
    rest = [operand for operand in op.meaning.inputs if operand.name in resting(op)]
    return sum(DTYPES[op.dtype_of(item)].size * math.prod(op.operand_shape(item, shape)) for item in rest)


def cold(op: Op, shape: Shape, cold_bytes: int, *, crowded: bool = False, evicts: bool = True) -> Rotation:
    """The rotation in which each call finds its copy in memory: a round walks through ``cold_bytes``.

    ``evicts``: at most ``ENOUGH_COPIES`` are made, and the rest of the bytes is read between rounds, as if there were more;
    what calls pass through the caches themselves counts. Without, at most ``MOST_COPIES``, which may be too few.
    ``crowded``: libraries keep memory of their own for each copy, so that large calls get fewer; never less than two.
    """
    size = max(1, resting_bytes(op, shape))
    passed = max(1, op.least_bytes(shape) - size)
    most = ENOUGH_COPIES if evicts else MOST_COPIES
    if crowded:
        most = min(most, ROOM_BYTES // (KEPT_BESIDE * passed))
    needed = math.ceil(cold_bytes / size)
    copies = max(2, min(most, needed))
    missing = cold_bytes - copies * size - passed if evicts and copies < needed else 0
    return Rotation(copies=copies, evicted_bytes=max(0, missing))
