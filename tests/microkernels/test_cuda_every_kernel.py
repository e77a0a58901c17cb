"""Every kernel that a bundle carries, on ragged shapes in the emulator: what must be right on a GPU is right here."""

from __future__ import annotations

from functools import cache

import pytest

from haotuner.backends.cuda.translation_unit import device_unit
from tests.bench.gpu_bundle.candidates import Choice, choose, profile_of
from tests.emulator import build, run
from tests.microkernels.cuda_seeds import ragged

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing()),
]
RUN_SECONDS = 800  # forty kernels take 10 s on a machine that does nothing else
KERNELS = 200  # more than a bundle's run checks on a GPU
KERNELS_OF_A_LIBRARY = 40
UNITS = 8


@cache
def carried() -> list[Choice]:
    """The choices of both architectures, each kernel once: its numerics do not depend on the architecture."""
    choices = [choice for arch in ("sm_90a", "sm_80") for choice in choose(profile_of(arch), KERNELS)]
    return list({choice.kernel.name: choice for choice in choices}.values())


@pytest.mark.parametrize("number", range(UNITS))
def test_every_kernel_of_a_unit_is_right(number: int, tmp_path):
    unit = carried()[number::UNITS]
    assert 0 < len(unit) <= KERNELS_OF_A_LIBRARY, "as many units as it takes"
    programs = {choice.kernel.name: (choice.family, choice.kernel) for choice in unit}
    reduces = sorted({choice.family.dtype for choice in unit})
    library = build.build_kernels(device_unit(programs, reduces=reduces), tmp_path / "kernels.so")
    cases = [ragged(choice.family, choice.kernel) for choice in unit]
    verdicts = run.run(run.Job(machine=str(build.machine()), library=str(library), cases=cases), tmp_path, RUN_SECONDS)
    assert verdicts.keys() == programs.keys()
    assert {symbol: verdict for symbol, verdict in verdicts.items() if not verdict.right} == {}
