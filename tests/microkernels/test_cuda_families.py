"""The CUDA families: what they serve, the space they span, and what a point asks of a device."""

from __future__ import annotations

from dataclasses import replace
from math import gcd

import numpy as np
import pytest

from haotuner.backends.cuda.window_calls import phases_of
from haotuner.microkernels.cuda.conv import conv_families
from haotuner.microkernels.cuda.dense import resident_blocks, rounded_registers, vector_elements
from haotuner.microkernels.cuda.dense_wgmma_windows import CudaWgmmaWindows
from haotuner.microkernels.cuda.families import BATCHED_FAMILIES, CUDA_FAMILIES, DENSE_FAMILIES, GROUPED_FAMILIES
from haotuner.microkernels.cuda.fused import ANY_STEPS, built_for, stepped
from haotuner.ops.convolution import Window
from haotuner.spec.demand import demand_query
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.microkernels.cuda_examples import GEMV, GEMV_FP32, MMA, SHORT_WGMMA, SIMT, TURING, WGMMA, device

DENSE = Op.parse("dense:n=2304,k=768,dtype=fp16")
WGMMA_WINDOWS = CudaWgmmaWindows("cuda_windows_wgmma_bf16", "bf16", batched=True, windows="last")
EVERY_GROUPED = tuple(Op.parse(f"grouped:g=8,n=2304,k=768,dtype={dtype}") for dtype in ("fp32", "fp16", "bf16"))
EVERY_BATCHED = tuple(Op.parse(f"batch_matmul:k=64,layout=nt,dtype={dtype}") for dtype in ("fp32", "fp16", "bf16"))
EVERY_DTYPE = tuple(Op.parse(f"dense:n=2304,k=768,dtype={dtype}") for dtype in ("fp32", "fp16", "bf16"))
OF_FLOATS = [family for family in DENSE_FAMILIES if family.dtype != "int8"]
OF_BYTES = tuple(
    Op.parse(f"{kind},dtype=int8{signs}")
    for kind in ("dense:n=2304,k=768", "batch_matmul:k=64,layout=nt")
    for signs in ("", ",in=int8")
)


def test_each_dtype_has_the_families_of_its_instructions():
    served = {op.dtype: [family.name for family in CUDA_FAMILIES if family.serves(op)] for op in EVERY_DTYPE}
    assert served == {
        "fp32": ["cuda_simt_fp32", "cuda_gemv_fp32"],
        "fp16": ["cuda_wgmma_fp16", "cuda_wgmmas_fp16", "cuda_mma_fp16", "cuda_mma8_fp16", "cuda_gemv_fp16"],
        "bf16": ["cuda_wgmma_bf16", "cuda_wgmmas_bf16", "cuda_mma_bf16", "cuda_gemv_bf16"],
    }


@pytest.mark.parametrize("kind", ["dense:n=2304,k=768", "grouped:g=8,n=2304,k=768"])
@pytest.mark.parametrize("epilogue", ["bias", "relu+bias", "residual+bias", "scale+clamp+tanh", "prelu+residual+silu"])
def test_epilogues_are_built_in_the_same_kernels(kind, epilogue):
    op = Op.parse(f"{kind},dtype=bf16")
    fused = Op.parse(f"{kind},dtype=bf16,out=fp32,epilogue={epilogue}")
    serving = [family for family in CUDA_FAMILIES if family.serves(op)]
    assert serving == [family for family in CUDA_FAMILIES if family.serves(fused)]


@pytest.mark.parametrize(
    "op",
    [
        "dense:n=2304,k=768,out=int8",
        "batch_matmul:k=64,epilogue=bias",
        "dense:m=4,n=2304,k=768",
    ],
)
def test_results_of_bytes_operands_of_steps_of_products_and_shapes_known_in_full_are_not_served(op):
    assert not any(family.serves(Op.parse(op)) for family in CUDA_FAMILIES)


def test_wgmma_needs_a_static_k_that_fits_the_pitch_of_tma():
    assert WGMMA.serves(Op.parse("dense:n=70,k=768,dtype=fp16"))
    assert not WGMMA.serves(Op.parse("dense:n=2304,k=764,dtype=fp16"))
    assert not WGMMA.serves(Op.parse("dense:n=2304,dtype=fp16"))
    assert not WGMMA.serves(Op.parse("dense:n=2300,k=768,dtype=fp16,weight=kn"))


