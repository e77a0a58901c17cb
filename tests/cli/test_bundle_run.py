"""The GPU bundle's run over the stand-in driver: killed, gone on from, to its end; cut short; and without a GPU."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import time
from contextlib import closing
from pathlib import Path

import pytest

from tests.bench.gpu_bundle.stages import STAGES
from tests.cli import bundle_emulated as emulated
from tests.racing.test_bench_processes import gone
from tests.standin import patience, toolchain_missing
from tests.standin.patience import WALL_S

pytestmark = [
    pytest.mark.skipif(bool(toolchain_missing()), reason=f"compiler: {toolchain_missing()}"),
]


def keys(db: Path) -> list[str]:
    if not db.exists():
        return []
    try:
        with closing(sqlite3.connect(f"file:{db}?mode=ro", uri=True)) as connection:
            return [row[0] for row in connection.execute("select trial_key from record")]
    except sqlite3.Error:
        return []  # just being made


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return emulated.make(tmp_path_factory.mktemp("bundle") / "gpu_bundle")


@pytest.fixture(scope="module")
def where(root: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return emulated.environment(root, tmp_path_factory.mktemp("images"))


def test_a_killed_run_is_gone_on_from_and_nothing_is_measured_twice(root, where, tmp_path):
    out = tmp_path / "results"
    db = out / "packs" / "tiny_fp16.records.db"
    first = subprocess.Popen(emulated.command(root, out), env=where, cwd=tmp_path, stderr=subprocess.DEVNULL)
    until = time.monotonic() + WALL_S
    while time.monotonic() < until and first.poll() is None and len(keys(db)) < 2:
        time.sleep(0.1)
    begun = patience._family(first.pid)
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert all(gone(pid) for pid in begun), "the tuner dies with it"
    before = keys(db)
    assert len(before) >= 2
    report = json.loads((out / "report.json").read_text())
    assert [key for key, task in report["tasks"].items() if task["status"] == "done"] == [
        "inventory/machine", "contract/driver", "correctness/kernels"
    ]  # fmt: skip
    assert len(report["contract"]) >= 40 and not any(check["failed"] for check in report["contract"])
    assert keys(db) == before, "nobody goes on measuring"

    second = emulated.run(root, out, where)
    assert second.returncode == 0, second.stderr
    assert "contract" not in second.stderr, "what is done is not done again"
    after = keys(db)
    assert set(before) <= set(after) and len(set(after)) == len(after)
    report = json.loads((out / "report.json").read_text())
    status = {key: task["status"] for key, task in report["tasks"].items()}
    assert {key.partition("/")[0] for key in status} == set(STAGES)
    assert status["tune/tiny_fp16"] == status["race/tiny_fp16"] == "done"
    assert status["subsets/tiny_fp16-48sm"] == "done"
    manifest = json.loads((out / "packs" / "tiny_fp16-48sm" / "manifest.json").read_text())
    assert (manifest["device"]["id"], manifest["device"]["compute_units"]) == ("stand-in-sm-80-48sm", 48)
    assert set(status.values()) == {"done", "skipped"}
    assert len(report["correctness"]) == 3 and not any("failed" in check for check in report["correctness"])
    rows = report["race"]["tiny_fp16"]["rows"]
    assert [row["shape"]["m"] for row in rows] == [1, 24] and all(row["ours_us"] and not row["failed"] for row in rows)
    text = (out / "report.md").read_text()
    assert "First run on stand-in sm_80" in text and "| tiny_fp16 |" in text and "behaviours are as the manual says" in text

    third = emulated.run(root, out, where)
    assert third.returncode == 0 and third.stderr == "", "everything is done"


def test_a_run_without_time_leaves_a_report_and_says_that_there_is_more(root, where, tmp_path):
    cut = emulated.run(root, tmp_path / "results", where, "--minutes", "0")
    assert cut.returncode == 3 and "run the same command again" in cut.stderr
    assert (tmp_path / "results" / "report.md").exists()


def test_without_a_gpu_the_run_says_so_and_leaves_the_inventory(root, where, tmp_path):
    without = {name: value for name, value in where.items() if not name.startswith("STANDIN_") and name != "LD_LIBRARY_PATH"}
    done = emulated.run(root, tmp_path / "results", without)
    assert done.returncode == 4 and "gpu_run: cuda:0" in done.stderr
    report = json.loads((tmp_path / "results" / "report.json").read_text())
    assert list(report["tasks"]) == ["inventory/machine"] and report["inventory"]["doctor"]


def test_stages_are_chosen_by_name(root, where, tmp_path):
    wrong = emulated.run(root, tmp_path / "results", where, "--stages", "race,sleep")
    assert wrong.returncode == 2 and "no stage sleep" in wrong.stderr and "contract" in wrong.stderr
