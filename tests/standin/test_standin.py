"""The stand-in's own properties: its clock, what is carried out, planned failures, devices, counters."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.standin import ROOT, environment, toolchain_missing
from tests.standin.apart import HUNG
from tests.standin.cubins import cubin_of
from tests.standin.patience import ran

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
SOURCE = Path(__file__).with_name("dense.cu")
SECONDS = 100  # of processors


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("standin")


def run(program: str, folder: Path, *, arch: str = "sm_80", also: dict[str, str] | None = None, **settings: Any) -> Any:
    cubin = cubin_of(SOURCE, folder, arch)
    where = environment(folder / "images", sources=folder, **settings)
    command = [sys.executable, "-m", "tests.standin.programs", program, cubin]
    done = ran(command, SECONDS, cwd=ROOT, env={**os.environ, **where, **(also or {})})
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def test_the_clock_has_a_surface_to_search(folder):
    times = run("times", folder, execute=False, noise=0.0, units=16)
    plain, wide, limited = "dense_bm16_bn16 0", "dense_bm64_bn32 1024", "dense_bm64_bn32 61440"
    for kernel in (plain, wide, limited):
        assert times[f"{kernel} m=16 k1"] < times[f"{kernel} m=4096 k1"]  # more rounds of blocks
    assert times[f"{plain} m=16 k1"] < times[f"{wide} m=16 k1"]  # a small tile fills the units
    assert times[f"{plain} m=4096 k1"] > times[f"{wide} m=4096 k1"]  # a large one loads less
    assert times[f"{limited} m=4096 k1"] > times[f"{wide} m=4096 k1"]  # shared memory keeps blocks away
    assert times[f"{wide} m=4096 k4"] > times[f"{wide} m=4096 k1"]  # a split costs where the grid was full
    again = run("times", folder, execute=False, noise=0.0, units=64)
    assert again[f"{wide} m=4096 k1"] < times[f"{wide} m=4096 k1"]  # more units


def test_a_weight_in_the_cache_is_read_faster(folder):
    times = run("caches", folder, device="sm_86", units=256, execute=False, noise=0.0)  # its cache has no room for two
    assert times["warm"] < times["cold"] == pytest.approx(times["other"]) == pytest.approx(times["again"])


def test_noise_is_of_the_seed(folder):
    first, same, other = (run("times", folder, execute=False, seed=seed) for seed in (3, 3, 4))
    exact = run("times", folder, execute=False, noise=0.0)
    assert first == same != other
    assert all(0.9 < first[key] / exact[key] < 1.6 for key in exact)


def test_on_demand_only_what_is_read_is_carried_out(folder):
    assert run("replays", folder, execute="demand") == {"before": 0, "after": 2}
    assert run("replays", folder)["before"] == 34 * 3 * 2
    assert run("unread", folder, execute="demand") == {"executed": 0}
    assert run("regions", folder, execute="demand") == {"before": 0, "after": 2}


@pytest.mark.parametrize("execute", ["always", "demand"])
def test_results_read_late_are_those_that_were_asked_for(execute, folder):
    assert run("chain", folder, execute=execute) == {"executed": 2}


def test_what_is_not_carried_out_stays_poisoned(folder):
    whole = {"numbers": 40 * 24, "executed": 1}
    nothing = {"numbers": 0, "executed": 0}
    assert run("result", folder) == run("result", folder, execute="demand") == run("result", folder, limit=1e6) == whole
    assert run("result", folder, execute=False) == run("result", folder, limit=1e3) == nothing


def test_any_call_can_be_told_to_fail(folder):
    right = run("planned", folder)
    assert right == {"alloc": [0] * 6, "launch": [0] * 4, "wait": 0}
    # The first two allocations are the operands' and the third Y's.
    assert run("planned", folder, fail="cuMemAlloc:5=2")["alloc"] == [0, 2, 0, 0, 0, 0]
    assert run("planned", folder, fail="cuMemAlloc:6+=2")["alloc"] == [0, 0, 2, 2, 2, 2]
    assert run("planned", folder, fail="cuLaunchKernel:2=719") == {"alloc": [0] * 6, "launch": [0, 719, 0, 0], "wait": 0}
    assert run("planned", folder, fail="cuLaunchKernel:2=async:700") == {"alloc": [0] * 6, "launch": [0] * 4, "wait": 700}
    lost = run("planned", folder, fail="cuLaunchKernel:3=lost")
    assert lost == {"alloc": [0] * 6, "launch": [0, 0, 999, 999], "wait": 999}


def test_a_kernel_that_hangs_is_waited_for_in_vain(folder):
    answers = run("hanging", folder, fail="cuLaunchKernel:1=hang")
    assert answers == [HUNG] * 2  # neither wait had an answer


def test_devices_are_what_the_table_says(folder):
    assert run("devices", folder) == {
        "init": 0, "names": ["stand-in sm_80"], "module": 0, "memory": 1 << 30, "too_much": 2, "units": 108,
    }  # fmt: skip
    two = run("devices", folder, device="sm_90a", more_devices=["sm_86"])
    assert two["names"] == ["stand-in sm_90a", "stand-in sm_86"] and two["module"] == 209
    assert run("devices", folder, device="sm_86")["module"] == 0  # a later device of the same major
    assert run("devices", folder, device="sm_75")["module"] == 209
    mig = run("devices", folder, device="sm_90a-mig")
    assert (mig["units"], mig["memory"], mig["too_much"]) == (16, 128 << 20, 2)
    chosen = run("devices", folder, device="sm_90a", more_devices=["sm_80"], also={"CUDA_VISIBLE_DEVICES": "1"})
    assert chosen["names"] == ["stand-in sm_80"] and chosen["module"] == 0


@pytest.mark.parametrize("arch, answers", [("sm_100a", (0, 209)), ("sm_100", (0, 0)), ("sm_90a", (209, 209))])
def test_code_for_one_capability_alone_runs_on_no_later_one(folder, arch, answers):
    assert tuple(run("devices", folder, arch=arch, device=device)["module"] for device in ("sm_100a", "sm_103a")) == answers


def test_a_driver_may_be_missing_or_old(folder):
    assert run("devices", folder, driver=0) == {"init": 100}
    assert run("devices", folder, also={"CUDA_VISIBLE_DEVICES": ""}) == {"init": 100}
    assert run("devices", folder, driver=12040)["module"] == 200  # a cubin of CUDA 13


@pytest.mark.parametrize("settings", [{"seed": 1}, {"mode": "early"}, {"execute": "demand"}], ids=str)
def test_threads_call_side_by_side(settings, folder):
    report = run("threads", folder, **settings)
    assert (report["errors"], report["held"], report["executed"]) == ([], 0, 8 * (5 * 1 + 10 * 2))


def test_calls_are_counted(folder):
    assert run("counts", folder) == {"cuLaunchKernel": 3, "cuMemAlloc": 0, "cuModuleLoadData": 0}


def test_a_bare_launch_does_nothing(folder):
    assert run("overhead", folder, bare=True)["counted"] == 0
    assert run("overhead", folder, execute=False)["counted"] == 5000


def test_a_cubin_without_its_source_says_so(folder, tmp_path):
    words = [sys.executable, "-m", "tests.standin.programs", "result", str(cubin_of(SOURCE, folder, "sm_80"))]
    where = {**os.environ, **environment(tmp_path / "images", sources=tmp_path)}
    ran = subprocess.run(words, cwd=ROOT, env=where, capture_output=True, text=True, check=False)
    assert "no unit.cubin below" in ran.stderr and "answered 300" in ran.stderr
