"""The bundle's run, whole, against the emulated GPU: every stage, every fault, every machine that cannot do it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from haotuner.records.codec import decode
from haotuner.records.jsonl import import_jsonl
from haotuner.records.memory import MemoryStore
from haotuner.words.record import Failed, Record, Timed
from tests.doors import bundle_emulated as emulated
from tests.doors.command import haotuner
from tests.emulator import build

pytestmark = [
    pytest.mark.skipif(bool(build.toolchain_missing()), reason=build.toolchain_missing()),
    pytest.mark.timeout(600),  # the first test's fixtures compile a bundle and run it: 30 to 60 s
]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory):
    """Sound kernels and one of each kind of broken one."""
    root = tmp_path_factory.mktemp("gpu") / "gpu_bundle"
    return emulated.make(root, *emulated.SOUND, *emulated.BROKEN, compiler=emulated.Emulated(broken=emulated.BROKEN))


@pytest.fixture(scope="module")
def finished(bundle, tmp_path_factory):
    """A run to the end, started in a folder that has a haotuner of its own, as a checkout has."""
    out = tmp_path_factory.mktemp("run") / "results"
    (out.parent / "haotuner.py").write_text("raise SystemExit('not the bundle')")
    return out, emulated.run(bundle, out)


def records(out: Path) -> list[Record]:
    return [decode(json.loads(line)) for line in (out / "records.jsonl").read_text().splitlines()]


def journal(out: Path) -> list[Any]:
    return [json.loads(line) for line in (out / "journal.jsonl").read_text().splitlines()]


def test_a_run_ends_with_every_stage_done(finished):
    out, done = finished
    assert done.returncode == 0, done.stderr
    for stage in ("check", "peaks", "peers", "time", "subsets", "sanitize"):
        assert f"{stage}: done" in done.stdout
    assert sorted(path.name for path in out.iterdir()) == ["inventory.json", "journal.jsonl", "records.jsonl", "report.md"]


def test_sound_kernels_are_right_and_timed_on_every_shape_of_their_dtype(finished):
    out, _ = finished
    timed = {
        (r.trial.kernel, r.trial.op, r.trial.shape["m"], r.trial.weights)
        for r in records(out)
        if isinstance(r.outcome, Timed)
    }
    for kernel in emulated.SOUND[:2]:
        for m in (1, 24):
            for weights in ("cold", "hot"):
                assert (kernel, "dense_n40_k16", m, weights) in timed
    assert (emulated.SOUND[3], "dense_n40_k16_bf16", 9, "cold") in timed
    assert not timed & {(kernel, *rest) for kernel in emulated.BROKEN for _, *rest in timed}


def test_each_broken_kernel_is_recorded_by_its_fault_and_the_run_goes_on(finished):
    out, _ = finished
    reasons: dict[str, set[str]] = {}
    for record in records(out):
        if isinstance(record.outcome, Failed) and record.outcome.stage == "verify":
            reasons.setdefault(record.trial.kernel, set()).add(record.outcome.reason)
    wrong, crash, hang, stray = emulated.BROKEN
    assert reasons == {
        wrong: {"wrong"},
        crash: {"crash"},
        hang: {"timeout"},
        stray: {"out_of_bounds", "wrong"} & reasons[stray],
    }
    assert "out_of_bounds" in reasons[stray]


def test_a_subset_runs_on_fewer_multiprocessors_and_is_a_device_of_its_own(finished):
    out, _ = finished
    subsets = [record for record in records(out) if record.facts["stage"] == "subset"]
    assert subsets and all(record.device_id == "emulated-gpu-2units" for record in subsets)
    assert all(record.facts["units_seen"] == 2 for record in subsets)


def test_a_driver_without_subsets_is_said_so_and_no_kernel_is_blamed(bundle, tmp_path):
    out = tmp_path / "results"
    wanted = ("--stages", "peaks,time,subsets", "--only", emulated.SOUND[3])
    done = emulated.run(bundle, out, *wanted, EMULATOR_SUBSETS="none")
    assert done.returncode == 0, done.stderr
    (refused,) = (line for line in journal(out) if "failed" in line.get("answer", {}))
    assert refused["task"]["kernel"] == "subset"
    assert "cudaErrorNotSupported" in refused["answer"]["failed"]["detail"]
    assert {record.facts["stage"] for record in records(out)} == {"time"}


SANITIZER = """#!/bin/sh
tool=$1; shift 3
"$@" || exit 8
case $tool in
*racecheck) echo "========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)" ;;
*memcheck)
    echo "========= Invalid __global__ read"; echo "=========     at line 1"
    echo "========= ERROR SUMMARY: 2 errors"; exit 9 ;;