@pytest.mark.parametrize("family", CUDA_FAMILIES, ids=lambda family: family.name)
def test_points_are_distinct_and_their_names_parse_back(family):
    of_images = "_tint8" in family.name or family.windows  # which none but convolutions ask for
    every = (*EVERY_DTYPE, *EVERY_GROUPED, *EVERY_BATCHED, *OF_BYTES)
    products = [op for op in (*EVERY_BATCHED, *OF_BYTES[2:]) if op.dtype == family.dtype]
    op = products[0] if of_images else next(op for op in every if family.serves(op))
    points = list(family.points(op, device("sm_90a")))
    assert 80 <= len(points) <= 600
    assert len({point.name for point in points}) == len(points)
    assert all(MicroKernel.parse(point.name) == point for point in points)
    assert points == list(family.points(op, device("sm_90a")))


def test_batches_have_the_tiles_without_tensor_maps_and_are_one_launch_each():
    served = {op.dtype: [family.name for family in CUDA_FAMILIES if family.serves(op)] for op in EVERY_BATCHED}
    assert served == {
        "fp32": ["cuda_batched_simt_fp32"], "fp16": ["cuda_batched_mma_fp16"], "bf16": ["cuda_batched_mma_bf16"]
    }  # fmt: skip
    for family in (family for family in BATCHED_FAMILIES if family.dtype != "int8"):
        of = {
            layout: Op.parse(f"batch_matmul:n=64,k=64,layout={layout},dtype={family.dtype}") for layout in ("nn", "nt", "tn")
        }
        assert all(family.serves(op) for op in of.values())
        nn, nt, tn = (next(iter(family.points(op, device("sm_90a")))) for op in of.values())
        assert (nn["kn"], nt["kn"], tn["kn"]) == (1, 0, 2) and family.launch(nn).batch
        assert family.launch(tn).across and not family.launch(nn).across
        assert tn["v"] == 1, "nothing is known of m, along which x lies"
        assert not family.launch(nn).splits and not family.launch(nn).maps
    free = Op.parse("batch_matmul:layout=nt")  # nothing is known of the rows' ends
    assert {point["v"] for family in BATCHED_FAMILIES[:3] for point in family.points(free, device("sm_80"))} == {1}


def test_products_of_bytes_are_by_signs_and_what_tensor_cores_cannot_load_is_by_words():
    served = {op.name: [family.name for family in CUDA_FAMILIES if family.serves(op)] for op in OF_BYTES}
    assert served == {
        "dense_n2304_k768_int8": ["cuda_mma_int8", "cuda_simt_int8"],
        "dense_n2304_k768_int8_inint8": ["cuda_mma_sint8", "cuda_simt_sint8"],
        "batch_matmul_k64_int8_nt": ["cuda_batched_mma_int8", "cuda_batched_simt_int8"],
        "batch_matmul_k64_int8_nt_inint8": ["cuda_batched_mma_sint8", "cuda_batched_simt_sint8"],
    }
    mma, simt = (next(family for family in DENSE_FAMILIES if family.name == f"cuda_{name}_int8") for name in ("mma", "simt"))
    widths = {}
    for words in ("k=768", "k=770", "k=767", "k=768,weight=kn"):
        op = Op.parse(f"dense:n=2304,{words},dtype=int8")
        widths[words] = tuple({point["v"] for point in family.points(op, device("sm_80"))} for family in (mma, simt))
    assert widths == {"k=768": ({16}, {16}), "k=770": ({2}, {1}), "k=767": (set(), {1}), "k=768,weight=kn": (set(), {1})}
    for turned, families in (("", "_tint8"), (",in=int8", "_sint8"), (",layout=nhwc", "_int8")):  # channels of no whole step
        conv = Op.parse(f"conv2d:c=8,f=8,r=3,s=3,dtype=int8{turned}")
        assert [family.name for family in conv_families(conv)] == [
            f"cuda_batched_{name}{families}" for name in ("mma", "simt")
        ]
    gathering = conv_families(Op.parse("conv_transpose2d:c=8,f=8,r=3,s=3,dtype=int8"))
    assert [family.name for family in gathering] == ["cuda_batched_simt_tint8"]  # the weight lies across


