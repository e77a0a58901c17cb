"""The CUDA families and one small variant of each code path, shared by the tests of this folder."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.dense_gemv import CudaGemv
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_mma_turing import CudaMmaTuring
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma, CudaWgmmaShort
from haotuner.microkernels.cuda.families import GROUPED_FAMILIES
from haotuner.microkernels.cuda.fused import ANY_STEPS, built_for, decoded, stepped
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from tests import kept
from tests.emulator.run import Call, Case
from tests.run_folder import in_a_run

SIMT = CudaSimt("cuda_simt_fp32", "fp32")
MMA = CudaMma("cuda_mma_fp16", "fp16")
MMA_BF16 = CudaMma("cuda_mma_bf16", "bf16")
TURING = CudaMmaTuring("cuda_mma8_fp16", "fp16")
WGMMA = CudaWgmma("cuda_wgmma_fp16", "fp16")
WGMMA_BF16 = CudaWgmma("cuda_wgmma_bf16", "bf16")
SHORT_WGMMA = CudaWgmmaShort("cuda_wgmmas_fp16", "fp16")
SHORT_BF16 = CudaWgmmaShort("cuda_wgmmas_bf16", "bf16")
GEMV = CudaGemv("cuda_gemv_fp16", "fp16")
GEMV_BF16 = CudaGemv("cuda_gemv_bf16", "bf16")
GEMV_FP32 = CudaGemv("cuda_gemv_fp32", "fp32")
MMA_BYTES = CudaMma("cuda_mma_int8", "int8")
MMA_SIGNED = CudaMma("cuda_mma_sint8", "int8", signs="ss")
SIMT_BYTES = CudaSimt("cuda_simt_int8", "int8")
SIMT_SIGNED = CudaSimt("cuda_simt_sint8", "int8", signs="ss")
_BYTES = (MMA_BYTES, MMA_SIGNED, SIMT_BYTES, SIMT_SIGNED)
_GEMVS = (GEMV, GEMV_BF16, GEMV_FP32)
_WGMMAS = (WGMMA, WGMMA_BF16, SHORT_WGMMA, SHORT_BF16)
FAMILIES = {family.name: family for family in (SIMT, MMA, MMA_BF16, TURING, *_WGMMAS, *_GEMVS, *_BYTES, *GROUPED_FAMILIES)}

# One row; partial tiles on every side and k below and off a step, in single elements and activated; Y in whole 16-byte
# pieces, with and without more to add; k in more shares than some have steps, of an odd and an even number of columns.
EIGHTS = (
    Call(m=1, n=8, k=8),
    Call(m=77, n=136, k=72, x_gap=8, y_gap=1, steps=("bias", "gelu")),
    Call(m=40, n=72, k=136, y_gap=8, steps=("bias", "residual")),
    Call(m=33, n=67, k=200, y_gap=3, splits=3, steps=("residual", "silu")),
    Call(m=77, n=136, k=64, y_gap=8),
    Call(m=70, n=70, k=152, splits=2),
)
FOURS = (
    Call(m=3, n=5, k=4),
    Call(m=67, n=72, k=52, x_gap=4, steps=("bias", "residual")),
    Call(m=33, n=72, k=20, y_gap=1, steps=("bias", "gelutanh")),
    Call(m=35, n=68, k=44, splits=3, steps=("bias", "relu")),
)
TWOS = (Call(m=1, n=3, k=6), Call(m=65, n=70, k=74, x_gap=2, y_gap=1, steps=("residual",)))
ODD = (Call(m=1, n=1, k=1), Call(m=67, n=71, k=33, x_gap=1, y_alignment=2), Call(m=9, n=16, k=65, splits=2, steps=("bias",)))
ODD_FP32 = (Call(m=1, n=1, k=1), Call(m=7, n=71, k=33, x_gap=1), Call(m=9, n=16, k=65, splits=2, steps=("bias",)))
KN_EIGHTS = (Call(m=1, n=8, k=8), Call(m=77, n=136, k=72, x_gap=8, y_gap=1), Call(m=20, n=72, k=152, splits=2))
SHORT = (
    Call(m=1, n=8, k=8),
    Call(m=5, n=67, k=520, x_gap=8, y_gap=1, steps=("bias", "gelu")),
    Call(m=16, n=72, k=264, y_gap=8, steps=("bias", "residual")),
    Call(m=19, n=67, k=1200, y_gap=3, splits=3, steps=("residual", "silu")),
)
KN_SHORT = (
    Call(m=1, n=8, k=8),
    Call(m=5, n=72, k=520, x_gap=8, y_gap=1, steps=("bias", "gelu")),
    Call(m=16, n=304, k=264, y_gap=8, steps=("bias", "residual")),
    Call(m=19, n=136, k=1200, y_gap=3, splits=3, steps=("residual", "silu")),
)
KN_FOURS = (Call(m=3, n=8, k=4), Call(m=67, n=72, k=52, x_gap=4, y_gap=1), Call(m=20, n=72, k=52, splits=2))
ADDED = ("bias", "residual")  # by every build


# Of bytes: sums as they are; each type of result, with steps and in parts; k of whole 16 bytes, of words, of pairs, and odd.
BYTES = (
    Call(m=1, n=8, k=16),
    Call(m=77, n=136, k=144, x_gap=16, y_gap=4, steps=("scale", "bias", "relu"), out="uint8"),
    Call(m=40, n=67, k=272, y_gap=1, steps=("scale", "residual", "clamp"), out="int8"),
    Call(m=33, n=72, k=400, splits=3, steps=("scale", "silu"), out="fp16"),
    Call(m=19, n=70, k=304, splits=2),
    Call(m=33, n=67, k=400, out="fp32"),
    Call(m=20, n=72, k=80, steps=("bias",), out="int8"),  # beyond the range of bytes nearly everywhere
)
PLAIN_BYTES = (BYTES[0], BYTES[4], Call(m=35, n=68, k=80, y_gap=1))
PAIRS = (Call(m=1, n=3, k=6), Call(m=65, n=70, k=74, x_gap=2, y_gap=1, steps=("scale", "residual"), out="bf16"))
ODD_BYTES = (
    Call(m=1, n=1, k=1),
    Call(m=67, n=71, k=33, x_gap=1, y_alignment=4),
    Call(m=9, n=16, k=133, splits=2, steps=("scale", "bias"), out="int32"),
)
KN_BYTES = (Call(m=1, n=3, k=5), Call(m=37, n=67, k=75, x_gap=3, y_gap=1), Call(m=20, n=72, k=134, splits=2, out="int8"))


@dataclass(frozen=True)
class Variant:
    """A micro-kernel, what it exercises, and the calls to try it on."""

    kernel: MicroKernel
    path: str
    calls: tuple[Call, ...]

    def case(self) -> Case:
        """The variant as a case of the emulator."""
        return case_of(self.kernel.name, FAMILIES[self.kernel.family], self.kernel, self.calls)


def case_of(symbol: str, family: CudaDense, kernel: MicroKernel, calls: Sequence[Call]) -> Case:
    """A micro-kernel under a symbol as a case of the emulator; built without steps it is asked for what is added alone.

    One that is built for certain steps is asked for these.
    """
    launch = asdict(family.launch(kernel))
    if not built_for(kernel):
        added = () if family.dtype == "int8" else ADDED
        calls = [replace(call, steps=[step for step in call.steps if step in added]) for call in calls]
    elif built_for(kernel) != ANY_STEPS:
        calls = [replace(call, steps=decoded(built_for(kernel))) for call in calls]
    return Case(
        symbol=symbol, dtype=family.dtype, launch=launch, calls=calls, kn=family.reads_kn(kernel), signs=family.signs
    )


# Empty groups first, between and last; all rows in one group of many; more than a warp of groups; rows behind the last end.
SOME, ONE, MANY = (0, 33, 33, 40, 77, 77), (0, 0, 41, 41), tuple(min(at // 2, 17) for at in range(40))
GROUPS = (
    Call(m=77, n=136, k=72, x_gap=8, y_gap=1, ends=SOME, steps=("bias", "gelu")),
    Call(m=41, n=72, k=136, y_gap=8, ends=ONE, steps=("bias", "residual")),
    Call(m=20, n=64, k=8, ends=MANY),
    Call(m=1, n=8, k=64, ends=(1,)),
)
KN_GROUPS = tuple(replace(call, k=64 * (1 + call.k // 64)) for call in GROUPS)  # what the maps of wgmma want, too


def grouped(kernel: MicroKernel) -> MicroKernel:
    """The kernel of the same tiles for rows in groups."""
    return MicroKernel(kernel.family.replace("cuda_", "cuda_grouped_", 1), kernel.params)


_VARIANTS = {
    "grouped": (
        Variant(grouped(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4)), "fp32", GROUPS),
        Variant(grouped(SIMT.kernel(bm=32, bn=64, bk=16, tm=4, tn=8, kn=1)), "fp32, W rows along n", KN_GROUPS),
        Variant(grouped(MMA.kernel(bm=16, bn=32, bk=64, wm=1, wn=2, st=2)), "cp.async", GROUPS),
        Variant(grouped(MMA_BF16.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, kn=1)), "bf16, W rows along n", KN_GROUPS),
        Variant(grouped(TURING.turing(bm=32, bn=64, bk=32, wm=1, wn=2)), "Turing", GROUPS),
        Variant(grouped(WGMMA.kernel(bm=64, bn=64, st=2)), "tensor maps over all groups", GROUPS),
        Variant(grouped(WGMMA_BF16.kernel(bm=128, bn=128, st=3, kn=1)), "tensor maps, W in panels", KN_GROUPS),
        Variant(grouped(SHORT_WGMMA.kernel(bm=16, bn=64, st=3)), "operands changed over", GROUPS),
        Variant(grouped(GEMV.kernel(bm=4, c=2, wn=2, wk=2, v=8)), "few rows", GROUPS),
        Variant(grouped(GEMV_FP32.kernel(bm=2, c=16, wn=2, wk=4, v=4, kn=1)), "few rows, W rows along n", KN_GROUPS),
    ),
    "simt": (
        Variant(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4), "16-byte loads, one strip", FOURS),
        Variant(SIMT.kernel(bm=64, bn=64, bk=16, tm=8, tn=8), "two strips each way", FOURS),
        Variant(SIMT.kernel(bm=8, bn=64, bk=32, tm=2, tn=4), "strips of two rows, two warps, widest k step", FOURS),
        Variant(SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4, v=1), "single loads", ODD),
        Variant(SIMT.kernel(bm=8, bn=64, bk=16, tm=2, tn=4, v=2), "rows of k side by side in the banks, in pairs", TWOS),
        Variant(SIMT.kernel(bm=16, bn=64, bk=32, tm=4, tn=4, v=1), "more pieces along k than lanes", ODD_FP32),
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
    "bytes": (
        Variant(MMA_BYTES.kernel(bm=64, bn=32, bk=64, wm=2, wn=1, st=3, v=16), "sums as they are", PLAIN_BYTES),
        Variant(SIMT_BYTES.kernel(bm=32, bn=64, bk=32, tm=4, tn=4, v=16), "words, sums as they are", PLAIN_BYTES),
        Variant(
            stepped(MMA_BYTES.kernel(bm=64, bn=64, bk=64, wm=2, wn=2, st=3, v=16)), "16-byte copies, three stages", BYTES
        ),
        Variant(
            stepped(MMA_SIGNED.kernel(bm=16, bn=32, bk=128, wm=1, wn=2, st=2, v=16)), "signs on both sides, four k32", BYTES
        ),
        Variant(
            stepped(MMA_BYTES.kernel(bm=64, bn=32, bk=64, wm=2, wn=1, st=3, v=4)), "4-byte copies", (BYTES[1], BYTES[4])
        ),
        Variant(stepped(MMA_SIGNED.kernel(bm=32, bn=64, bk=64, wm=1, wn=2, st=3, v=2)), "pairs", PAIRS),
        Variant(stepped(SIMT_BYTES.kernel(bm=32, bn=64, bk=32, tm=4, tn=4, v=16)), "words, 16-byte loads", BYTES),
        Variant(
            stepped(SIMT_SIGNED.kernel(bm=64, bn=64, bk=64, tm=8, tn=8, v=4)), "words one by one, signs on both sides", BYTES
        ),
        Variant(stepped(SIMT_BYTES.kernel(bm=32, bn=64, bk=32, tm=4, tn=4, v=1)), "words gathered", (*ODD_BYTES, *PAIRS)),
        Variant(
            stepped(SIMT_SIGNED.kernel(bm=8, bn=64, bk=64, tm=2, tn=4, v=1, kn=1)),
            "words gathered across, W along n",
            KN_BYTES,
        ),
    ),
    "mma8": (
        Variant(TURING.turing(bm=64, bn=64, bk=32, wm=2, wn=2), "16-byte loads", EIGHTS),
        Variant(TURING.turing(bm=16, bn=32, bk=64, wm=1, wn=2), "one row of instructions, four k16", EIGHTS),
        Variant(TURING.turing(bm=64, bn=32, bk=32, wm=2, wn=1, v=2), "4-byte loads", TWOS),
        Variant(TURING.turing(bm=32, bn=64, bk=32, wm=1, wn=2, v=1), "single loads", ODD),
        Variant(TURING.turing(bm=32, bn=64, bk=32, wm=1, wn=2, kn=1), "W rows along n", KN_EIGHTS),
    ),
    "gemv": (
        Variant(GEMV.kernel(bm=1, c=1, wn=4, wk=1, v=8), "one row, one column a warp", SHORT),
        Variant(GEMV_BF16.kernel(bm=16, c=4, wn=2, wk=2, v=8), "bf16, two sums of a lane, warps along k", SHORT),
        Variant(GEMV.kernel(bm=4, c=2, wn=1, wk=8, v=2), "4-byte loads, all warps along k", TWOS),
        Variant(GEMV_FP32.kernel(bm=8, c=4, wn=4, wk=2, v=4), "fp32, whole pieces", SHORT),
        Variant(GEMV_FP32.kernel(bm=2, c=1, wn=8, wk=1, v=1), "single loads", ODD_FP32),
        Variant(GEMV.kernel(bm=4, c=64, wn=2, wk=2, v=8, kn=1), "W rows along n, four lanes along k", KN_SHORT),
        Variant(GEMV_BF16.kernel(bm=1, c=256, wn=1, wk=4, v=8, kn=1), "bf16, W rows along n, all lanes too", KN_SHORT),
        Variant(GEMV_FP32.kernel(bm=16, c=16, wn=2, wk=4, v=4, kn=1), "fp32, W rows along n, many sums", KN_SHORT),
        Variant(GEMV_FP32.kernel(bm=2, c=4, wn=8, wk=1, v=1, kn=1), "W rows along n, single loads", ODD_FP32),
    ),
    "wgmma": (
        Variant(WGMMA.kernel(bm=64, bn=64, st=2), "one consumer, shortest ring", EIGHTS),
        Variant(WGMMA_BF16.kernel(bm=128, bn=32, st=3), "bf16, two consumers", EIGHTS),
        Variant(WGMMA.kernel(bm=128, bn=96, st=3, wr=2), "two slabs a consumer, columns no power of two", EIGHTS),
        Variant(SHORT_WGMMA.kernel(bm=8, bn=64, st=3), "few rows: W's rows along the instruction's", SHORT),
        Variant(SHORT_BF16.kernel(bm=32, bn=128, st=3, wr=2), "few rows, two slabs a consumer", SHORT),
        Variant(WGMMA.kernel(bm=64, bn=128, st=3, kn=1), "W in panels along n", KN_EIGHTS),
        Variant(SHORT_WGMMA.kernel(bm=16, bn=64, st=3, kn=1), "few rows, W in a panel along n", KN_SHORT),
        Variant(SHORT_BF16.kernel(bm=24, bn=256, st=3, wr=2, kn=1), "few rows, two panels a consumer", KN_SHORT),
        Variant(WGMMA_BF16.kernel(bm=128, bn=16, st=2, wr=2), "sixteen columns, two slabs", EIGHTS),
    ),
}
VARIANTS = {  # every second one is built for steps
    way: tuple(
        replace(variant, kernel=stepped(variant.kernel)) if index % 2 else variant for index, variant in enumerate(variants)
    )
    for way, variants in _VARIANTS.items()
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


def unit_text(programs: Mapping[str, tuple[CudaDense, MicroKernel]], reduces: Sequence[str]) -> str:
    """``device_unit`` of these, written once for all tests and kept between runs: TVM takes 0.3 s of a core for a kernel."""

    def write() -> str:
        return device_unit(programs, reduces=reduces)

    if not in_a_run():
        return write()
    descriptions = [
        (symbol, type(family).__name__, family.name, kernel.name) for symbol, (family, kernel) in programs.items()
    ]
    return kept.text("unit-text", [kept.sources(), repr((descriptions, list(reduces)))], write)


def kernel_part(unit: str) -> str:
    """The kernels of a unit alone, without what they share."""
    kernel = r"^HT_DEVICE void \w+_kernel\([^;{]*\{\n.*?^\}\n" + r'extern "C" __global__ [^;{]*\{\n.*?^\}\n'
    return "".join(re.findall(kernel, unit, re.MULTILINE | re.DOTALL))
