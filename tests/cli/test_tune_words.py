"""What `tune` and `bench` say of budgets that were too small and of rows that other programs disturbed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.cli import bench
from haotuner.cli.tune import _unmeasured, _unverified
from haotuner.cli.tune_race import Speed, _ratios, spread, times_table
from tests.cli.test_progress import OP, ROW
from tests.cli.test_progress import report as tuned_report


def report(*measured: int, stopped: str = "budget", groups: int = 0) -> Any:
    tuned = [SimpleNamespace(measured=count, task=SimpleNamespace(op=OP)) for count in measured]
    return SimpleNamespace(tuned=tuned, stopped=stopped, models=(SimpleNamespace(report=SimpleNamespace(measured=groups)),))


def test_a_budget_that_was_too_small_names_one_that_is_not() -> None:
    (message,) = _unmeasured(report(3, 0, 0, 0), 20.0)
    assert message.startswith("3 of 4 ops had no time to be measured: --budget 20s was too little on this machine")
    assert message.endswith("run again with --resume --budget 35s")
    (message,) = _unmeasured(report(1, 1, 0), 30.0)
    assert message.endswith("--budget 40s"), "never less than was too little"
    (message,) = _unmeasured(report(*[0] * 40), 60.0)
    assert message.endswith("--budget 5m"), "forty first turns take so long"
    (message,) = _unmeasured(report(*[1] * 20, *[0] * 20), 600.0)
    assert message.endswith("--budget 15m")


@pytest.mark.parametrize("stopped", ["signal", "zero-measure"])
def test_of_a_run_that_ended_otherwise_nothing_is_said(stopped: str) -> None:
    assert _unmeasured(report(0, 0, stopped=stopped), 20.0) == []
    assert _unmeasured(report(1, 2), 20.0) == []


def test_groups_with_times_are_not_called_unmeasured() -> None:
    assert "generated groups were timed and no op was" in _unverified(report(0, groups=3))
    assert "nothing was measured on the device" in _unverified(report(0))


def speed(*contended: bool) -> Speed:
    rows = [
        {
            **ROW,
            "shape": {"m": m},
            "best": "numpy",
            "contended": busy,
            "ours_us": 2.0,
            "peers_us": {"numpy": 65.34 if busy else 3.0},
        }
        for m, busy in zip((4, 8, 16), contended, strict=True)
    ]
    return Speed(document={"rows": rows}, peers=("numpy",), threads=(1,), ratios=_ratios(rows, ("numpy",)))


def test_contended_rows_are_left_out_of_ratios_and_marked_among_times() -> None:
    race = speed(False, True, False)
    assert race.cell(OP.name, 1, "numpy") == "1.50x"
    assert "1 of 3 rows are left out, ~ marks their times: other programs were busy meanwhile" in race.note()
    table = times_table(tuned_report(), race)
    assert table.count("~2 ") == 1 and table.count(" 2 (") == 2


def test_of_contended_rows_alone_no_figure_is_given() -> None:
    race = speed(True, True, True)
    assert race.cell(OP.name, 1, "numpy") == "-" and race.overall(1) is None
    assert "no figure is given, ~ marks their times: all rows were contended" in race.note()


@pytest.mark.parametrize(
    "busy, message", [((True, False), "1 contended rows are left out"), ((True, True), "EVERY ROW WAS CONTENDED")]
)
def test_bench_of_a_model_marks_contended_rows(
    busy: tuple[bool, bool], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    times = {"onnxruntime": {"steady_us": 3e3, "first_us": 4e3, "ratio": 1.5}}
    rows = [
        {"shape": {"batch": n}, "threads": 1, "first_us": 2e3, "steady_us": 2e3, "contended": contended, "peers": times}
        for n, contended in enumerate(busy, 1)
    ]
    summary = {
        "contended": sum(busy),
        "geomean_vs_best": 1.5,
        "stream_vs": {"onnxruntime": 1.2},
        "load_ms": {},
        "peak_bytes": {},
    }
    bench._print_models({"rows": rows, "summary": summary}, ["onnxruntime"])
    out = capsys.readouterr().out
    assert message in out and out.count("contended") >= sum(busy) and out.count("1.50x") == (2 - sum(busy)) + 1


def test_a_race_that_ends_early_has_raced_sizes_of_each_part() -> None:
    sizes = [1, 5, 20, 60, 147, 512]
    assert spread(sizes)[:3] == [1, 147, 20]
    assert sorted(spread(sizes)) == sizes
    assert spread([7]) == [7]
    assert spread([]) == []
