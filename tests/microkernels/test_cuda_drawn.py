"""Forty micro-kernels of each CUDA family by seed, weights stored either way, every width of load, on ragged shapes."""

from __future__ import annotations

import pytest

from haotuner.backends.cuda.translation_unit import device_unit
from haotuner.microkernels.cuda.dense import CudaDense
from haotuner.microkernels.cuda.families import CUDA_FAMILIES
from haotuner.microkernels.cuda.fused import stepped
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from tests.emulator import build, run
from tests.microkernels.cuda_examples import device
from tests.microkernels.cuda_seeds import drawn, ragged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing()),
]
COUNT = 40  # kernels of a family, in one library: a library of its own costs a second of a core, a kernel in it a twentieth
SECONDS = 900
OF_PRODUCTS = [family for family in CUDA_FAMILIES if not family.windows and family.signs != "su"]  # others want images
SPECS = ("n=2304,k=768", "n=2304,k=768,weight=kn", "n=2306,k=770", "n=2305,k=767")


def forty(family: CudaDense) -> list[MicroKernel]:
    """As many of each spec that the family serves, every second one built for steps."""
    kind = "grouped:g=8," if family.grouped else "batch_matmul:layout=nt," if family.batched else "dense:"
    signs = ",in=int8" if family.signs == "ss" else ""
    texts = [f"{kind}{spec},dtype={family.dtype}{signs}" for spec in SPECS]
    if family.batched:
        texts = [
            text.replace("layout=nt,", "").replace("weight=kn", "layout=nn") if "kn" in text else text for text in texts
        ]
    ops = [Op.parse(text) for text in texts]
    arch = device(f"sm_{family.oldest_sm}" if family.oldest_sm in (75, 80) else "sm_90a")
    draws = [drawn(family, op, arch, COUNT, seed) for seed, op in enumerate(ops) if family.serves(op)]
    kernels: dict[str, MicroKernel] = {}
    for turn in zip(*filter(None, draws), strict=False):  # one of each spec in turn
        kernels |= {kernel.name: kernel for kernel in turn}
    return [stepped(kernel) if index % 2 else kernel for index, kernel in enumerate(list(kernels.values())[:COUNT])]


@pytest.mark.parametrize("family", OF_PRODUCTS, ids=lambda family: family.name)
def test_forty_kernels_of_a_family_are_right(family, tmp_path):
    kernels = forty(family)
    assert len(kernels) >= COUNT // 2, "too few to speak of"
    programs = {kernel.name: (family, kernel) for kernel in kernels}
    library = build.build_kernels(device_unit(programs, reduces=(family.dtype,)), tmp_path / "kernels.so")
    cases = [ragged(family, kernel) for kernel in kernels]
    verdicts = run.run(run.Job(machine=str(build.machine()), library=str(library), cases=cases), tmp_path, SECONDS)
    assert verdicts.keys() == programs.keys()
    assert {name: verdict for name, verdict in verdicts.items() if not verdict.right} == {}
