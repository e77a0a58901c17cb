"""CUDA packs built without tuning: real device code, made-up plans, through the real writer and runtime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from haotuner.backends.cpu.pack_op import SlicedEntry, SlicedKernel, SlicedPlan, axes_of
from haotuner.backends.cuda.pack_products import (
    CudaEntry,
    PackedCudaConv,
    PackedCudaDense,
    PackedCudaProduct,
    placed_operands,
)
from haotuner.backends.cuda.pack_source import PackedOnDevice, pack_library
from haotuner.backends.toolchain import Toolchain
from haotuner.codegen.online_softmax_schedule import DEPTH, FED, TENSOR, OnlineSchedule
from haotuner.codegen.schedule import Schedule
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.cuda.dense_gemv import CudaGemv
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_mma_turing import CudaMmaTuring
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma, CudaWgmmaShort
from haotuner.microkernels.cuda.direct import CudaDirect
from haotuner.microkernels.cuda.families import BATCHED_FAMILIES, CUDA_FAMILIES, GROUPED_FAMILIES
from haotuner.microkernels.cuda.fused import stepped, steps_of
from haotuner.microkernels.cuda.generated import CudaGenerated
from haotuner.microkernels.cuda.online_softmax import CudaOnline
from haotuner.microkernels.index import family_named
from haotuner.ops.convolution import is_convolution
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.index import KINDS
from haotuner.pack.write import write_pack
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.run_folder import toolchain
from tests.runtime.cuda_generated_packs import packed_generated

_TILES = {family.name for family in CUDA_FAMILIES}
FIRST, LAST = 2, 200  # rows that the plans say they were tuned for


@dataclass(frozen=True, kw_only=True)
class Pick:
    """An architecture, an op for it, and its kernels: the first is planned, the second takes the rest of two regions."""

    arch: str
    op: str
    kernels: tuple[MicroKernel, ...]
    dtype: str  # numpy's name

    def __post_init__(self) -> None:
        """Kernels are built for the op's steps."""
        op = Op.parse(self.op)
        kernels = tuple(
            stepped(kernel, steps_of(op, phased="_phases_" in kernel.family)) if kernel.family in _TILES else kernel
            for kernel in self.kernels
        )
        object.__setattr__(self, "kernels", kernels)

    @property
    def cells(self) -> tuple[tuple[int, CudaEntry], ...]:
        """Three parts of k, then one region, then two."""
        one_region = CudaEntry(regions=((0, 0),))
        if self.op.startswith("grouped"):  # one launch
            return (4, CudaEntry(regions=((len(self.kernels) - 1, 0),))), (LAST, one_region)
        first = 128 // int(dict(self.kernels[0].params)["bm"])  # tiles; the shortest m of the cell have no second region
        return (
            (4, CudaEntry(regions=((0, 0),), splits=3)),
            (100, one_region),
            (LAST, CudaEntry(regions=((0, first), (1, 0)))),
        )


