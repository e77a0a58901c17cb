"""`haotuner doctor`: what it finds, what it says to do, and its exit code."""

import json
import re
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from haotuner.backends.cpu import compile
from haotuner.cli.doctor import PEERS, PINNED, TUNING, Check, checkup, doctor
from haotuner.cli.inspect import _head
from haotuner.errors import EnvironmentMissing
from tests.hw_profiles.hw_gpus import LOST, Board, FakeNvml
from tests.hw_profiles.hw_machines import CORE_2, EPYC, machine

ROOT = Path(__file__).parents[2]


def everything(name: str) -> str | None:
    return PINNED.get(name, "1.0")


def check_of(tmp_path, *, host=None, version=everything, cache=None, folder=None) -> dict[str, Check]:
    """Checks of a made-up machine, by name."""
    checks = checkup(
        host=host or machine(tmp_path / "machine"),
        cache_dir=cache or tmp_path / "cache",
        folder=folder or tmp_path,
        version=version,
    )
    return {check.name: check for check in checks}


@pytest.fixture
def no_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))


@pytest.mark.usefixtures("no_compiler")
def test_without_a_compiler_tuning_cannot_work_and_the_remedy_is_named(tmp_path):
    checks = check_of(tmp_path)
    assert checks["C compiler"].status == "missing"
    assert "apt-get install gcc" in checks["C compiler"].remedy
    assert (checks["peak"].status, "no C compiler" in checks["peak"].detail) == ("warning", True)
    assert checks["nvcc"].status == "absent"


@pytest.mark.usefixtures("no_compiler")
def test_a_machine_is_described(tmp_path):
    checks = check_of(tmp_path, host=machine(tmp_path / "machine", cpus=8, threads_per_core=2))
    assert checks["platform"].detail == "Linux x86_64, AMD EPYC"
    assert checks["instruction sets"].detail == "avx512 (x86-64-v4), avx2 (x86-64-v3), sse (x86-64-v2)"
    assert checks["cores"].detail == "4 of 8 logical CPUs"
    assert checks["caches"].detail == "L1d 48 KiB, L2 1024 KiB, L3 32768 KiB"
    assert checks["memory"].detail == "23.5 GiB"


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("text", "status", "expected"),
    [
        ("always [madvise] never", "ok", "madvise"),
        ("[always] madvise never", "ok", "always"),
        ("always madvise [never]", "warning", "never"),
        (None, "absent", "not offered"),
        ("", "absent", "not offered"),
    ],
)
def test_huge_pages_that_are_switched_off_are_a_warning(tmp_path, text, status, expected):
    host = machine(tmp_path / "machine")
    if text is not None:
        path = host.sysfs / "kernel/mm/transparent_hugepage/enabled"
        path.parent.mkdir(parents=True)
        path.write_text(text + "\n")
    check = check_of(tmp_path, host=host)["huge pages"]
    assert check.status == status
    assert check.detail.startswith(expected)
    assert ("echo madvise" in check.remedy) == (status == "warning")


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("package", "version"),
    [("apache-tvm-ffi", "0.1.15.post2"), ("apache-tvm-ffi", None), ("apache-tvm", "0.26.0"), ("lightgbm", None)],
)
def test_a_missing_or_wrong_package_is_named_with_the_command_that_helps(tmp_path, package, version):
    checks = check_of(tmp_path, version=lambda name: version if name == package else everything(name))
    assert checks[package].status == "missing"
    assert "pip install '.[tune]'" in checks[package].remedy
    if version:
        assert f"{version}, not the pinned {PINNED[package]}" in checks[package].detail
    assert all(checks[name].status == "ok" for name in (*PINNED, *TUNING) if name != package)


@pytest.mark.usefixtures("no_compiler")
def test_peers_are_optional(tmp_path):
    checks = check_of(tmp_path, version=lambda name: None if name in PEERS else everything(name))
    assert {checks[name].status for name in PEERS} == {"absent"}
    assert ".[bench]" in checks["torch"].remedy


