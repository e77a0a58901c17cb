"""Triton's words for a tile program of tensor cores: block, warps and pipeline stages."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.microkernels.cuda.dense import WARP, CudaDense
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_wgmma import WARPGROUP, CudaHopper
from haotuner.spec.family import Family
from haotuner.spec.kernel import MicroKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class TritonTile:
    """Block of rows, columns and depth (elements), warps that multiply, and stages of the ring."""

    block_m: int
    block_n: int
    block_k: int
    warps: int
    stages: int


def triton_tile(family: Family, kernel: MicroKernel) -> TritonTile | None:
    """The kernel in Triton's words; None of families that do not multiply on tensor cores by a ring of stages.

    A producer warpgroup multiplies nothing and is no part of ``warps``: Triton has none on its own.
    """
    if not isinstance(family, (CudaMma, CudaHopper)) or not isinstance(family, CudaDense):
        return None
    producer = WARPGROUP // WARP if isinstance(family, CudaHopper) else 0
    return TritonTile(
        block_m=kernel["bm"],
        block_n=kernel["bn"],
        block_k=kernel["bk"],
        warps=family.footprint(kernel).threads // WARP - producer,
        stages=kernel["st"],
    )
