"""Shared memory of the main loops, traced in the emulator: every warp's load and store takes as few passes as it could."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.emulator import build, run
from tests.microkernels.cuda_examples import FAMILIES, VARIANTS, case_of, device, unit_text
from tests.microkernels.cuda_seeds import drawn

pytestmark = pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())
WITH_LOOPS = (
    "simt",
    "mma",
    "mma8",
)  # others' main loops touch no shared memory themselves: wgmma and TMA have a swizzle, gemv none
SECONDS = 600


def traced(
    kernels: Sequence[MicroKernel], folder: Path, change: Callable[[str], str] = lambda text: text
) -> Mapping[str, run.Verdict]:
    """Passes of one step of k over those that are needed: a whole tile, two steps more against two steps less."""
    programs = {kernel.name: (FAMILIES[kernel.family], kernel) for kernel in kernels}
    dtypes = sorted({family.dtype for family, _ in programs.values()})
    text = change(unit_text(programs, dtypes))
    library = build.build_kernels(text, folder / "kernels.so", traced=True)
    cases = []
    for name, (family, kernel) in programs.items():
        tile, ring = family.tile(kernel), dict(kernel.params).get("st", 2)
        calls = [
            run.Call(m=tile.extent["m"], n=tile.extent["n"], k=tile.step["k"] * steps) for steps in (ring + 1, ring + 3)
        ]
        cases.append(replace(case_of(name, family, kernel, calls), modes=("early",)))
    return run.run(run.Job(machine=str(build.machine()), library=str(library), cases=cases, traced=True), folder, SECONDS)


def conflicts(verdicts: Mapping[str, run.Verdict]) -> dict[str, run.Verdict]:
    """Those that take more passes than they need, or of whose loop nothing was seen."""
    return {
        name: verdict for name, verdict in verdicts.items() if verdict.died or verdict.conflicts or verdict.passes != 1.0
    }


@pytest.mark.parametrize("name", WITH_LOOPS)
def test_three_variants_of_a_family_and_more_meet_no_bank_twice(name, tmp_path):
    assert conflicts(traced([variant.kernel for variant in VARIANTS[name]], tmp_path)) == {}


def test_a_tile_that_is_not_shifted_is_seen(tmp_path):
    """Stores across without the shift of each chunk's rows meet two lanes to a bank, and it shows."""
    kernel = VARIANTS["simt"][0].kernel
    (verdict,) = traced([kernel], tmp_path, lambda text: text.replace(" ^ ", " + 0 * ")).values()
    assert not verdict.died and verdict.passes > 1.05, verdict


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("family, spec", [
    ("cuda_simt_fp32", "dense:n=2304,k=768"), ("cuda_simt_fp32", "dense:n=2304,k=770"),
    ("cuda_simt_fp32", "dense:n=2304,k=767"), ("cuda_simt_fp32", "dense:n=2304,k=768,weight=kn"),
    ("cuda_mma_fp16", "dense:n=2304,k=768,dtype=fp16"), ("cuda_mma_bf16", "dense:n=2304,k=767,dtype=bf16"),
    ("cuda_mma_fp16", "dense:n=2304,k=768,dtype=fp16,weight=kn"), ("cuda_mma8_fp16", "dense:n=2304,k=768,dtype=fp16"),
    ("cuda_mma8_fp16", "dense:n=2304,k=768,dtype=fp16,weight=kn"),
])  # fmt: skip
def test_forty_of_a_family_by_seed(family, spec, tmp_path):
    assert conflicts(traced(drawn(FAMILIES[family], Op.parse(spec), device("sm_90a"), 40), tmp_path)) == {}
