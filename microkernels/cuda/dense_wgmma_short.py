"""fp16 and bf16 dense for few rows on Hopper's tensor cores: wgmma with its operands changed over.

The instruction always multiplies 64 rows; for few rows of X most of them would be padding. Here the 64 rows run over W's
rows and the columns, 8 to 32, over X's; of W stored (k, n) they lie in panels of 64. Ring, producer and
consumers are those of ``dense_wgmma``.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product

from haotuner.microkernels.cuda.dense_demand import Step
from haotuner.microkernels.cuda.dense_wgmma import K_STEP, PITCH_ELEMENTS, SLAB, CudaWgmma
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op

ROWS = (8, 16, 24, 32)
COLUMNS = ((64, 1), (128, 1), (128, 2), (256, 2))  # bn, slabs of a consumer warpgroup
STAGES = (3, 4, 6, 8, 12)


class CudaWgmmaShort(CudaWgmma):
    """Families ``cuda_wgmmas_fp16`` and ``cuda_wgmmas_bf16``; parameters bm, bn, bk, wr slabs a warpgroup, st, v, kn."""

    swapped = True

    def programs(self, op: Op, device: Device) -> Iterator[MicroKernel]:
        """Every tile and ring length; none for an op that TMA cannot load."""
        if not self.serves(op):
            return
        kn = int(op.option("weight") == "kn")
        for bm, (bn, wr), st in product(ROWS, COLUMNS, STAGES):
            yield self.kernel(bm=bm, bn=bn, wr=wr, st=st, kn=kn)

    def kernel(self, *, bm: int, bn: int, st: int, wr: int = 1, kn: int = 0) -> MicroKernel:
        """The micro-kernel of these parameters."""
        if bm not in ROWS or bn % (SLAB * wr) or not SLAB <= bn <= 256 or wr not in (1, 2):
            raise ValueError(f"a {bm}x{bn} tile: rows {ROWS}, columns in whole warpgroups of {SLAB * wr} up to 256")
        if st < 2 or kn not in (0, 1):
            raise ValueError(f"st={st} must be at least 2, kn={kn} 0 or 1")
        params = (("bm", bm), ("bn", bn), ("bk", K_STEP), ("wr", wr), ("st", st), ("v", PITCH_ELEMENTS), ("kn", kn))
        return MicroKernel(self.name, params)

    def sides(self, kernel: MicroKernel) -> tuple[int, int]:
        """W's rows along the instruction's 64, X's along its columns."""
        return kernel["bn"], kernel["bm"]

    def near_bytes(self, kernel: MicroKernel) -> int:
        """Each slab's instruction reads 64 rows of W and all of X."""
        return kernel["bn"] // SLAB * (SLAB + kernel["bm"]) * self.bytes_per_element()

    def step(self, kernel: MicroKernel) -> Step:
        """A sixteenth of the wgmma of 16 elements of k; two copies by the TMA, a wait and an arrival in a step of bk."""
        slabs = kernel["wr"]
        return Step(
            fmas=slabs / 16, loads=2 / K_STEP, checks=2 / K_STEP, rows=kernel["bm"] / 4, columns=2 * slabs, tensor=True
        )