_SIMT, _WGMMA, _MMA = (
    CudaSimt("cuda_simt_fp32", "fp32"),
    CudaWgmma("cuda_wgmma_fp16", "fp16"),
    CudaMma("cuda_mma_fp16", "fp16"),
)
SIMT = Pick(  # wide loads, and single ones that take any alignment
    arch="sm_80",
    op="dense_n72_k52",
    kernels=(_SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4), _SIMT.kernel(bm=32, bn=64, bk=8, tm=4, tn=4, v=1)),
    dtype="float32",
)
WGMMA = Pick(  # tensor maps and over 48 KB of shared memory, and a kernel without
    arch="sm_90a",
    op="dense_n72_k136_fp16",
    kernels=(_WGMMA.kernel(bm=64, bn=64, st=4), _MMA.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, v=1)),
    dtype="float16",
)
PICKS = (SIMT, WGMMA)
FUSED_FP32 = replace(SIMT, op="dense_n72_k52_bias_residual_gelu")
FUSED_FP16 = replace(WGMMA, op="dense_n72_k136_fp16_residual_silu")
FUSED_PICKS = (FUSED_FP32, FUSED_FP16)
_SHORT, _BF16 = CudaWgmmaShort("cuda_wgmmas_bf16", "bf16"), CudaMma("cuda_mma_bf16", "bf16")
KN_HOPPER = Pick(
    arch="sm_90a",
    op="dense_n72_k136_bf16_kn",
    kernels=(
        _SHORT.kernel(bm=32, bn=64, st=3, kn=1),
        _BF16.kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, v=1, kn=1),
    ),
    dtype="bfloat16",
)
_GEMV, _TURING = CudaGemv("cuda_gemv_fp16", "fp16"), CudaMmaTuring("cuda_mma8_fp16", "fp16")
KN_TURING = Pick(
    arch="sm_75",
    op="dense_n72_k136_fp16_kn",
    kernels=(
        _GEMV.kernel(bm=4, c=64, wn=2, wk=2, v=8, kn=1),
        _TURING.turing(bm=32, bn=64, bk=32, wm=1, wn=2, v=1, kn=1),
    ),
    dtype="float16",
)
_GROUPED = {family.name: family for family in GROUPED_FAMILIES}
GROUPED_HOPPER = Pick(
    arch="sm_90a",
    op="grouped_n72_k136_g6_fp16",
    kernels=(
        _GROUPED["cuda_grouped_wgmma_fp16"].kernel(bm=64, bn=64, st=2),  # type: ignore[attr-defined]
        _GROUPED["cuda_grouped_gemv_fp16"].kernel(bm=4, c=2, wn=2, wk=2, v=8),  # type: ignore[attr-defined]
    ),
    dtype="float16",
)
GROUPED_FP32 = Pick(
    arch="sm_80",
    op="grouped_n72_k52_g5",
    kernels=(_GROUPED["cuda_grouped_simt_fp32"].kernel(bm=32, bn=64, bk=8, tm=4, tn=4),),  # type: ignore[attr-defined]
    dtype="float32",
)
GROUPED_KN = Pick(
    arch="sm_90a",
    op="grouped_n72_k128_g6_bf16_kn",
    kernels=(
        _GROUPED["cuda_grouped_wgmmas_bf16"].kernel(bm=16, bn=64, st=3, kn=1),  # type: ignore[attr-defined]
        _GROUPED["cuda_grouped_mma_bf16"].kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, kn=1),  # type: ignore[attr-defined]
    ),
    dtype="bfloat16",
)
GROUPED_PICKS = (GROUPED_HOPPER, GROUPED_FP32, GROUPED_KN)
KN_PICKS = (KN_HOPPER, KN_TURING)  # weights stored (k, n)
_BATCHED = {family.name: family for family in BATCHED_FAMILIES}
PRODUCT_FP16 = Pick(  # wide copies, and single ones that take any alignment
    arch="sm_80",
    op="batch_matmul_k16_fp16_nt",
    kernels=tuple(
        _BATCHED["cuda_batched_mma_fp16"].kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, v=v)  # type: ignore[attr-defined]
        for v in (8, 1)
    ),
    dtype="float16",
)
PRODUCT_FP32 = Pick(
    arch="sm_90a",
    op="batch_matmul",
    kernels=(_BATCHED["cuda_batched_simt_fp32"].kernel(bm=32, bn=64, bk=8, tm=4, tn=4, v=1, kn=1),),  # type: ignore[attr-defined]
    dtype="float32",
)
PRODUCT_BF16 = Pick(
    arch="sm_90a",
    op="batch_matmul_bf16",
    kernels=(_BATCHED["cuda_batched_mma_bf16"].kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=2, v=1, kn=1),),  # type: ignore[attr-defined]
    dtype="bfloat16",
)
PRODUCT_TN = Pick(  # x stored (k, m), of a type that ldmatrix turns
    arch="sm_80",
    op="batch_matmul_fp16_tn",
    kernels=(_BATCHED["cuda_batched_mma_fp16"].kernel(bm=32, bn=64, bk=32, wm=1, wn=2, st=3, v=1, kn=2),),  # type: ignore[attr-defined]
    dtype="float16",
)
PRODUCT_TN_FP32 = Pick(
    arch="sm_80",
    op="batch_matmul_tn",
    kernels=(_BATCHED["cuda_batched_simt_fp32"].kernel(bm=32, bn=64, bk=8, tm=4, tn=4, v=1, kn=2),),  # type: ignore[attr-defined]
    dtype="float32",
)
PRODUCT_PICKS = (PRODUCT_FP16, PRODUCT_FP32, PRODUCT_BF16)
_MMA_TILE = {"bm": 32, "bn": 64, "bk": 32, "wm": 1, "wn": 2, "st": 3}
CONV_FIRST = Pick(  # channels first: a product an image, rows are features
    arch="sm_80",
    op=Op.parse("conv2d:c=8,f=8,r=3,s=3,pad=1,dtype=fp16,epilogue=bias+relu").name,
    kernels=tuple(_BATCHED["cuda_batched_mma_fp16"].kernel(**_MMA_TILE, v=v) for v in (1, 8)),  # type: ignore[attr-defined]
    dtype="float16",
)
CONV_LAST = Pick(  # channels last, in groups: a product a group, rows are pixels of all images
    arch="sm_90a",
    op=Op.parse("conv2d:c=6,f=10,r=3,s=3,pad=1,groups=2,layout=nhwc,dtype=bf16").name,
    kernels=(_BATCHED["cuda_batched_mma_bf16"].kernel(**_MMA_TILE, v=1),),  # type: ignore[attr-defined]
    dtype="bfloat16",
)
CONV_APART = Pick(  # windows whose taps and steps are apart, and wider than small images; rows are whole pieces of 16 bytes
    arch="sm_80",
    op=Op.parse("conv2d:c=4,f=6,r=2,s=3,pad=1,stride=2,dilation=3").name,
    kernels=(_BATCHED["cuda_batched_simt_fp32"].kernel(bm=32, bn=64, bk=8, tm=4, tn=4, v=4, kn=0),),  # type: ignore[attr-defined]
    dtype="float32",
)
CONV_ONE_TAP = Pick(  # channels last, windows of one tap: x as it lies is what the product reads
    arch="sm_80",
    op=Op.parse("conv2d:c=16,f=10,r=1,s=1,groups=2,layout=nhwc,dtype=bf16,epilogue=bias+relu").name,
    kernels=tuple(_BATCHED["cuda_batched_mma_bf16"].kernel(**_MMA_TILE, v=v) for v in (1, 8)),  # type: ignore[attr-defined]
    dtype="bfloat16",
)
CONV_PICKS = (CONV_FIRST, CONV_LAST, CONV_APART, CONV_ONE_TAP)
STEPPED_PICKS = (  # any epilogue, and results of other types
    replace(WGMMA, op=Op.parse("dense:n=72,k=136,dtype=fp16,out=fp32,epilogue=scale+bias+hardswish+residual").name),
    replace(SIMT, op=Op.parse("dense:n=72,k=52,out=bf16,epilogue=bias+tanh+clamp").name),
    replace(GROUPED_HOPPER, op=Op.parse("grouped:g=6,n=72,k=136,dtype=fp16,epilogue=bias+silu+scale+residual").name),
    replace(CONV_FIRST, op=Op.parse(
        "conv2d:c=8,f=8,r=3,s=3,pad=1,dtype=fp16,out=fp32,epilogue=scale+bias+residual+relu6").name),
    replace(CONV_LAST, op=Op.parse(
        "conv2d:c=6,f=10,r=3,s=3,pad=1,groups=2,layout=nhwc,dtype=bf16,epilogue=clamp+residual+bias+gelu").name),
)  # fmt: skip
_SIMT_TILE = {"bm": 32, "bn": 64, "bk": 8, "tm": 4, "tn": 4, "v": 1}
TRANSPOSED_PICKS = (  # products first, gathered by a launch: channels first, last and in groups, lines
    Pick(
        arch="sm_80",
        op=Op.parse("conv_transpose2d:c=5,f=6,r=3,s=2,stride=2,pad=1.0.0.1,opad=1,dtype=fp16,epilogue=bias+relu").name,
        kernels=(_BATCHED["cuda_batched_mma_fp16"].kernel(**_MMA_TILE, v=1, kn=2),),  # type: ignore[attr-defined]
        dtype="float16",
    ),
    Pick(
        arch="sm_90a",
        op=Op.parse("conv_transpose2d:c=8,f=6,r=2,s=3,stride=2.3,dilation=1.2,groups=2,layout=nhwc,dtype=bf16,out=fp32,"
                    "epilogue=residual+silu+scale").name,
        kernels=(_BATCHED["cuda_batched_mma_bf16"].kernel(**_MMA_TILE, v=2, kn=1),),  # type: ignore[attr-defined]
        dtype="bfloat16",
    ),
    Pick(
        arch="sm_80",
        op=Op.parse("conv_transpose1d:c=6,f=6,s=4,stride=2,pad=1,groups=3").name,
        kernels=tuple(
            _BATCHED["cuda_batched_simt_fp32"].kernel(**_SIMT_TILE | {"v": v}, kn=2)  # type: ignore[attr-defined]
            for v in (1, 2)
        ),
        dtype="float32",
    ),
)  # fmt: skip