@pytest.mark.usefixtures("no_compiler")
@pytest.mark.parametrize(
    ("settings", "words"),
    [({"architecture": "aarch64"}, "Linux aarch64"), ({"cpuinfo": CORE_2}, "sse4_2"), ({"system": "Darwin"}, "Darwin")],
)
def test_another_platform_gets_a_clear_line_and_the_rest_is_still_checked(tmp_path, settings, words):
    checks = check_of(tmp_path, host=machine(tmp_path / "machine", **settings))
    assert checks["platform"].status == "missing"
    assert words in checks["platform"].remedy
    assert checks["apache-tvm"].status == "ok"


@pytest.mark.usefixtures("no_compiler")
def test_a_cache_that_cannot_be_written_and_a_folder_that_is_not_there_are_warnings(tmp_path):
    (tmp_path / "in the way").write_text("")
    checks = check_of(tmp_path, cache=tmp_path / "in the way", folder=tmp_path / "nowhere")
    assert (checks["cache"].status, "XDG_CACHE_HOME" in checks["cache"].remedy) == ("warning", True)
    assert (checks["disk"].status, "--out" in checks["disk"].remedy) == ("warning", True)


@pytest.mark.usefixtures("no_compiler")
def test_no_gpu_is_no_problem(tmp_path):
    checks = check_of(tmp_path, host=replace(machine(tmp_path / "machine"), nvml=FakeNvml(nvmlInit=12)))
    assert (checks["NVML"].status, checks["CUDA driver"].status) == ("absent", "absent")
    assert "cuda:0" not in checks


@pytest.mark.usefixtures("no_compiler")
def test_gpus_are_named_and_a_lost_one_is_a_warning(tmp_path):
    nvml = FakeNvml(Board(), Board(fails={"nvmlDeviceGetName": LOST}))
    checks = check_of(tmp_path, host=replace(machine(tmp_path / "machine"), nvml=nvml))
    assert checks["NVML"].detail == "driver 580.82.07, CUDA up to 13.0"
    assert checks["cuda:0"].detail == "NVIDIA H200 (h200, sm_90a, 132 SMs)"
    assert (checks["cuda:1"].status, "dmesg" in checks["cuda:1"].remedy) == ("warning", True)


@pytest.mark.parametrize(
    ("output", "status", "words"),
    [
        (
            "Cuda compilation tools, release 13.0, V13.0.48",
            "ok",
            "CUDA 13.0, builds for sm_75 (sm_60 and sm_70 need the nvcc",
        ),
        ("Cuda compilation tools, release 12.4, V12.4.1", "ok", "CUDA 12.4, builds for sm_60 and later"),
        ("who knows", "warning", "does not tell its version"),
    ],
)
def test_nvcc_says_which_gpus_can_be_built_for(tmp_path, monkeypatch, output, status, words):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "nvcc").write_text(f"#!/bin/sh\necho '{output}'\n")
    (tmp_path / "nvcc").chmod(0o755)
    check = check_of(tmp_path)["nvcc"]
    assert (check.status, words in check.detail) == (status, True)


