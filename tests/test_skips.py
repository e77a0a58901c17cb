"""What a run says of the tests that it left out: a green run without torch must not pass for a full one."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests import tiers
from tests.conftest import GOLDEN, includable, kind_of
from tests.run_folder import WORD

ROOT = GOLDEN.parents[1]


@pytest.mark.parametrize(
    "reason, kind",
    [
        ("Skipped: gpu: no CUDA device", "gpu"),
        ("Skipped: could not import 'torch': No module named 'torch'", "torch"),
        ("could not import 'archspec.cpu': No module named 'archspec'", "archspec"),
        ("Skipped: torch: not installed", "torch"),
    ],
)
def test_a_skip_is_counted_under_what_was_missing(reason, kind):
    assert kind_of(reason) == kind


def test_only_what_can_be_included_is_offered():
    assert includable({"gpu": 3}) == includable({"torch": 0}) == []
    assert includable({"torch": 4})[0].endswith("(torch is not installed; skipped: 4). `make test TORCH=1` includes it.")


@pytest.mark.long
@pytest.mark.parametrize("more", [[], ["-n", "1"]], ids=["one process", "xdist"])
def test_the_last_line_of_a_run_without_torch_says_how_to_include_it(more, tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    words = ["-q", "-p", "no:cacheprovider", *more, "tests/torch/test_torch.py"]
    where = {**os.environ, "PYTHONPATH": str(tmp_path)}
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=where, capture_output=True, text=True, check=False
    )
    last = ran.stdout.strip().splitlines()[-1]
    assert last == "NOT TESTED: the torch door (torch is not installed; skipped: 1). `make test TORCH=1` includes it."


def test_what_was_skipped_is_run_again_and_nothing_else(tmp_path):
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(\"No module named 'torch'\")\n")
    files = ["tests/torch/test_torch.py", "tests/contract/test_driver.py", "tests/spec/test_shape.py"]
    where = {name: word for name, word in os.environ.items() if name != WORD}  # a run of its own
    where |= {"PYTHONPATH": str(tmp_path), "PATH": str(tmp_path)}  # without nvcc no test of the driver

    def last_line(*more: str) -> str:
        words = ["-q", "-o", f"cache_dir={tmp_path / 'cache'}", *more, *files]
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", *words], cwd=ROOT, env=where, capture_output=True, text=True, check=False
        )
        return ran.stdout.strip().splitlines()[-2]

    assert re.match(r"\d+ passed, 2 skipped, \d+ deselected", last_line("-k", "cites or grammar"))
    assert re.match(r"2 skipped, \d+ deselected", last_line("--skipped"))


def test_files_about_the_cuda_side_alone_are_imported_where_their_tests_are_asked_for():
    device, other = ROOT / "tests" / "serving" / "test_cuda_packs.py", ROOT / "tests" / "serving" / "test_torch.py"
    assert tiers.leaves_out("not slow and not long and not device", device)
    assert not tiers.leaves_out("not slow and not long and not device", other)
    assert not any(tiers.leaves_out(marks, device) for marks in ("", "device and not slow", "not device or long"))


def test_files_without_slow_tests_are_not_imported_for_slow_ones():
    slow, other = ROOT / "tests" / "runtime" / "test_soak.py", ROOT / "tests" / "spec" / "test_shape.py"
    assert not tiers.leaves_out("slow", slow)
    assert tiers.leaves_out("slow", other) and tiers.leaves_out("device and slow", other)
    assert not any(tiers.leaves_out(marks, other) for marks in ("", "not slow", "slow or long"))


@pytest.mark.parametrize("count", [1, 3, 4])
def test_each_file_with_slow_tests_is_in_one_part(count):
    parts = [tiers.slow_files_of(f"{number}/{count}") for number in range(1, count + 1)]
    assert sum(map(len, parts)) == len(tiers.slow_files_of()) and frozenset().union(*parts) == tiers.slow_files_of()
    seconds, longest = tiers.seconds(), max(tiers.seconds().values())
    loads = [sum(seconds.get(path.as_posix(), tiers.UNKNOWN_S) for path in part) for part in parts]
    assert max(loads) - min(loads) <= longest, "no part waits for another by more than a file"


def test_the_seconds_of_slow_files_are_of_files_that_are_there():
    assert set(tiers.seconds()) <= {path.as_posix() for path in tiers.slow_files_of()}


@pytest.mark.parametrize(
    "words, expected",
    [
        (["-m", "slow", "--part", "5/4"], "--part 5/4: expected K/N"),
        (["-m", "slow", "--part", "two"], "--part two: expected K/N"),
        (["--part", "1/4"], "add -m slow"),
    ],
)
def test_a_part_that_is_none_is_refused(words, expected):
    ran = subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words, "tests/spec/test_shape.py"],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert ran.returncode == 4 and expected in ran.stderr


def test_ci_runs_every_part_of_the_slow_tests():
    ci, make = (ROOT / ".ci" / "run").read_text(), (ROOT / "Makefile").read_text()
    assert "for step in 0 1 2 3; do" in ci and "step) % 4 + 1))/4" in ci and '-m slow --part "$part-timed"' in ci
    assert "SLOW_PARTS = 1/4 2/4 3/4 4/4\n" in make


def test_make_installs_torch_only_where_it_is_asked_for():
    def planned(*more: str) -> str:
        return subprocess.run(["make", "-n", "test", *more], cwd=ROOT, capture_output=True, text=True, check=True).stdout

    assert "torch==" not in planned("TORCH=")
    assert "pip install --quiet --disable-pip-version-check 'torch==" in planned("TORCH=1", "VENV=nowhere")
