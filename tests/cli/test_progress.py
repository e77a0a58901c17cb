"""What `haotuner tune` shows: phases by name, bars that end full, times beside ratios."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from haotuner.cli.output import counted
from haotuner.cli.progress import Watcher, race_progress
from haotuner.cli.tune import _table
from haotuner.cli.tune_race import Speed, times_table
from haotuner.records.codec import trial_of
from haotuner.spec.op import Op
from haotuner.spec.record import Timed
from haotuner.spec.shape import Shape
from tests.cli.command import haotuner

OP = Op.parse("dense:n=48,k=32")
ROW = {"op": "dense_n48_k32", "shape": {"m": 4}, "threads": 1, "weights": "cold", "ours_us": 2.0, "peers_us": {"numpy": 3.0}}


def test_the_bar_of_a_run_ends_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with Watcher((OP,), 100.0, quiet=False) as watcher:
        begun = []
        for name, phase in (("", "starting"), (OP.name, "search")):
            assert watcher(name, phase, None)
            begun.append(watcher.begun)
        assert begun == [False, True], "before an op is begun there is nothing to write"
        assert watcher._bar is not None
        task = watcher._bar.tasks[0]
        assert "searching kernels" in task.description and task.percentage < 50
    assert task.finished and task.percentage == 100


def test_a_run_without_a_terminal_names_its_last_phases(capsys: pytest.CaptureFixture[str]) -> None:
    with Watcher((OP,), 100.0, quiet=False) as watcher:
        watcher(OP.name, "search", None)
        watcher("", "building the pack", None)
        watcher.stop = True
        assert not watcher("", "checking what it computes", None)
    output = capsys.readouterr().err
    assert "building the pack" in output and "checking what it computes" in output and "search" not in output


@pytest.mark.parametrize("terminal", [True, False])
def test_a_race_has_progress_and_ends_full(
    terminal: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    row: dict[str, Any] = {**ROW, "best": None, "contended": False, "noise": None, "failed": {}}
    with race_progress(2, quiet=False) as watch:
        assert watch is not None
        watch(row, 1, 2)
        watch(row, 2, 2)
    output = capsys.readouterr().err
    assert ("raced" in output) if terminal else ("2/2" in output and "1/2" not in output)
    with race_progress(2, quiet=True) as none:
        assert none is None


def report(**entry: Any) -> Any:
    table = SimpleNamespace(
        threads=1, measured=entry.pop("timed", {4: {}}), regret_mean=0.01, entries=[SimpleNamespace(us=1.5)] * 64
    )
    traffic = SimpleNamespace(shapes=lambda: [{"m": 1}, {"m": 64}])
    tuned = SimpleNamespace(task=SimpleNamespace(op=OP, traffic=traffic, cache="cold"), tables=[table], row_tables=[table])
    described = {"name": OP.name, "kernels": ["a"], "measured": 1, "candidates": 2, "regret_cover": 0.02, **entry}
    return SimpleNamespace(document={"ops": [described]}, tuned=[tuned])


def raced(*peers: str) -> Speed:
    ratios = {(OP.name, 1, peer): 1.5 for peer in (*peers, "best")}
    return Speed(document={"rows": [ROW]}, peers=peers, threads=[1], ratios=ratios)


def test_one_peer_is_not_told_twice() -> None:
    assert "vs best" not in _table(report(), raced("numpy")) and "vs numpy" in _table(report(), raced("numpy"))
    assert "vs best" in _table(report(), raced("numpy", "torch"))


def test_a_regret_needs_times() -> None:
    assert "3.0%" in _table(report(), None)
    assert "%" not in _table(report(regret_cover=None), None) and "%" not in _table(report(timed={}), None)


def test_absolute_times_are_those_of_the_race_or_else_what_the_plans_expect() -> None:
    text = times_table(report(), raced("numpy"))
    assert "m=4" in text and "2 (6)" in text and "as raced" in text  # 12,288 flops in 2 us
    text = times_table(report(), None)
    assert "m=1 " in text and "m=64" in text and "plans expect" in text


def test_the_closing_lines_say_what_the_columns_mean(tuned: tuple[Path, Any], cache: Path) -> None:
    output = haotuner("inspect", "pack", cache=cache, cwd=tuned[0]).out
    assert "packed: size of the packed weight" in output and "regret: loss" in output


def test_a_size_that_the_race_had_no_time_for_is_said_to_be_so() -> None:
    later = {**ROW, "threads": 2, "shape": {"m": 9}}
    part = Speed(document={"rows": [ROW, later]}, peers=("numpy",), threads=[1, 2], ratios={})
    assert "(-: the 40 s of the race were over)" in times_table(report(), part)
    assert "were over" not in times_table(report(), raced("numpy"))
    assert "over what was raced of m = 4, 9;" in part.note() and "mean over m = 4;" in raced("numpy").note()


def test_a_first_look_names_the_axes_that_its_bounds_multiply() -> None:
    softmax = Op.parse("softmax")
    with Watcher((OP, softmax), 100.0, quiet=True) as watcher:
        for op, kernel, extents in ((OP, "a", {"m": 5}), (softmax, "b", {"m": 5, "n": 33})):
            trial = trial_of(op=op.name, kernel=kernel, shape=Shape.of(extents))
            record: Any = SimpleNamespace(trial=trial, outcome=Timed(samples_us=(1.0,)))
            watcher._note(op.name, record)
    assert "m <= 8 " in watcher._table() and "m * n <= 256 " in watcher._table()


def test_what_has_no_weight_is_not_said_to_have_cold_ones() -> None:
    tune_report = report()
    assert times_table(tune_report, None).endswith("weights cold")
    tune_report.tuned[0].task.op = Op.parse("softmax")
    tune_report.tuned[0].row_tables = []
    assert times_table(tune_report, None).endswith("operands in cache")


def test_one_is_counted_in_the_singular() -> None:
    assert [counted(count, "op") for count in (0, 1, 2)] == ["0 ops", "1 op", "2 ops"]
