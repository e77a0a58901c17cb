"""Laws of the CUDA dense families, beyond those of every family (FTuner's hardware filters): whole memory transactions."""

from __future__ import annotations

from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.words.law import Laws, Question, no_larger

SECTOR_BYTES = 32  # least that an L2 or the memory hands over, on NVIDIA and AMD alike
WASTED_SECTORS = 0.4  # share of fetched bytes that nobody uses; a 32-byte piece of a row off 32 bytes wastes half
# Tiles no larger than this are let in however small the op or its traffic: the least that every family can make.
SMALL_TILE = 64


def _coalescing(q: Question) -> tuple[float, float] | None:
    """A block fetches ``bk`` neighbours of each row of X; rows that do not start on a sector touch one more."""
    size = DTYPE_BYTES[q.op.dtype]
    static = dict(q.op.static)
    used = q.kernel["bk"] * size
    aligned = "k" in static and static["k"] * size % SECTOR_BYTES == 0
    sectors = -(-used // SECTOR_BYTES) + (0 if aligned else 1)
    return 1.0 - used / (sectors * SECTOR_BYTES), WASTED_SECTORS


def _columns(q: Question) -> tuple[float, float] | None:
    static = dict(q.op.static)
    return (q.kernel["bn"], max(SMALL_TILE, static["n"])) if "n" in static else None


# In the order they are asked; a point counts against the first law it breaks.
LAWS: Laws = (
    ("coalescing", _coalescing),
    ("rows", no_larger("m", least=SMALL_TILE)),
    ("columns", _columns),
)