*synccheck) echo "========= Device not supported" ;;
*) echo "========= ERROR SUMMARY: 0 errors" ;;
esac
"""


def test_a_sanitizer_that_is_there_runs_each_tool_once_and_its_findings_are_reported(bundle, tmp_path):
    """A stand-in runs the worker as the real tool does, and says what each tool would."""
    tool = tmp_path / "bin" / "compute-sanitizer"
    tool.parent.mkdir()
    tool.write_text(SANITIZER)
    tool.chmod(0o755)
    out, path = tmp_path / "results", f"{tool.parent}:{os.environ['PATH']}"
    wanted = ("--stages", "sanitize", "--only", emulated.SOUND[0])
    done = emulated.run(bundle, out, *wanted, PATH=path)
    assert done.returncode == 0, done.stderr
    found = {line["tool"]: line["errors"] for line in journal(out) if "tool" in line}
    assert found == {"memcheck": 2, "racecheck": 0, "initcheck": 0, "synccheck": None}
    report = (out / "report.md").read_text()
    assert "| memcheck | 2 |" in report and "| synccheck | unfinished |" in report
    again = emulated.run(bundle, out, *wanted, PATH=path)
    assert again.returncode == 0
    assert sum("tool" in line for line in journal(out)) == 4


def test_another_gpu_is_shown_to_the_workers_alone(bundle, tmp_path):
    """The second GPU of a list becomes device 0 of every process that is started."""
    out = tmp_path / "results"
    done = emulated.run(bundle, out, "--stages", "peaks", "--device", "1", CUDA_VISIBLE_DEVICES="3,GPU-abc")
    assert done.returncode == 0, done.stderr
    (seen,) = {line["visible"] for line in journal(out) if "slice" in line}
    assert seen == "GPU-abc"


def test_the_records_go_into_a_store(finished, cache, tmp_path):
    out, _ = finished
    words = ("records", "import", "--format", "jsonl", str(out / "records.jsonl"), "--db", "sqlite:///r.db")
    answer = haotuner(*words, cache=cache, cwd=tmp_path)
    assert answer.code == 0, answer.err
    assert str(len(records(out))) in answer.out + answer.err
    imported = import_jsonl(out / "records.jsonl", MemoryStore())
    assert imported.new == len(records(out)) > 20
    assert not imported.refused and not imported.torn


def test_the_report_names_what_was_wrong_and_claims_no_ratio_without_a_vendor_library(finished):
    out, _ = finished
    report = (out / "report.md").read_text()
    assert "torch is not here" in report
    assert "| cuda_simt_fp32 | 6 | 2 |" in report
    assert all(kernel in report for kernel in emulated.BROKEN)
    assert "geometric mean" not in report


def test_a_finished_run_has_nothing_left_to_do(finished, bundle):
    out, _ = finished
    before = (out / "records.jsonl").read_bytes()
    again = emulated.run(bundle, out)
    assert again.returncode == 0
    assert (out / "records.jsonl").read_bytes() == before


def test_a_killed_run_resumes_and_measures_nothing_twice(bundle, tmp_path):
    out = tmp_path / "results"
    wanted = ("--stages", "check,time", "--only", emulated.SOUND[0])
    command = [sys.executable, str(bundle / "gpu_run.py"), "--out", str(out), *wanted]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, env=emulated.environment())
    limit = time.monotonic() + 300
    while not (out / "journal.jsonl").exists() or (out / "journal.jsonl").read_text().count('"task"') < 2:
        assert process.poll() is None and time.monotonic() < limit, "the run ended before it could be killed"
        time.sleep(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    answered = sum("task" in line for line in journal(out))
    with (out / "journal.jsonl").open("a") as file:
        file.write('{"fingerprint": "torn')  # as a kill in the middle of a write leaves it
    done = emulated.run(bundle, out, *wanted)
    assert done.returncode == 0, done.stderr
    keys = [json.dumps(line["task"], sort_keys=True) for line in journal(out) if "task" in line]
    assert len(keys) == len(set(keys)) > answered


def test_a_kernel_that_was_mended_is_asked_again_and_the_others_are_not(bundle, tmp_path):
    """Its code's hash is part of every task; results of the others stay."""
    root, out = tmp_path / "bundle", tmp_path / "results"
    shutil.copytree(bundle, root)
    wanted = ("--stages", "check", "--only", "cuda_simt_fp32__bm32_bn64_bk8_tm4_tn4_v")  # two sound kernels
    assert emulated.run(root, out, *wanted).returncode == 0
    before = [line["task"]["kernel"] for line in journal(out) if "task" in line]
    manifest = json.loads((root / "manifest.json").read_text())
    for entry in manifest["kernels"]["sm_90a"]:
        if entry["kernel"] == emulated.SOUND[0]:
            entry["code"] = "mended"
    (root / "manifest.json").write_text(json.dumps(manifest))
    assert emulated.run(root, out, *wanted).returncode == 0
    after = [line["task"]["kernel"] for line in journal(out) if "task" in line]
    assert set(before) == set(emulated.SOUND[:2])
    assert after[len(before) :] == [kernel for kernel in before if kernel == emulated.SOUND[0]]


