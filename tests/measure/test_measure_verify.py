"""Verification before a time counts: micro-kernels with a seeded bug do not pass."""

from __future__ import annotations

from pathlib import Path

import pytest

from haotuner.backends.cpu.timer_process import TimerProcess
from haotuner.isolate.answers import Refusal
from tests.backends.native_jobs import NR, K, job, mutant_library


@pytest.fixture(scope="module")
def table() -> TimerProcess:
    return TimerProcess()


def verdict(table: TimerProcess, library: Path, **fields: object) -> str:
    try:
        error = table.verify(job(library, do="verify", **fields))["max_error"]
    except Refusal as refusal:
        return f"{refusal.stage}/{refusal.reason}"
    assert 0 <= error < 1
    return "passed"


BUGS = {
    "the last term of each sum is missing": ({"before": "k -= 1;"}, "verify/wrong"),
    "one term of one element is missing": (
        {"store": "y[i * ldy + j] = i == 1 && j == 2 ? sum - x[i * ldx + 5] * w[5 * PW + 2] : sum"}, "verify/wrong"),
    "one term too many is read": ({"before": "k += 1;"}, "verify/wrong"),
    "a tile is left out": ({"before": "if (tiles > 1) rows -= MR;"}, "verify/wrong"),
    "a column group is left out": ({"before": "if (groups > 1) columns -= NR;"}, "verify/wrong"),
    "parts of the sum replace each other": ({"start": "0"}, "verify/wrong"),
    "the first part adds too": ({"start": "y[i * ldy + j]"}, "verify/wrong"),
    "all panels are the first": ({"term": "x[i * ldx + at] * w[at * PW + j % PW]"}, "verify/wrong"),
    "row strides are ignored": ({"term": "x[i * k + at] * w[(j / PW * k + at) * PW + j % PW]"}, "verify/wrong"),
    "the output is added to": ({"store": "y[i * ldy + j] += sum"}, "verify/wrong"),
    "nothing is written": ({"store": "(void)sum"}, "verify/wrong"),
    "the result is not a number": ({"store": "y[i * ldy + j] = sum / 0 * 0"}, "verify/wrong"),
    "half precision": (
        {"term": "(float)(_Float16)(x[i * ldx + at]) * w[(j / PW * k + at) * PW + j % PW]"}, "verify/wrong"),
    "a column too many is written": ({"after": "if (ldy > NR) y[columns] = 7;"}, "verify/out_of_bounds"),
    "the column before is written": ({"after": "if (ldy > NR) y[-1] = 7;"}, "verify/out_of_bounds"),
    "a row too many is written": ({"after": "if (ldy > NR) y[rows * ldy] = 7;"}, "verify/out_of_bounds"),
    "the row above is written": ({"after": "if (ldy > NR) y[-ldy] = 7;"}, "verify/out_of_bounds"),
    "the kernel refuses": ({"status": "-1"}, "run/error"),
}  # fmt: skip


@pytest.mark.parametrize("bug", BUGS)
def test_a_seeded_bug_is_caught(bug: str, table: TimerProcess, tmp_path: Path) -> None:
    mutation, expected = BUGS[bug]
    assert verdict(table, mutant_library(tmp_path, **mutation)) == expected


def test_a_sound_kernel_passes_for_every_seed_and_depth(table: TimerProcess, tmp_path: Path) -> None:
    library = mutant_library(tmp_path)
    for k in (1, 2, 37, 300):
        for seed in range(3):
            assert verdict(table, library, k=k, seed=seed) == "passed"


def test_the_message_names_the_element_and_both_values(table: TimerProcess, tmp_path: Path) -> None:
    library = mutant_library(tmp_path, store="y[i * ldy + j] = i == 2 && j == 5 ? 0.5f : sum")
    with pytest.raises(Refusal, match=r"^m=3 n=8 k=37: 1 wrong results, the first at \[2, 5\]: 0.5, want -?[0-9.]+$"):
        table.verify(job(library, do="verify"))


def test_a_job_that_does_not_fit_is_refused_before_the_kernel_runs(table: TimerProcess, tmp_path: Path) -> None:
    library = mutant_library(tmp_path, before="__builtin_trap();")
    for wrong in (
        {"m": 4},
        {"parts": [[0, 2]]},
        {"parts": [[1, 1]]},
        {"parts": [[-1, 1]]},
        {"pw": 8},
        {"parts": [[0, 1]] * 5},
    ):
        with pytest.raises(Refusal) as refusal:
            table.time(job(library, **wrong))
        assert (refusal.value.stage, refusal.value.reason) == ("run", "error"), wrong


def test_samples_are_as_many_as_asked_for_and_positive(table: TimerProcess, tmp_path: Path) -> None:
    library = mutant_library(tmp_path)
    for most, least, limit_ns in ((1, 1, 0), (5, 5, 0), (5, 2, 0), (7, 3, 10**9)):
        samples = table.time(job(library, most=most, least=least, limit_ns=limit_ns))["samples_us"]
        assert len(samples) == (most if limit_ns else least) and all(us > 0 for us in samples)


def test_cold_weights_take_at_least_the_bytes_asked_for_and_two_copies(table: TimerProcess, tmp_path: Path) -> None:
    library = mutant_library(tmp_path)
    weight_floats = 2 * NR * K
    for cold_bytes, floats in ((0, weight_floats), (1, 2 * weight_floats), (1 << 16, 1 << 14)):
        assert table.time(job(library, cold_bytes=cold_bytes))["samples_us"]
        assert floats <= table._flat["w"].size <= floats + weight_floats