def test_families_run_only_where_their_instructions_exist():
    archs = ("sm_70", "sm_75", "sm_80", "sm_90a", "sm_100a", "gfx90a")
    supported = {arch: [family.name for family in OF_FLOATS if family.runs_on(device(arch))] for arch in archs}
    assert supported["sm_70"] == [] == supported["gfx90a"]
    old = ["cuda_simt_fp32", "cuda_gemv_fp16", "cuda_gemv_bf16", "cuda_gemv_fp32"]
    assert supported["sm_75"] == ["cuda_mma8_fp16", *old]
    assert supported["sm_80"] == supported["sm_100a"] == ["cuda_mma_fp16", "cuda_mma_bf16", *old]
    assert len(supported["sm_90a"]) == 10
    grouped = {arch: [family.name for family in GROUPED_FAMILIES if family.runs_on(device(arch))] for arch in archs}
    assert grouped == {arch: [name.replace("cuda_", "cuda_grouped_") for name in names] for arch, names in supported.items()}
    of_bytes = [family for family in DENSE_FAMILIES if family.dtype == "int8"]
    assert [family.oldest_sm for family in of_bytes] == [80, 80, 0, 0]


def test_grouped_ops_have_the_same_tiles_and_are_one_launch_each():
    for dense, grouped in zip(OF_FLOATS, GROUPED_FAMILIES, strict=True):
        op = next(op for op in EVERY_DTYPE if dense.serves(op))
        of = Op.parse(f"grouped:g=8,n=2304,k=768,dtype={op.dtype}")
        assert grouped.serves(of) and not grouped.serves(op) and not dense.serves(of)
        points = list(grouped.points(of, device("sm_90a")))
        assert [point.params for point in points] == [point.params for point in dense.points(op, device("sm_90a"))]
        assert grouped.launch(points[0]).groups and not grouped.launch(points[0]).splits


def test_maps_over_all_groups_need_whole_steps_of_k_where_k_is_outermost():
    (wgmma,) = (family for family in GROUPED_FAMILIES if family.name == "cuda_grouped_wgmma_fp16")
    assert wgmma.serves(Op.parse("grouped:g=8,n=2304,k=72,dtype=fp16"))
    assert wgmma.serves(Op.parse("grouped:g=8,n=2304,k=128,dtype=fp16,weight=kn"))
    assert not wgmma.serves(Op.parse("grouped:g=8,n=2304,k=72,dtype=fp16,weight=kn"))  # a step would reach the next matrix


def test_loads_are_as_wide_as_the_static_extents_allow():
    assert vector_elements(Op.parse("dense:n=7,k=768"), 4) == 4
    assert vector_elements(Op.parse("dense:n=7,k=770"), 4) == 2
    assert vector_elements(Op.parse("dense:n=7,k=768,weight=kn"), 4) == 1
    assert vector_elements(Op.parse("dense:n=7"), 4) == 1


def test_tiles_round_up():
    kernel = MMA.kernel(bm=64, bn=128, bk=32, wm=2, wn=2, st=3)
    assert MMA.tile(kernel).count(DENSE.extents(Shape.of(m=65))) == 2 * 18
    assert MMA.tile(kernel).step == {"k": 32}


def test_the_footprint_of_a_known_tile():
    footprint = WGMMA.footprint(WGMMA.kernel(bm=128, bn=256, st=4))
    assert footprint.threads == 384  # a producer and two consumer warpgroups
    assert footprint.shared_bytes == 4 * ((128 + 256) * 64 * 2 + 16)
    simt = SIMT.footprint(SIMT.kernel(bm=128, bn=128, bk=8, tm=8, tn=8))
    assert (simt.threads, simt.shared_bytes) == (256, 2 * 256 * 8 * 4)
    assert 64 + 16 < simt.registers_per_thread <= 128  # accumulators, fragments and some; two blocks an SM


def test_registers_are_budgeted_a_scheduler():
    assert resident_blocks(256, 128) == 2
    assert resident_blocks(64, 88) == 10  # 65536 / (64 * 88) would be 11, but a scheduler's 5 warps are 20 in all
    assert resident_blocks(256, 255) == 1
    assert rounded_registers(121) == 128
    assert rounded_registers(12) == 64
    assert rounded_registers(300) == 255


