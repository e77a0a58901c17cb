"""The CUDA families and one small variant of each code path, shared by the tests of this folder."""

from __future__ import annotations

from dataclasses import dataclass

from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma
from haotuner.words.device import Device
from haotuner.words.kernel import MicroKernel
from tests.emulator.run import Case

SIMT = CudaSimt("cuda_simt_fp32", "fp32")
MMA = CudaMma("cuda_mma_fp16", "fp16")
MMA_BF16 = CudaMma("cuda_mma_bf16", "bf16")
WGMMA = CudaWgmma("cuda_wgmma_fp16", "fp16")
WGMMA_BF16 = CudaWgmma("cuda_wgmma_bf16", "bf16")
FAMILIES = {family.name: family for family in (SIMT, MMA, MMA_BF16, WGMMA, WGMMA_BF16)}

# (m, n, k, gap between X's rows, gap between Y's rows): one row; partial tiles on every side; k below and off a step; Y's
# rows on odd elements, where no paired store is aligned.
EIGHTS = ((1, 8, 8, 0, 0), (77, 136, 72, 8, 1), (40, 67, 136, 0, 2))
FOURS = ((3, 5, 4, 0, 0), (67, 71, 52, 4, 0), (33, 70, 20, 0, 1))
TWOS = ((1, 3, 6, 0, 0), (65, 70, 74, 2, 1))
ODD = ((1, 1, 1, 0, 0), (67, 71, 33, 1, 0))
KN_EIGHTS = ((1, 8, 8, 0, 0), (77, 136, 72, 8, 1))
KN_FOURS = ((3, 8, 4, 0, 0), (67, 72, 52, 4, 1))


@dataclass(frozen=True)
class Variant:
    """A micro-kernel, what it exercises, and the shapes to try it on."""

    kernel: MicroKernel
    path: str
    shapes: tuple[tuple[int, int, int, int, int], ...]

    def case(self) -> Case:
        """The variant as a case of the emulator."""
        family = FAMILIES[self.kernel.family]
        return Case(symbol=self.kernel.name, dtype=family.dtype, shapes=self.shapes, kn=bool(self.kernel["kn"]))


VARIANTS = {
    "simt": (
        Variant(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4), "16-byte loads, one strip", FOURS),
        Variant(SIMT.kernel(bm=64, bn=64, bk=16, tm=8, tn=8), "two strips each way", FOURS),
        Variant(SIMT.kernel(bm=8, bn=64, bk=32, tm=2, tn=4), "strips of two rows, two warps, widest k step", FOURS),
        Variant(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4, v=1), "single loads", ODD),
        Variant(SIMT.kernel(bm=32, bn=64, bk=16, tm=4, tn=8, kn=1), "W rows along n", KN_FOURS),
    ),
    "mma": (
        Variant(MMA.kernel(bm=64, bn=64, bk=32, wm=2, wn=2, st=3), "16-byte copies, three stages", EIGHTS),
        Variant(MMA.kernel(bm=16, bn=32, bk=64, wm=1, wn=2, st=2), "one row of instructions, two stages, four k16", EIGHTS),
        Variant(MMA_BF16.kernel(bm=64, bn=32, bk=32, wm=4, wn=1, st=5), "bf16, five stages, warps in a column", EIGHTS),
        Variant(MMA.kernel(bm=64, bn=32, bk=32, wm=2, wn=1, st=3, v=2), "4-byte copies", TWOS),
        Variant(MMA.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, v=1), "plain loads", ODD),
        Variant(MMA.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, kn=1), "W rows along n", KN_EIGHTS),
    ),
    "wgmma": (
        Variant(WGMMA.kernel(bm=64, bn=64, st=2), "one consumer, shortest ring", EIGHTS),
        Variant(WGMMA_BF16.kernel(bm=128, bn=32, st=3), "bf16, two consumers", EIGHTS),
        Variant(WGMMA.kernel(bm=128, bn=96, st=3, wr=2), "two slabs a consumer, columns no power of two", EIGHTS),
        Variant(WGMMA.kernel(bm=64, bn=128, st=3, kn=1), "W in panels along n", KN_EIGHTS),
    ),
}


def device(arch: str) -> Device:
    """A GPU of an architecture, with an A100's numbers."""
    return Device(
        id=arch.replace("_", "-"),
        kind="cuda",
        name=arch,
        arch=arch,
        compute_units=108,
        wave_width=32,
        registers_per_thread=255,
        registers_per_unit=65536,
        threads_per_unit=2048,
        l1_bytes=167936,
        shared_per_block_bytes=166912,
    )