def test_a_compiler_that_does_not_know_what_the_cpu_has_is_named(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    old = 'case "$*" in *-mavx512bf16*) exit 1;; esac; echo old 9.1'
    (tmp_path / "cc").write_text(f"#!/bin/sh\n{old}\n")
    (tmp_path / "cc").chmod(0o755)
    assert check_of(tmp_path)["C compiler"].status == "ok"
    newer = EPYC.replace(" avx512f ", " avx512f avx512_bf16 avx512_vnni ")
    assert newer != EPYC
    check = check_of(tmp_path, host=machine(tmp_path / "newer", cpuinfo=newer))["C compiler"]
    assert check.status == "warning" and "does not know avx512bf16, which" in check.detail and "gcc 11" in check.remedy


def test_a_pack_notes_what_its_compiler_did_not_know(tmp_path, monkeypatch):
    (tmp_path / "cc").write_text('#!/bin/sh\ncase "$*" in *-mavx512bf16*) exit 1;; esac\n')
    (tmp_path / "cc").chmod(0o755)
    newer = EPYC.replace(" avx512f ", " avx512f avx512_bf16 avx512_vnni ")
    monkeypatch.setattr(compile, "_CPUINFO", machine(tmp_path / "newer", cpuinfo=newer).proc / "cpuinfo")
    assert compile.left_out_here([str(tmp_path / "cc")]) == {"not compiled": "avx512bf16"}
    (tmp_path / "cc").write_text("#!/bin/sh\n")
    assert compile.left_out_here([str(tmp_path / "cc")]) == {}
    document = {"device": {}, "toolchain": {"compiler": "cc 9", "not compiled": "amx"}, "haotuner": "0"}
    tuning = {"shapes": "m=1", "weights": "hot", "seconds": 1, "stopped": "budget"}
    facts: dict[str, Any] = {
        "driver": None,
        "models": {},
        "ops": (),
        "arch": "x",
        "device_id": "d",
        "library": "l",
        "sha256": "s",
    }
    pack: Any = SimpleNamespace(document=document, tuning=tuning, unverified=False, **facts)
    head = dict(_head("p", pack))
    assert head["built by"] == "haotuner 0, compiler cc 9"
    assert head["not compiled"] == "amx: the compiler did not know it, bf16 and int8 do without; tune with a newer one"


def test_a_compiler_that_does_not_run_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "cc").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "cc").chmod(0o755)
    assert check_of(tmp_path)["C compiler"].status == "missing"


def test_the_pinned_pair_is_that_of_pyproject():
    extra = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]["tune"]
    pinned = dict(re.findall(r"([a-z-]+)==(\S+)", "\n".join(extra)))
    assert pinned == PINNED
    names = {re.split(r"[<>=\[]", line)[0] for line in extra}
    assert set(TUNING) - {"numpy"} <= names


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    """One cache for the runs below: the first measures this host, the others read."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture
def run(cache, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    app = typer.Typer()
    app.command()(doctor)
    return lambda *arguments: CliRunner().invoke(app, list(arguments))


def test_json_is_one_document_and_the_exit_follows_it(run):
    result = run("--json")
    document = json.loads(result.stdout)
    assert document["ok"] == (not document["missing"])
    assert isinstance(result.exception, EnvironmentMissing) == (not document["ok"])
    assert document["missing"] == [check["name"] for check in document["checks"] if check["status"] == "missing"]
    assert {check["status"] for check in document["checks"]} <= {"ok", "missing", "warning", "absent"}
    assert all(check["remedy"] for check in document["checks"] if check["status"] in ("missing", "absent"))
    assert set(document["versions"]) == {"haotuner", *PINNED, *TUNING}
    assert set(document["peers"]) == set(PEERS)
    assert document["device"]["kind"] == "cpu"
    assert document["device"]["sources"]["compute_units"] == "queried"


def test_what_was_measured_is_in_the_device(run):
    document = json.loads(run("--json").stdout)
    measured = next(check for check in document["checks"] if check["name"] == "peak")
    if measured["status"] == "ok":
        assert document["device"]["peak_gflops"] > 0
        assert document["device"]["sources"]["memory_gbps"] == "measured"
    else:
        assert "peak_gflops" not in document["device"]


def test_the_table_ends_with_what_to_do_next(run):
    result = run("-v")
    if result.exception is None:
        assert "haotuner tune --shapes dynamic" in result.stdout
    assert "l1_bytes" in result.stdout
    assert "looking at this host" in result.stderr


def test_quiet_says_nothing_when_nothing_is_wrong(run):
    result = run("-q")
    assert result.stderr == ""
    assert " ok " not in result.stdout


def test_missing_things_end_with_exit_4_and_a_list(run, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    result = run()
    assert isinstance(result.exception, EnvironmentMissing)
    assert result.exception.exit_code == 4
    assert "C compiler: install one" in str(result.exception)
    assert "MISSING" in result.stdout


def test_looking_imports_neither_the_compiler_nor_the_model():
    heavy = {"tvm", "tvm_ffi", "lightgbm", "torch", "pandas"}
    code = f"import sys, haotuner.cli.doctor; print(sorted({heavy} & sys.modules.keys()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