def _direct(arch: str, spec: str, index: int) -> Pick:
    """A convolution without columns by one of its kernels, which are the same on every device."""
    op, any_device = Op.parse(spec), None
    kernels: Any = tuple(CudaDirect(op.dtype).points(op, any_device))  # type: ignore[arg-type]
    return Pick(arch=arch, op=op.name, kernels=(kernels[index],), dtype=DTYPES[op.dtype].numpy)


DIRECT_PICKS = (  # a feature from its channel: channels first; last, two features a channel; lines
    _direct("sm_80", "conv2d:c=6,f=6,r=3,s=3,pad=1,groups=6,dtype=fp16,epilogue=bias+relu6+residual", 6),
    _direct("sm_90a", "conv2d:c=5,f=10,r=5,s=2,pad=2.1.2.1,stride=2.1,dilation=1.2,groups=5,layout=nhwc,dtype=bf16,out=fp32,"
                      "epilogue=scale+silu", 5),
    _direct("sm_80", "conv1d:c=4,f=4,s=5,pad=4.0,groups=4", 2),
)  # fmt: skip
STEPPED_PRODUCT = replace(PRODUCT_FP16, op=Op.parse("batch_matmul:k=16,layout=nt,dtype=fp16,out=fp32,epilogue=gelu").name)
_SOFTMAX, _GELU = CudaGenerated(KINDS["softmax"]), CudaGenerated(KINDS["gelu"])
_NORM = CudaGenerated(KINDS["layer_norm"], "bf16")
GENERATED_PICKS = (  # groups of part of a warp, a warp and a block; one without folds, whose axes may be one
    Pick(arch="sm_80", op="softmax", dtype="float32", kernels=tuple(
        _SOFTMAX.kernel_of(Schedule(lane_axis=1, lanes=lanes, unroll=4, folds=(4, 4), packed=4, peeled=True),
                           Op.parse("softmax:"))
        for lanes in (8, 64)
    )),
    Pick(arch="sm_90a", op=Op.parse("layer_norm:affine=scale_bias,dtype=bf16").name, dtype="bfloat16", kernels=(
        _NORM.kernel_of(Schedule(lane_axis=1, lanes=32, unroll=8, folds=(8, 8), packed=8, peeled=True),
                        Op.parse("layer_norm:affine=scale_bias,dtype=bf16")),
    )),
    Pick(arch="sm_90a", op="gelu", dtype="float32", kernels=(
        _GELU.kernel_of(Schedule(lane_axis=1, lanes=32, unroll=8, packed=4), Op.parse("gelu:")),
    )),
)  # fmt: skip
_SUM = CudaGenerated(KINDS["reduce_sum"], "bf16")
PARTS_PICK = Pick(arch="sm_90a", op=Op.parse("reduce_sum:dtype=bf16").name, dtype="bfloat16", kernels=tuple(
    _SUM.kernel_of(Schedule(lane_axis=-1, lanes=32, unroll=2, folds=(2,), packed=2, peeled=True, parts=parts),
                   Op.parse("reduce_sum:dtype=bf16"))
    for parts in (1, 4)
))  # fmt: skip
_ATTENTION, _ATTENDED = CudaOnline(KINDS["attention"]), Op.parse("attention:d=40,causal=end")
ATTENTION_PICK = Pick(arch="sm_80", op=_ATTENDED.name, dtype="float32", kernels=tuple(
    _ATTENTION.kernel_of(OnlineSchedule(lanes=32, along=DEPTH, rows=1, block=4, keys=64, out_rows=1, parts=parts), _ATTENDED)
    for parts in (1, 8)
))  # fmt: skip
_TENSORS, _IN_SHORT = CudaOnline(KINDS["attention"], "bf16"), Op.parse("attention:d=40,causal=end,dtype=bf16")
TENSOR_PICK = Pick(arch="sm_90a", op=_IN_SHORT.name, dtype="bfloat16", kernels=tuple(  # the first asks for shared memory
    _TENSORS.kernel_of(OnlineSchedule(lanes=32, along=along, rows=rows, block=keys, keys=keys, out_rows=16, stages=stages,
                                      parts=parts), _IN_SHORT)
    for along, rows, keys, stages, parts in ((FED, 128, 64, 2, 1), (TENSOR, 32, 64, 2, 8))
))  # fmt: skip
_LOG_SOFTMAX = CudaGenerated(KINDS["log_softmax"])
STAGES_PICK = Pick(  # short rows by a program whose output may not be its input, long ones by parts
    arch="sm_80", op="log_softmax", dtype="float32", kernels=tuple(_LOG_SOFTMAX.kernel_of(schedule, Op.parse("log_softmax:"))
    for schedule in (Schedule(lane_axis=0, lanes=32, unroll=1),
                Schedule(lane_axis=1, lanes=64, unroll=2, folds=(2, 2), packed=2, peeled=True, parts=4))
))  # fmt: skip
ONE_FOLD_PICKS = (PARTS_PICK, ATTENTION_PICK, TENSOR_PICK, STAGES_PICK)  # blocks share a row
TURNED_PICKS = (PRODUCT_TN, PRODUCT_TN_FP32)


