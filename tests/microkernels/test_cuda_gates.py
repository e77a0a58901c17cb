"""Gates of compiled kernels: spills, main loops and stores, read off the cubins; no GPU is needed."""

from __future__ import annotations

import shutil
from typing import Any

import pytest

from haotuner.backends.cuda.device_code import build_cubin
from haotuner.backends.cuda.sass import Code, Loop, find_nvdisasm
from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.fused import ANY_STEPS, coded, stepped
from haotuner.spec.kernel import MicroKernel
from tests.microkernels.cuda_examples import FAMILIES, GEMV, MMA, SHORT_WGMMA, SIMT, WGMMA, grouped
from tests.microkernels.cuda_gates import DEVICES, broken, checked, proposed, some_of_each_family

EACH = 3  # of each family and device, by seed; `python -m tests.bench.cuda_gates FOLDER` takes all
KERNELS = {
    "sm_90a": (
        WGMMA.kernel(bm=128, bn=256, st=4),
        WGMMA.kernel(bm=256, bn=128, st=4, wr=2),
        SHORT_WGMMA.kernel(bm=16, bn=128, st=6, wr=2),
        GEMV.kernel(bm=8, c=4, wn=4, wk=2, v=8),
    ),
    "sm_80": (
        MMA.kernel(bm=128, bn=128, bk=32, wm=2, wn=4, st=3),
        SIMT.kernel(bm=128, bn=128, bk=16, tm=8, tn=8),
    ),
}  # fmt: skip