@pytest.mark.parametrize(
    "build",
    [
        lambda: MMA.kernel(bm=24, bn=32, bk=32, wm=1, wn=2, st=2),
        lambda: MMA.kernel(bm=32, bn=32, bk=16, wm=1, wn=2, st=2),
        lambda: MMA.kernel(bm=32, bn=32, bk=32, wm=1, wn=2, st=1),
        lambda: TURING.turing(bm=24, bn=32, bk=32, wm=1, wn=2),
        lambda: TURING.turing(bm=32, bn=32, bk=32, wm=1, wn=2, v=3),
        lambda: SIMT.kernel(bm=20, bn=64, bk=8, tm=4, tn=4),
        lambda: SIMT.kernel(bm=32, bn=64, bk=12, tm=4, tn=4),
        lambda: WGMMA.kernel(bm=96, bn=64, st=3),
        lambda: WGMMA.kernel(bm=64, bn=264, st=3),
        lambda: WGMMA.kernel(bm=64, bn=96, st=3, kn=1),
        lambda: WGMMA.kernel(bm=192, bn=256, st=3),
        lambda: WGMMA_WINDOWS.kernel(bm=96, bn=64, st=3),
        lambda: WGMMA_WINDOWS.kernel(bm=64, bn=64, st=2),
        lambda: WGMMA_WINDOWS.kernel(bm=256, bn=256, st=5),
        lambda: SHORT_WGMMA.kernel(bm=40, bn=64, st=3),
        lambda: SHORT_WGMMA.kernel(bm=8, bn=64, st=3, kn=2),
        lambda: GEMV.kernel(bm=4, c=2, wn=4, wk=1, v=8, kn=1),
        lambda: GEMV.kernel(bm=16, c=64, wn=4, wk=1, v=8, kn=1),
        lambda: GEMV.kernel(bm=3, c=1, wn=4, wk=1, v=8),
        lambda: GEMV.kernel(bm=4, c=1, wn=3, wk=1, v=8),
        lambda: GEMV_FP32.kernel(bm=4, c=1, wn=4, wk=1, v=8),
    ],
)
def test_what_cannot_be_a_program_is_refused_with_a_reason(build):
    with pytest.raises(ValueError, match=r"tile|outside|must be"):
        build()


def test_a_kernel_is_built_for_steps_or_is_what_it_was():
    plain = GEMV.kernel(bm=4, c=1, wn=4, wk=1, v=8)
    any_steps = stepped(plain)
    assert stepped(plain, 0) is plain and stepped(any_steps) is any_steps
    assert [built_for(kernel) for kernel in (any_steps, stepped(any_steps, 5))] == [ANY_STEPS, 5]
    assert stepped(any_steps, 0) == stepped(stepped(plain, 5), 0) == plain


def test_windows_are_read_where_steps_lie_in_a_tap_and_cost_no_columns():
    plain = Op.parse("conv2d:c=96,f=64,r=3,s=3,pad=1,layout=nhwc,dtype=bf16")
    windows, columns = conv_families(plain)  # 96 terms of a tap are no whole steps of wgmma
    assert (windows.name, columns.name) == ("cuda_windows_mma_bf16", "cuda_batched_mma_bf16")
    points = list(windows.points(plain, device("sm_80")))
    assert {point["bk"] for point in points} == {32} and {point["v"] for point in points} == {8}
    more = replace(plain, epilogue=("bias", "gelu"))
    assert all(built_for(point) for point in conv_families(more)[0].points(more, device("sm_80")))
    pairs, demands = [(point, Shape.of(b=8, h=56, w=56)) for point in points[:40]], []
    for family in (windows, columns):
        same = [(MicroKernel(family.name, point.params), shape) for point, shape in pairs]
        demands.append(family.demand(demand_query(device("sm_80"), plain, same, element_bytes=2, cold=True)))
    windowed, laid_out = demands
    pixels, size = 8 * 56 * 56, 2.0
    image, seen = pixels * 96 * size, pixels * 864 * size
    assert np.all(laid_out.work.least_bytes - windowed.work.least_bytes == seen - image), "windows overlap in memory"
    assert np.all(laid_out.work.mid_bytes == windowed.work.mid_bytes), "each tile takes its windows from the L2"
    assert laid_out.apart is not None and np.all(laid_out.apart.far_bytes == image + seen)
    assert windowed.apart is None, "the weight is turned once"
    for words, families in (
        ("dtype=fp16,layout=nhwc,c=32", ("windows_mma_fp16", "batched_mma_fp16")),
        ("dtype=fp16,layout=nhwc,c=64", ("windows_wgmma_fp16", "windows_mma_fp16", "batched_mma_fp16")),
        ("layout=nhwc,c=8", ("windows_simt_fp32", "batched_simt_fp32")),
        ("c=8", ("images_simt_fp32", "batched_simt_fp32")),
        ("dtype=int8,layout=nhwc,c=64", ("windows_mma_int8", "batched_mma_int8", "windows_simt_int8", "batched_simt_int8")),
        ("dtype=int8,in=int8,layout=nhwc,c=32", ("batched_mma_sint8", "windows_simt_sint8", "batched_simt_sint8")),
    ):
        op = Op.parse(f"conv2d:f=64,r=3,s=3,{words}")
        assert [family.name for family in conv_families(op)] == [f"cuda_{name}" for name in families]
        assert all(list(family.points(op, device("sm_80"))) for family in conv_families(op))
    for point in conv_families(Op.parse("conv2d:c=16,f=64,r=3,s=3"))[0].points(
        Op.parse("conv2d:c=16,f=64,r=3,s=3"), device("sm_80")
    ):
        assert (
            point["kn"] == 1
            and point["bk"] in (8, 16)
            and point["bm"] * point["bn"] // (point["tm"] * point["tn"]) % point["bn"] == 0
        )
    of_columns = ("c=96,f=64,r=1,s=1,dtype=fp16", "c=48,f=64,r=3,s=3,dtype=fp16", "c=96,f=64,r=3,s=3,groups=4,dtype=fp16",
                  "c=96,f=64,r=3,s=3,dtype=fp16,groups=32", "c=12,f=64,r=3,s=3")  # fmt: skip
    for words in of_columns:  # as it lies; steps over taps
        every = conv_families(Op.parse(f"conv2d:{words},layout=nhwc"))
        assert every and not any(family.name.startswith("cuda_windows") for family in every)
    assert len(conv_families(Op.parse("conv2d:c=96,f=64,r=3,s=3,dtype=fp16"))) == 1, "channels first"
    assert len(conv_families(Op.parse("conv2d:c=3,f=64,r=7,s=7"))) == 1, "few channels"