def family(kernel: MicroKernel) -> Any:
    """The family of a CUDA kernel."""
    return next((known for known in CUDA_FAMILIES if known.name == kernel.family), None) or family_named(kernel.family)


def packed_op(name: str, kernels: Sequence[MicroKernel], cells: Sequence[tuple[int, CudaEntry]]) -> PackedCudaDense:
    """An op with one plan: (largest rows, how they are computed) of each cell."""
    return PackedCudaDense(
        op=Op.parse(name),
        first_m=FIRST,
        last_m=LAST,
        kernels=kernels,
        launches=[family(kernel).launch(kernel) for kernel in kernels],
        bounds=[bound for bound, _ in cells],
        entries=[entry for _, entry in cells],
    )


def packed(pick: Pick) -> PackedOnDevice:
    """The op of a pick, with the plan of its kind."""
    if Op.parse(pick.op).kind == "batch_matmul":
        return packed_product(pick.op, pick.kernels)
    if is_convolution(Op.parse(pick.op).kind):
        return packed_conv(pick.op, pick.kernels)
    if pick in (*GENERATED_PICKS, *ONE_FOLD_PICKS):
        return packed_generated(pick.op, family(pick.kernels[0]), pick.kernels, LAST)
    return packed_op(pick.op, pick.kernels, pick.cells)


