"""The report of all targets: worked out in processes, kept as it comes, told as a page."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import numpy as np
import pytest

from haotuner.errors import HaotunerError
from haotuner.transfer.reading import DeviceTables
from tests.bench.transfer_study.evaluate import Evaluation, evaluate_family, report_of, runs_of
from tests.bench.transfer_study.report import plain, report, run_of
from tests.bench.transfer_study.report_page import page
from tests.bench.transfer_study.started_mode import STARTED
from tests.bench.transfer_study.workers import answers_of
from tests.transfer.transfer_examples import COUSIN, WIDE, read, tables

pytestmark = pytest.mark.long

FAMILY = "cpu_dense_fp32"


@pytest.fixture(scope="module")
def two() -> DeviceTables:
    return read(WIDE, COUSIN)


def test_a_report_of_two_processes_is_that_of_one_and_goes_on_where_it_stopped(two: DeviceTables) -> None:
    stored: dict[str, Any] = {}
    whole = report(two, counts=(0,), seeds=3, processes=2, keep=stored.__setitem__)
    assert len(stored) == 2 * 2 * 2 + 2, "targets, splits, and seeds by twos; a learning curve a target"
    half = dict(list(json.loads(json.dumps(stored)).items())[:3])
    computed: list[str] = []
    again = report(two, counts=(0,), seeds=3, earlier=half, keep=lambda key, _: computed.append(key))
    assert again["families"] == whole["families"] and set(computed) == stored.keys() - half.keys()
    seeds = [key.split(" seeds ")[1].split()[0] for key in computed if " seeds " in key]
    assert seeds == sorted(seeds), "an interrupted report of many seeds is a whole one of fewer"


def test_a_page_has_the_scores_of_every_mode_on_every_target(two: DeviceTables) -> None:
    text = page(report(two, counts=(0, 16), seeds=1), "report")
    for word in ("**wide**", "**cousin**", "copy, mean of sources", "*analytic*", "*random*", f"| {STARTED} |", "1 seeds"):
        assert word in text
    assert len([line for line in text.splitlines() if line.startswith("|")]) > 60 and "nan" not in text


def test_a_page_begins_with_what_was_found_chosen_and_reached_by_the_number_of_sources(two: DeviceTables) -> None:
    document = report(two, counts=(0, 16), seeds=1)
    short = page(document, "report").partition("## In short")[2].partition("\n## ")[0]
    family = document["families"][two.families()[0]]
    mean = family["across"]["device"]["chosen"]["16"]["mean"]
    assert f"| mean | {family['across']['device']['chosen']['0']['mean']:.3f}" in short and f"| {mean:.3f} [" in short
    assert "Settings chosen inside, halving" in short and "oracle of opinions" in short
    (curve,) = family["learning_curves"]["wide"].values()
    assert f"| wide | {curve[0]:.3f} |" in short.partition("by the number of source devices")[2]


def _scaled(factor: float, job: int) -> float:
    if job < 0:
        raise ValueError("a negative job")
    return factor * job


def found_by(work: Any, inputs: Any, jobs: list[int], processes: int) -> dict[str, Any]:
    answers = answers_of(work, inputs, {str(job): job for job in jobs}, processes=processes)
    assert all(answer["seconds"] >= 0 for answer in answers.values())
    return {key: answer["found"] for key, answer in answers.items()}


@pytest.mark.parametrize("processes", [1, 2])
def test_jobs_are_worked_out_in_processes_and_their_errors_come_back(processes: int) -> None:
    assert found_by(_scaled, 2.0, [1, 2, 3], processes) == {"1": 2.0, "2": 4.0, "3": 6.0}
    with pytest.raises(ValueError, match="a negative job"):
        found_by(_scaled, 2.0, [1, -1], processes)


def test_no_job_is_no_answer() -> None:
    assert found_by(_scaled, 2.0, [], 2) == {}


def _dead(inputs: float, job: int) -> float:
    os.kill(os.getpid(), signal.SIGKILL)
    return inputs


def test_a_process_that_dies_is_said() -> None:
    with pytest.raises(HaotunerError, match="a process of the report died.*--jobs 1"):
        found_by(_dead, 2.0, [1, 2], 2)


def test_tables_travel_to_other_processes() -> None:
    (table,) = tables(WIDE)
    assert found_by(_labels, table, [0, 1], 2)["1"] == pytest.approx(float(np.sum(table.labels)) + 1)


def _ignored(inputs: float, job: int) -> bool:
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_ctrl_c_is_left_to_the_first_process() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert all(found_by(_ignored, 0.0, [0, 1], 2).values())
    assert signal.getsignal(signal.SIGINT) is before is not signal.SIG_IGN


def _labels(table: Any, job: int) -> float:
    return float(np.sum(table.labels)) + job


def test_a_run_told_as_plain_values_gives_the_same_report(two: DeviceTables) -> None:
    evaluation = Evaluation(target="cousin", counts=(0, 16), seeds=2)
    runs = runs_of(two, FAMILY, evaluation)
    again = [run_of(json.loads(json.dumps(plain(run)))) for run in runs]
    family_report = evaluate_family(two, FAMILY, evaluation)
    assert (
        report_of(again) == report_of(runs) == {name: value for name, value in family_report.items() if name != "settings"}
    )
    assert runs_of(two, FAMILY, evaluation, seeds=[1])[0].chosen == runs[1].chosen
