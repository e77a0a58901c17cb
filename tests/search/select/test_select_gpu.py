"""Selection for GPUs: laws with both sides, thresholds that relax, an order of merit, something left for every profile."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from haotuner.cost.expected import over_traffic
from haotuner.errors import NothingLegal
from haotuner.hw_profiles.find import find_device
from haotuner.hw_profiles.profile import profiles
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.dense_mma import CudaMma
from haotuner.microkernels.cuda.dense_simt import CudaSimt
from haotuner.microkernels.cuda.dense_wgmma import CudaWgmma
from haotuner.microkernels.cuda.families import DENSE_FAMILIES
from haotuner.search.select.fit import relaxed
from haotuner.search.select.funnel import EXAMPLES, Funnel, select
from haotuner.search.select.limits import laws_of, question
from haotuner.spec.constraint import refusals
from haotuner.spec.demand import Expectation
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel, Refused
from haotuner.spec.occupancy import occupancy
from haotuner.spec.op import Op
from haotuner.spec.shape import ShapeRange
from haotuner.spec.traffic import Traffic

SIMT = CudaSimt("cuda_simt_fp32", "fp32")
MMA = CudaMma("cuda_mma_fp16", "fp16")
WGMMA = CudaWgmma("cuda_wgmma_fp16", "fp16")
GPUS = [profile.device for profile in profiles() if profile.device.kind != "cpu"]
FP32, FP16 = Op.parse("dense:n=2304,k=768"), Op.parse("dense:n=2304,k=768,dtype=fp16")
H200, A100 = find_device("h200"), find_device("a100-40gb")
BIG = SIMT.kernel(bm=128, bn=128, bk=8, tm=8, tn=8)
GROUPED = Op.parse("grouped:g=8,n=2304,k=768,dtype=fp16")
GROUPED_MMA = CudaMma("cuda_grouped_mma_fp16", "fp16", grouped=True)
LAWS = [name for name, _ in laws_of(GROUPED_MMA, GROUPED, H200)]  # there are no others


def traffic(text: str) -> Traffic:
    return Traffic.of_range(ShapeRange.parse(text))


def selected(op: Op, family: CudaDense, device: Device, shapes: str = "m=1..4096", most: int | None = None) -> Funnel:
    target_traffic = traffic(shapes)
    return select(op, family, device, target_traffic, expected(op, family, device, target_traffic), most=most)


@pytest.mark.parametrize("device", GPUS, ids=lambda device: device.id)
def test_every_profile_keeps_fp32_kernels_and_half_ones_where_it_has_the_instructions(device: Device) -> None:
    for family in (SIMT, MMA, WGMMA):
        op = FP32 if family is SIMT else FP16
        if family.suits(device):
            funnel = selected(op, family, device)
            check_counts(funnel)
            assert all(0 < candidate.score <= 1.0 for candidate in funnel.candidates)
        else:
            with pytest.raises(NothingLegal, match=r"none of [0-9]+ points .* \(instructions refused [0-9]+\)"):
                selected(op, family, device)
    assert SIMT.suits(device)


@settings(max_examples=12, deadline=None)
@given(
    device=st.sampled_from(GPUS),
    n=st.one_of(st.integers(1, 70), st.integers(1, 5000), st.sampled_from([50257, 2**20])),
    k=st.one_of(st.integers(1, 70), st.integers(1, 5000), st.just(14336)),
    first=st.integers(1, 40),
    more=st.integers(0, 3000),
)
def test_any_op_and_traffic_keep_something_and_the_counts_add_up(
    device: Device, n: int, k: int, first: int, more: int
) -> None:
    op = Op(kind="dense", static=(("n", n), ("k", k)))
    funnel = selected(op, SIMT, device, f"m={first}..{first + more}")
    check_counts(funnel)
    for candidate in funnel.candidates:
        assert not [refused.law for refused in refused_of(SIMT, candidate.kernel, op, device, first + more)]


@pytest.mark.parametrize(
    ("law", "family", "kernel", "device", "op", "requested", "allowed"),
    [
        ("instructions", WGMMA, WGMMA.kernel(bm=64, bn=64, st=3), A100, FP16, 1, 0),
        ("registers", SIMT, BIG, replace(A100, registers_per_thread=63), FP32, 128, 63),
        ("register_file", SIMT, BIG, replace(A100, registers_per_unit=16384), FP32, 128 * 256, 16384),
        ("shared", MMA, MMA.kernel(bm=256, bn=256, bk=64, wm=4, wn=2, st=3), A100, FP16, 3 * 512 * 64 * 2, 166912),
        ("threads", SIMT, BIG, replace(A100, threads_per_block=128), FP32, 256, 128),
        ("occupancy", MMA, MMA.kernel(bm=64, bn=128, bk=64, wm=1, wn=2, st=4), A100, FP16, 4, 2),
        ("coalescing", SIMT, BIG, A100, Op.parse("dense:n=2304,k=769"), 0.5, 0.4),
        ("rows", SIMT, SIMT.kernel(bm=128, bn=64, bk=8, tm=8, tn=4), A100, FP32, 128, 100),
        ("warp tile", MMA, MMA.kernel(bm=64, bn=128, bk=32, wm=1, wn=4, st=3), H200, FP16, 64 * 32, 32 * 32),
        ("step", MMA, MMA.kernel(bm=128, bn=32, bk=32, wm=2, wn=1, st=3), A100, FP16, 35, 32),
        ("step", GROUPED_MMA, GROUPED_MMA.kernel(bm=64, bn=128, bk=32, wm=1, wn=4, st=3), A100, GROUPED, 64, 32),
        ("columns", SIMT, SIMT.kernel(bm=32, bn=128, bk=8, tm=4, tn=4), A100, Op.parse("dense:n=40,k=768"), 128, 64),
    ],
)  # fmt: skip
def test_each_law_gives_both_sides_of_what_it_refuses(
    law: str, family: CudaDense, kernel: MicroKernel, device: Device, op: Op, requested: float, allowed: float
) -> None:
    by_law = {r.law: r for r in refused_of(family, kernel, op, device, 100)}
    assert (by_law[law].requested, by_law[law].allowed) == (requested, allowed)
    assert [name for name in LAWS if name in by_law] == list(by_law)  # in the order of the laws


@pytest.mark.parametrize(("op", "device"), [(FP16, A100), (Op.parse("dense:n=2304,k=770,dtype=fp16"), H200)])
def test_large_tiles_of_a_warp_are_kept_where_wgmma_does_not_compute_the_op(op: Op, device: Device) -> None:
    refused_by_point = [refused_of(MMA, point, op, device, 4096) for point in MMA.points(op, device)]
    assert refused_by_point and all(
        refused.law != "warp tile" for point_refusals in refused_by_point for refused in point_refusals
    )


def test_a_limit_that_nobody_knows_refuses_nothing() -> None:
    bare = Device(
        id="bare-gpu", kind="cuda", name="b", arch="sm_86", compute_units=10, wave_width=32, registers_per_thread=255
    )
    laws = {r.law for point in MMA.points(FP16, bare) for r in refused_of(MMA, point, FP16, bare, 4096)}
    assert laws <= {"occupancy", "step"}  # the latter is no limit of a device


def test_occupancy_names_what_keeps_the_next_block_out() -> None:
    big = SIMT.footprint(BIG)
    assert (occupancy(big, A100).blocks, occupancy(big, A100).limit) == (
        65536 // (256 * big.registers_per_thread),
        "registers",
    )
    deep = occupancy(MMA.footprint(MMA.kernel(bm=128, bn=128, bk=64, wm=2, wn=4, st=4)), A100)
    assert (deep.blocks, deep.waves, deep.limit) == (1, 8, "shared")
    wide = occupancy(SIMT.footprint(SIMT.kernel(bm=16, bn=64, bk=8, tm=2, tn=4)), find_device("mi250x"))
    assert wide.waves == wide.blocks * 2  # 128 threads are two waves of 64


def test_a_threshold_relaxes_until_enough_pass() -> None:
    assert relaxed(np.linspace(0.96, 1.0, 40)) == 0.95
    assert relaxed(np.array([0.9] * 9 + [0.72] + [0.1] * 30)) == pytest.approx(0.7)
    assert relaxed(np.array([1.0, 0.52])) == pytest.approx(0.5)  # all there are
    assert relaxed(np.array([1.0] + [0.001] * 39)) == 0.0


def test_small_traffic_keeps_short_tiles_and_large_traffic_tall_ones() -> None:
    small = {candidate.kernel["bm"] for candidate in selected(FP32, SIMT, H200, "m=1..4").candidates}
    assert 8 in small and max(small) <= 64
    large = selected(FP32, SIMT, H200, "m=4096")
    assert max(candidate.kernel["bm"] for candidate in large.candidates) >= 128


def test_tiles_that_leave_most_of_the_device_idle_are_refused_for_fill() -> None:
    funnel = selected(FP16, WGMMA, H200, "m=128..256:64")
    assert funnel.refused["fill"] > 0
    assert all(r.requested > r.allowed for r in funnel.examples)
    assert max(c.kernel["bm"] * c.kernel["bn"] for c in funnel.candidates) < 256 * 128


def test_the_frontier_keeps_the_best_of_every_tile_first() -> None:
    whole = selected(FP16, MMA, A100)
    cut = selected(FP16, MMA, A100, most=20)
    tiles = [(c.kernel["bm"], c.kernel["bn"]) for c in cut.candidates]
    assert len(set(tiles)) == len(tiles) == 20
    best = {tile: max(c.score for c in whole.candidates if (c.kernel["bm"], c.kernel["bn"]) == tile) for tile in tiles}
    assert all(c.score == best[c.kernel["bm"], c.kernel["bn"]] for c in cut.candidates)


def test_the_expectation_ranks_as_hardware_is_known_to() -> None:
    """On Hopper wgmma beats mma.sync for large products; more stages hide latency."""
    large = traffic("m=4096")
    op = Op.parse("dense:n=4096,k=4096,dtype=fp16")
    hopper = expected(op, WGMMA, H200, large)([WGMMA.kernel(bm=128, bn=256, wr=1, st=4)])
    ampere = expected(op, MMA, H200, large)(list(MMA.points(op, H200)))
    assert 0.63 < hopper[0] <= 1.0 and ampere.max() <= 0.63
    short = traffic("m=16")
    two, five = expected(FP16, MMA, H200, short)([MMA.kernel(bm=16, bn=64, bk=64, wm=1, wn=4, st=st) for st in (2, 5)])
    assert five > two


def test_families_on_cuda_cores_suit_every_gpu_and_others_are_bound_to_instructions() -> None:
    anywhere = [family.name for family in DENSE_FAMILIES if all(family.suits(device) for device in GPUS)]
    of_floats = ["cuda_simt_fp32", "cuda_gemv_fp16", "cuda_gemv_bf16", "cuda_gemv_fp32"]
    assert anywhere == [*of_floats, "cuda_simt_int8", "cuda_simt_sint8"]
    core = Device(id="a-core", kind="cpu", name="c", arch="x86-64", compute_units=1, wave_width=16, registers_per_thread=32)
    assert not any(family.suits(core) for family in DENSE_FAMILIES)


def check_counts(funnel: Funnel) -> None:
    later = sum(funnel.refused.get(name, 0) for name in ("fill", "padding", "frontier"))
    assert funnel.points == funnel.legal + sum(funnel.refused.get(law, 0) for law in LAWS)
    assert funnel.legal == len(funnel.candidates) + later
    assert set(funnel.refused) <= {*LAWS, "fill", "padding", "frontier"}
    assert 0 < len(funnel.candidates) <= SIMT.frontier
    assert len({candidate.kernel for candidate in funnel.candidates}) == len(funnel.candidates)
    assert len(funnel.examples) == min(EXAMPLES, sum(funnel.refused.values()))
    assert all(example.requested > example.allowed for example in funnel.examples)


def refused_of(family: CudaDense, kernel: MicroKernel, op: Op, device: Device, rows: int) -> list[Refused]:
    return list(refusals(question(family, kernel, op, device, {"m": rows}), laws_of(family, op, device)))


def expected(op: Op, family: CudaDense, device: Device, target_traffic: Traffic) -> Expectation:
    return over_traffic(op, family, device, target_traffic)
