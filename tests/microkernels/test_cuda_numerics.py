"""Generated CUDA against float64 numpy, executed by the emulator on ragged shapes with copies late and early."""

from __future__ import annotations

import pytest

from tests.emulator import build, run
from tests.microkernels.cuda_examples import FAMILIES, VARIANTS, unit_text

pytestmark = pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing())


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def verdicts(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    variants = VARIANTS[request.param]
    programs = {v.kernel.name: (FAMILIES[v.kernel.family], v.kernel) for v in variants}
    reduces = sorted({FAMILIES[v.kernel.family].dtype for v in variants})
    library = build.build_kernels(unit_text(programs, reduces), folder / "kernels.so")
    job = run.Job(machine=str(build.machine()), library=str(library), cases=[v.case() for v in variants])
    return request.param, run.run(job, folder)


def test_every_code_path_is_right_on_ragged_shapes(verdicts):
    name, by_symbol = verdicts
    assert {v.kernel.name for v in VARIANTS[name]} == by_symbol.keys()
    wrong = {symbol: verdict for symbol, verdict in by_symbol.items() if not verdict.right}
    assert wrong == {}


def test_ldmatrix_meets_no_bank_twice(verdicts):
    name, by_symbol = verdicts
    assert {symbol: v.conflicts for symbol, v in by_symbol.items() if v.conflicts} == {}, name