def test_a_slice_that_is_over_says_there_is_more_to_do(bundle, tmp_path):
    done = emulated.run(bundle, tmp_path / "results", "--slice-seconds", "0", "--stages", "check")
    assert done.returncode == 3
    assert "more to do" in done.stdout


@pytest.mark.parametrize(
    ("machine", "said"),
    [
        ({"EMULATOR_DRIVER": "none"}, "no CUDA driver or no device"),
        ({"EMULATOR_DRIVER": "12040"}, "the driver speaks CUDA 12.4, the bundle was built with 13.0"),
        ({"EMULATOR_ARCH": "75"}, "compute capability 7.5, the bundle holds code for sm_90a"),
    ],
)
def test_a_machine_that_cannot_run_it_is_recorded_and_exits_4(bundle, tmp_path, machine, said):
    out = tmp_path / "results"
    done = emulated.run(bundle, out, **machine)
    assert done.returncode == 4
    assert said in done.stderr and "Warning" not in done.stderr
    assert said in json.dumps(journal(out))
    assert (out / "inventory.json").exists()


def test_too_little_memory_is_recorded_and_the_rest_goes_on(bundle, tmp_path):
    out = tmp_path / "results"
    done = emulated.run(bundle, out, "--stages", "check", "--only", emulated.SOUND[0], EMULATOR_MEMORY_BYTES="50000")
    assert done.returncode == 0, done.stderr
    outcomes = [record.outcome for record in records(out)]
    assert {(o.stage, o.reason) for o in outcomes if isinstance(o, Failed)} == {("load", "memory")}
    checked = [line for line in journal(out) if "check" in line.get("answer", {})]
    assert checked, "small shapes still fit"


def test_a_damaged_bundle_does_not_run(bundle, tmp_path):
    suite = bundle / "suites.json"
    sound = suite.read_bytes()
    try:
        suite.write_bytes(sound + b" ")
        done = emulated.run(bundle, tmp_path / "results")
    finally:
        suite.write_bytes(sound)
    assert done.returncode == 5
    assert "suites.json is changed" in done.stderr