@pytest.mark.parametrize("arch", KERNELS)
@pytest.mark.usefixtures("tools")
def test_the_largest_tiles_keep_to_the_gates(arch, tmp_path):
    assert checked(KERNELS[arch], arch, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.parametrize("arch", KERNELS)
@pytest.mark.usefixtures("tools")
def test_builds_for_steps_spill_nothing_and_store_whole_pieces(arch, tmp_path):
    builds = [stepped(kernel, steps) for kernel in KERNELS[arch] for steps in (ANY_STEPS, coded(("bias", "gelu")))]
    assert checked(builds, arch, tmp_path) == {}


# Of what selection proposes for groups and batches: a step of 64 instructions (see the law in dense_laws).
MORE = {**KERNELS, "sm_80": (MMA.kernel(bm=128, bn=128, bk=64, wm=2, wn=4, st=2), KERNELS["sm_80"][1])}
BATCHED = ("cuda_mma_fp16", "cuda_simt_fp32")


@pytest.mark.slow
@pytest.mark.parametrize("arch", KERNELS)
@pytest.mark.usefixtures("tools")
def test_finding_the_group_or_matrix_of_a_block_leaves_main_loops_as_they_are(arch, tmp_path):
    batched = [
        MicroKernel(kernel.family.replace("cuda_", "cuda_batched_"), kernel.params)
        for kernel in MORE[arch]
        if kernel.family in BATCHED
    ]
    assert checked([*(grouped(kernel) for kernel in MORE[arch]), *batched], arch, tmp_path) == {}


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.usefixtures("tools")
def test_what_selection_proposes_keeps_to_the_gates(device, tmp_path):
    assert checked(proposed(device, EACH), DEVICES[device], tmp_path) == {}


@pytest.fixture
def tools():
    if shutil.which("nvcc") is None:
        pytest.skip("nvcc: no CUDA toolkit")
    if find_nvdisasm() is None:
        pytest.skip("nvdisasm: not in the toolkit, and no wheel nvidia-cuda-nvdisasm")


@pytest.mark.slow
@pytest.mark.parametrize("arch", ["sm_75", "sm_80", "sm_89", "sm_90a"])
@pytest.mark.skipif(shutil.which("nvcc") is None, reason="nvcc: no CUDA toolkit")
def test_kernels_beside_a_product_s_spill_nothing(arch, tmp_path):
    """Columns of images, results gathered from them, and sums of shares."""
    of_batches = {"fp32": "cuda_batched_simt_fp32", "int8": "cuda_batched_simt_int8"}
    families: list[Any] = [family for family in CUDA_FAMILIES if family.name in of_batches.values()]
    small = {"bm": 32, "bn": 64, "bk": 32, "tm": 4, "tn": 4, "v": 1}
    programs = {kernel.name: (family, kernel) for family in families for kernel in [family.kernel(**small)]}
    resources = build_cubin(programs, tmp_path / "unit.cubin", arch=arch, reduces=tuple(of_batches)).resources
    beside = {name: facts["spill_bytes"] for name, facts in resources.items() if name not in programs}
    assert {f"haotuner_{what}_{dtype}" for what in ("unfold", "fold", "reduce") for dtype in of_batches} <= set(beside)
    assert not any(beside.values()), beside


def test_some_of_each_family_are_taken_whatever_its_share():
    many = [WGMMA.kernel(bm=128, bn=128, st=stages) for stages in (2, 3, 4, 5)]
    few = [GEMV.kernel(bm=8, c=4, wn=4, wk=2, v=8)]
    sample = some_of_each_family([*many, *few], 3)
    assert set(few) < set(sample) and len(set(sample)) == 4
    assert sample == some_of_each_family([*many, *few], 3), "by seed"


def code(*loop: str, after: tuple[str, ...] = ("STG.E.128 desc[UR4][R2.64], R4",)) -> Code:
    return Code((*loop, *after), (Loop(loop),))


HGMMA = "HGMMA.64x256x16.F32 R24, gdesc[UR4], R24"


@pytest.mark.parametrize(
    ("kernel", "sass", "words"),
    [
        (KERNELS["sm_90a"][0], code(HGMMA, "R2UR UR4, R10"), "1 R2UR"),
        (KERNELS["sm_90a"][0], code(HGMMA, *["UIADD3 UR4, UR4, 2, URZ"] * 13), "14.0 instructions per HGMMA"),
        (KERNELS["sm_90a"][0], code(HGMMA, "@!P0 LDL.64 R4, [R1]"), "1 LDL"),
        (KERNELS["sm_90a"][0], code(HGMMA, after=("@P0 STG.E desc[UR4][R2.64], R4",) * 3), "no 16-byte store"),
        (KERNELS["sm_90a"][0], code(HGMMA, after=("STG.E.128 [R2], R4", *["STG.E.U16 [R2], R4"] * 137)), "stores"),
        (KERNELS["sm_80"][0], code("HMMA.16816.F32 R4, R8, R12, R4", *["IMAD R1, R2, R3, R4"] * 3), "per HMMA"),
        (KERNELS["sm_80"][0], code("IMAD R1, R2, R3, R4"), "no HMMA"),
        (KERNELS["sm_80"][0], code("HMMA.16816.F32 R4, R8, R12, R4", "MUFU.RCP R1, R2"), "a division"),
        (KERNELS["sm_80"][1], code(*["FFMA R1, R2, R3, R4"] * 4, "IMAD R1, R2, R3, R4"), "per FFMA"),
    ],
)
def test_a_broken_gate_is_named(kernel, sass, words):
    assert any(words in why for why in broken(FAMILIES[kernel.family], kernel, "sm_80", sass))


@pytest.mark.parametrize(
    ("name", "multiplies", "narrow"),
    [
        ("cuda_windows_mma_int8__bm64_bn64_bk64_wm2_wn4_st3_v16_kn0", "IMMA", 3),
        ("cuda_batched_simt_int8__bm64_bn64_bk64_tm4_tn8_v16_kn0", "IDP", 3),
        ("cuda_images_simt_fp32__bm32_bn64_bk8_tm4_tn4_v4_kn1", "FFMA", 8),
        ("cuda_phases_mma_int8__bm64_bn64_bk64_wm2_wn4_st3_v16_kn0", "IMMA", 3),
        ("cuda_windows_wgmma_bf16__bm64_bn64_bk64_wr1_st4_v8_kn0", "HGMMA", 8 + 32),  # a row that begins anywhere
    ],
)
def test_kernels_of_windows_and_bytes_have_gates(name, multiplies, narrow):
    kernel = MicroKernel.parse(name)
    (family,) = (family for family in CUDA_FAMILIES if family.name == kernel.family)
    stores = ("STG.E.128 [R2], R4", *["STG.E [R2], R4"] * narrow)
    assert list(broken(family, kernel, "sm_80", code(f"{multiplies}.X R1, R2, R3, R4", after=stores))) == []
    assert list(broken(family, kernel, "sm_80", code("HMMA.16816.F32 R4, R8, R12, R4", after=stores)))[0] == (
        f"no {multiplies} in a loop"
    )
    many = code(f"{multiplies}.X R1, R2, R3, R4", after=(*stores, "STG.E [R2], R4"))
    assert any("stores" in why for why in broken(family, kernel, "sm_80", many))


def test_the_bound_of_resident_blocks_can_be_left_out():
    kernel = KERNELS["sm_80"][1]
    programs = {"dense": (SIMT, kernel)}
    assert "__launch_bounds__(256, 1) dense(" in device_unit(programs)
    assert "__launch_bounds__(256) dense(" in device_unit(programs, bounds=False)
