"""The stand-in looks: each mistake that a host can make is noticed, and a host without any passes, late and early."""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path

import pytest

from tests.standin import ROOT, environment, toolchain_missing
from tests.standin.cubins import cubin_of
from tests.standin.host_bugs import BUGS
from tests.standin.patience import ran

pytestmark = pytest.mark.skipif(bool(toolchain_missing()), reason=toolchain_missing() or "nothing is missing")
SOURCE = Path(__file__).with_name("dense.cu")
SEEDS = 4
SECONDS = 110  # of processors
# Noticed late only: early, all is done in time.
ORDER = {"result_read_too_early", "pinned_source_reused", "weight_freed_while_queued", "module_unloaded_while_queued"}
UNORDERED = ("no_wait_between_streams", "workspace_of_two_streams")


@functools.cache
def _failures(mode: str, folder: Path) -> dict[str, list[str]]:
    cubin = cubin_of(SOURCE, folder, "sm_80")
    where = environment(folder / mode, device="sm_80", more_devices=["sm_80"], sources=folder, mode=mode)  # type: ignore[arg-type]
    seeds = str(SEEDS if mode == "late" else 1)
    command = [sys.executable, "-m", "tests.standin.host_bugs", cubin, seeds]
    done = ran(command, SECONDS, cwd=ROOT, env={**os.environ, **where})
    assert done.returncode == 0, done.stderr[-3000:]
    reports = [json.loads(line) for line in done.stdout.splitlines()]
    return {report["name"]: report["failed"] for report in reports}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("host")


@pytest.mark.parametrize("mode", ["late", "early"])
def test_a_host_without_mistakes_passes(mode, folder):
    assert _failures(mode, folder)["right"] == [""] * (SEEDS if mode == "late" else 1)


@pytest.mark.parametrize("bug", BUGS)
def test_a_mistake_of_the_host_is_noticed(bug, folder):
    assert any(_failures("late", folder)[bug]), "no seed noticed it"


@pytest.mark.parametrize("bug", UNORDERED)
@pytest.mark.parametrize("mode", ["late", "early"])
def test_a_missing_order_is_noticed_under_every_seed(mode, bug, folder):
    assert all("answered 719" in failed for failed in _failures(mode, folder)[bug])


@pytest.mark.parametrize("bug", [bug for bug in BUGS if bug not in ORDER])
def test_a_mistake_that_is_not_of_order_is_noticed_early(bug, folder):
    assert any(_failures("early", folder)[bug])