def packed_product(name: str, kernels: Sequence[MicroKernel]) -> PackedCudaProduct:
    """A product with one plan by its first dynamic axis: the first kernel everywhere."""
    op = Op.parse(name)
    return PackedCudaProduct(
        op=op,
        name=name,
        kind=op.kind,
        axes=axes_of(op, dict.fromkeys(op.dynamic, (1, LAST))),
        operands=placed_operands(op),
        kernels=[
            SlicedKernel(name=kernel.name, tile=family(kernel).tile(kernel).extent, kernel=kernel) for kernel in kernels
        ],
        plans=[SlicedPlan(threads=1, grid={op.dynamic[0]: (2, LAST)}, entries=[SlicedEntry(kernel=0)] * 2)],
        launches=[family(kernel).launch(kernel) for kernel in kernels],
    )


def packed_conv(name: str, kernels: Sequence[MicroKernel]) -> PackedCudaConv:
    """A convolution with one plan by its first dynamic axis: the last kernel everywhere."""
    op = Op.parse(name)
    tiles = [conv_families(op)[0].tile(kernel) for kernel in kernels]
    return PackedCudaConv(
        op=op,
        ranges=dict.fromkeys(op.dynamic, (1, 24)),
        micro_kernels=tuple(kernels),
        tiles=tuple({**tile.extent, **tile.step} for tile in tiles),
        plans=(SlicedPlan(threads=1, grid={op.dynamic[0]: (2, 24)}, entries=[SlicedEntry(kernel=len(kernels) - 1)] * 2),),
        packed_floats=1,
        launches=[family(kernel).launch(kernel) for kernel in kernels],
    )


def document(ops: Sequence[PackedOnDevice], arch: str, **device: Any) -> dict[str, Any]:
    """The manifest's content, as `haotuner tune` writes it."""
    profile = {"id": f"stand-in-{arch.replace('_', '-')}", "arch": arch, "kind": "cuda", "name": f"stand-in {arch}"}
    return {"haotuner": "0", "device": profile | device, "ops": [op.entry({}) for op in ops]}


def make_pack(
    out: Path, ops: Sequence[PackedOnDevice], arch: str, cubin: Path, *, linker: Toolchain | None = None, **device: Any
) -> Path:
    """Build the library around device code and publish the pack at ``out``."""
    library = out.with_suffix(".so")

    def compile_object(kernels: Sequence[MicroKernel], arch: str, to: Path) -> None:
        to.write_bytes(cubin.read_bytes())

    driver = pack_library(ops, arch, linker or toolchain(), library, compile_object)
    write_pack(out, library, document(ops, arch, **device) | driver, lambda _: None)
    library.unlink()
    return out
