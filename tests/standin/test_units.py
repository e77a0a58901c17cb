"""Generated kernels as real cubins, launched through the driver: right ones are right, broken ones are noticed."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.emulator.run import Case
from tests.microkernels.cuda_examples import FAMILIES, VARIANTS, case_of, unit_text
from tests.microkernels.test_cuda_seeded_bugs import BUGS, EPILOGUE_BUGS, broken_unit
from tests.standin import ROOT, environment, toolchain_missing
from tests.standin.cubins import cubin_of
from tests.standin.patience import ran

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
ARCHS = {"simt": "sm_80", "mma": "sm_80", "wgmma": "sm_90a"}
EACH = 1  # variants of a way: nvcc takes 2 s a kernel; the emulator's tests look at all of them


def failures(source: str, cases: Sequence[Case], arch: str, folder: Path, seconds: float) -> dict[str, str]:
    """How each case failed on the stand-in, by its symbol; empty where it was right."""
    text = folder / "kernels.cu"
    text.write_text(source)
    cubin = cubin_of(text, folder, arch)
    (folder / "job.json").write_text(json.dumps({"cubin": str(cubin), "cases": [asdict(case) for case in cases]}))
    where = {**os.environ, **environment(folder / "images", device=arch, sources=folder)}
    done = ran([sys.executable, "-m", "tests.standin.units", folder / "job.json"], seconds, cwd=ROOT, env=where)
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return {report["symbol"]: report["failed"] for report in reports}


@pytest.mark.parametrize("way", ARCHS)
def test_generated_kernels_compute_through_the_driver(way, tmp_path):
    variants = VARIANTS[way][:EACH]
    programs = {variant.kernel.name: (FAMILIES[variant.kernel.family], variant.kernel) for variant in variants}
    source = unit_text(programs, sorted({family.dtype for family, _ in programs.values()}))
    messages = failures(source, [variant.case() for variant in variants], ARCHS[way], tmp_path, seconds=100)
    assert messages == dict.fromkeys(programs, "")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_broken_kernels_are_noticed_through_the_driver(tmp_path):
    bugs = {**BUGS, **EPILOGUE_BUGS}
    symbols = {bug: f"bug{number}" for number, bug in enumerate(bugs)}
    cases = [case_of(symbols[bug], FAMILIES[v.kernel.family], v.kernel, v.calls) for bug, (v, _) in bugs.items()]
    messages = failures(broken_unit(bugs, symbols), cases, "sm_90a", tmp_path, seconds=800)
    assert [bug for bug in bugs if not messages[symbols[bug]]] == []
