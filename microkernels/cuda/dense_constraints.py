"""Constraints of CUDA dense families, beyond every family's (FTuner's hardware filters): whole memory transactions."""

from __future__ import annotations

from haotuner.ops.dtypes import DTYPE_BYTES
from haotuner.spec.constraint import ConstraintQuery, Laws
from haotuner.spec.kernel import MicroKernel

SECTOR_BYTES = 32  # least that an L2 or the memory hands over, on NVIDIA and AMD alike
WASTED_SECTORS = 0.4  # share of fetched bytes that nobody uses; a 32-byte piece of a row off 32 bytes wastes half
# Elements of a warp's tile of mma.sync where wgmma computes the op as well. Larger ones are for products that tensor cores
# bound, and there wgmma has 1.6 times the rate (Luo et al., arXiv 2402.13499); smaller tiles may hide a latency better.
WARP_TILE_BESIDE_WGMMA = 32 * 32
# HMMAs that a large tile of a warp has in a step of k, for each address that a thread copies to or from; with fewer, each
# has more than three instructions of the loop. A long step may have more addresses; where operands begin in registers, in
# all kinds beside dense, no other will do.
LARGE_WARP_TILE, HMMAS_AN_ADDRESS, LONG_STEP = 64 * 32, 3.5, 64
COPY_BYTES, SWIZZLED_ROWS = 16, 8  # of a copy; the swizzle is the same again
MMA_BYTES = 32  # of k that one instruction multiplies
# Tiles no larger than this are let in however small the op or its traffic: the least that every family can make.
SMALL_TILE = 64


def _coalescing(q: ConstraintQuery) -> tuple[float, float] | None:
    """A block fetches ``bk`` neighbours of each row of X; rows that do not start on a sector touch one more."""
    size = DTYPE_BYTES[q.op.dtype]
    static = dict(q.op.static)
    used = q.kernel["bk"] * size
    aligned = "k" in static and static["k"] * size % SECTOR_BYTES == 0
    sectors = -(-used // SECTOR_BYTES) + (0 if aligned else 1)
    return 1.0 - used / (sectors * SECTOR_BYTES), WASTED_SECTORS


def _extent(q: ConstraintQuery, axis: str) -> int:
    """Of an axis, or the largest there will be."""
    return dict(q.op.static).get(axis) or q.most[axis]


def _rows(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.tile.extent["m"], max(SMALL_TILE, _extent(q, "m"))


def _columns(q: ConstraintQuery) -> tuple[float, float] | None:
    return q.kernel["bn"], max(SMALL_TILE, _extent(q, "n"))


def _elements(kernel: MicroKernel) -> int:
    """Of Y, of one warp."""
    return kernel["bm"] // kernel["wm"] * (kernel["bn"] // kernel["wn"])


def _warp_tile(q: ConstraintQuery) -> tuple[float, float] | None:
    return _elements(q.kernel), WARP_TILE_BESIDE_WGMMA


def _step(q: ConstraintQuery) -> tuple[float, float] | None:
    """An HMMA makes 16 by 8 elements of 16 of k; of W (k, n) a copy may reach rows of half a swizzle, with two addresses."""
    kernel, tile, size = q.kernel, _elements(q.kernel), DTYPE_BYTES[q.op.dtype]
    hmmas = tile // 128 * (kernel["bk"] * size // MMA_BYTES)
    least = 0 if q.op.kind == "dense" else LONG_STEP
    if tile < LARGE_WARP_TILE or (hmmas >= LONG_STEP and not least):
        return None
    at_once = q.footprint.threads * COPY_BYTES // size
    addresses = (kernel["bm"] + kernel["bn"]) * kernel["bk"] // at_once + (
        kernel["kn"] and at_once < kernel["bn"] * SWIZZLED_ROWS
    )
    return max(least, HMMAS_AN_ADDRESS * addresses), hmmas


# In the order they are asked; a point counts against the first law it breaks.
LAWS: Laws = (
    ("coalescing", _coalescing),
    ("rows", _rows),
    ("columns", _columns),
)
MMA_LAWS: Laws = (*LAWS, ("step", _step))
BESIDE_WGMMA: Laws = (("warp tile", _warp_tile),)
