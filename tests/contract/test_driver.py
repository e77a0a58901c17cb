"""How the CUDA driver behaves, as the manual has it: on the stand-in, late and early, and first of all on a real one."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import has_gpu
from tests.contract.driver_process import BEHAVIOURS
from tests.standin import ROOT, environment, toolchain_missing
from tests.standin.client import Driver
from tests.standin.cubins import cubin_of
from tests.standin.patience import WALL_S

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
DRIVERS = ("late", "early", pytest.param("real", marks=pytest.mark.gpu))
SOURCE = Path(__file__).with_name("driver_kernels.cu")


@functools.cache
def _outcomes(driver: str, folder: Path) -> dict[str, str]:
    arch = _real_arch() if driver == "real" else "sm_80"
    other = "sm_90" if arch != "sm_90" else "sm_80"
    right, wrong = (cubin_of(SOURCE, folder, target, flags=()) for target in (arch, other))  # a real device runs it
    where = (
        {}
        if driver == "real"
        else environment(folder / driver, device="sm_80", sources=folder, mode="early" if driver == "early" else "late")
    )
    ran = subprocess.run(
        [sys.executable, "-m", "tests.contract.driver_process", driver, str(right), str(wrong)],
        cwd=ROOT, env={**os.environ, **where}, capture_output=True, text=True, timeout=WALL_S, check=False,
    )  # fmt: skip
    answers = [json.loads(line) for line in ran.stdout.splitlines() if line.startswith("{")]
    return {answer["name"]: answer["failed"] for answer in answers} | {"": ran.stderr[-2000:]}


def _real_arch() -> str:
    tool = shutil.which("nvidia-smi") or "nvidia-smi"
    query = subprocess.run(
        [tool, "--query-gpu=compute_cap", "--format=csv,noheader"], capture_output=True, text=True, check=True
    )
    return f"sm_{query.stdout.split()[0].replace('.', '')}"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("driver")


@pytest.mark.parametrize("driver", DRIVERS)
@pytest.mark.parametrize("behaviour", BEHAVIOURS)
def test_the_driver_behaves_as_its_manual_says(driver, behaviour, folder):
    outcomes = _outcomes(driver, folder)
    assert outcomes.get(behaviour, f"was not tried: {outcomes['']}") == ""


def test_every_behaviour_cites_the_manual():
    assert len(BEHAVIOURS) >= 40
    assert all((function.__doc__ or "").count(" ") >= 2 for function in BEHAVIOURS.values())


@pytest.mark.skipif(has_gpu(), reason="host: has a driver of its own")
def test_without_a_driver_there_is_no_library():
    with pytest.raises(OSError):
        Driver()