def test_transposed_windows_are_an_ordinary_one_for_each_residue_and_gather_nothing():
    plain = Op.parse("conv_transpose2d:c=64,f=48,r=4,s=3,stride=2,pad=1,layout=nhwc,dtype=bf16")
    hopper, phases = conv_families(plain)
    assert (hopper.name, phases.name) == ("cuda_phases_wgmma_bf16", "cuda_phases_mma_bf16")
    assert hopper.suits(device("sm_90a")) and not hopper.suits(device("sm_80"))
    shape, size = Shape.of(b=2, h=15, w=20), 2.0  # 30 x 39 results
    pairs = [(point, shape) for point in list(phases.points(plain, device("sm_80")))[:20]]
    assert all(point["kn"] == 0 for point, _ in pairs)
    demand = phases.demand(demand_query(device("sm_80"), plain, pairs, element_bytes=2, cold=True))
    assert demand.apart is None and demand.matmul is not None
    assert np.all(demand.matmul.rows == 2 * 15 * 20) and np.all(demand.matmul.depth == 64 * 2 * 2), "the largest residue's"
    image, results = 2 * 15 * 20 * 64 * size, 4 * 600 * 48 * size
    assert np.all(demand.work.least_bytes == image + 4 * 48 * 256 * size + results), "no sums of taps in memory"
    for words, names in (
        ("c=48,dtype=bf16", ("batched_mma_bf16",)),  # steps over taps
        ("c=64,stride=9,dtype=bf16", ("batched_mma_bf16",)),  # more residues than a launch is told of
        ("c=64,layout=nchw,dtype=bf16", ("batched_mma_bf16",)),
        ("c=64,dtype=int8", ("phases_mma_int8", "phases_simt_int8")),
        ("c=8", ("phases_simt_fp32",)),
    ):
        op = Op.parse(f"conv_transpose2d:f=64,r=3,s=3{'' if 'layout' in words else ',layout=nhwc'},{words}")
        assert [family.name.removeprefix("cuda_") for family in conv_families(op)] == list(names), words
    assert not any(built_for(point) for point in phases.points(plain, device("sm_80")))
    (gathered,) = conv_families(first := Op.parse("conv_transpose2d:c=64,f=48,r=4,s=3,stride=2,dtype=bf16"))
    assert all(built_for(point) for point in gathered.points(first, device("sm_80"))), "it writes fp32"


def test_phases_of_a_transposed_window_are_those_of_its_definition():
    for taps, stride, dilation, before in (
        (4, 2, 1, 1),
        (3, 2, 2, 0),
        (5, 3, 2, 3),
        (1, 2, 1, 0),
        (3, 1, 1, 1),
        (2, 6, 4, 5),
    ):
        side = Window(taps=taps, stride=stride, dilation=dilation, before=before, after=0, transposed=True)
        back, met = dilation // gcd(stride, dilation), set()
        for residue, phase in enumerate(phases_of(side, 17)):
            for result in range(phase.count):
                met |= {
                    (residue + stride * result, tap, result - phase.before - back * at) for at, tap in enumerate(phase.taps)
                }
        expected = {(row * stride - before + tap * dilation, tap, row) for row in range(-40, 40) for tap in range(taps)}
        assert met == {term for term in expected if 0 <= term[0] < 17}
