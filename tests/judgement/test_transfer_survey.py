"""The survey, its bars, its page and its plots, on made-up devices."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.errors import HaotunerError
from haotuner.transfer.bars import bars, gaps
from haotuner.transfer.evaluate import Question, evaluate_family, runs_of
from haotuner.transfer.page import page
from haotuner.transfer.parallel import spread
from haotuner.transfer.plots import draw
from haotuner.transfer.reading import Read
from haotuner.transfer.report import report_of
from haotuner.transfer.runs import plain, run_of
from haotuner.transfer.survey import survey
from haotuner.transfer.survivors import survivors
from tests.judgement.transfer_examples import COUSIN, WIDE, read, tables

FAMILY = "cpu_dense_fp32"


@pytest.fixture(scope="module")
def two() -> Read:
    return read(WIDE, COUSIN)


@pytest.fixture(scope="module")
def kept() -> dict[str, dict[str, Any]]:
    return {}


@pytest.fixture(scope="module")
def document(two: Read, kept: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return survey(two, counts=(0, 16, 32), seeds=1, keep=kept.__setitem__)


def test_both_splits_of_every_target_and_the_tests_of_the_family_are_there(document: dict[str, Any]) -> None:
    facts = json.loads(json.dumps(document))["families"][FAMILY]
    assert set(facts["devices"]) == {"wide", "cousin"} and {"ablate", "permute", "funnel"} <= set(facts)
    for split in ("device", "device-and-configs"):
        assert set(facts["splits"][split]) == {"wide", "cousin"}


def test_what_was_kept_is_not_computed_again(two: Read, document: dict[str, Any], kept: dict[str, dict[str, Any]]) -> None:
    again: list[str] = []
    other = survey(two, counts=(0, 16, 32), seeds=1, kept=kept, keep=lambda key, _: again.append(key))
    assert other == document and again == []


def test_every_bar_says_what_was_found_and_can_fail(document: dict[str, Any]) -> None:
    found = list(bars(document))
    assert len(found) == 2 * 8 + 2 and all(bar.text and bar.found for bar in found)
    worse = json.loads(json.dumps(document))
    for reports in worse["families"][FAMILY]["splits"].values():
        for report in reports.values():
            for scores in report["chosen"].values():
                scores.update({"pairwise": 0.1, "best@1": 0.1, "best@10": 0.1})
    failed = [bar for bar in bars(worse) if not bar.met]
    assert len(failed) >= 2 * 4
    gap, best = gaps(worse["families"][FAMILY]["splits"]["device"]["wide"], "best@10")["0"]
    assert gap > 0.5 and best in ("zero-shot", "copy", "copy-mean")


def test_the_page_has_every_target_baseline_and_plot(document: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plots" / "latency.png"
    draw(document["families"][FAMILY]["splits"]["device"], "latency", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = page(document, "haotuner transfer report", {(FAMILY, "device"): "plots/latency.png"})
    for word in (
        "**wide**",
        "**cousin**",
        "copy, mean of sources",
        "*analytic*",
        "*random*",
        "(plots/latency.png)",
        "1 seeds",
    ):
        assert word in text
    tables_of = [line for line in text.splitlines() if line.startswith("|")]
    assert len(tables_of) > 60 and "nan" not in text


@pytest.mark.parametrize("counts", [(0,), (16,)])
def test_a_page_of_few_counts_leaves_out_what_it_cannot_say(two: Read, counts: tuple[int, ...]) -> None:
    asked = Question(target="cousin", counts=counts, seeds=1)
    facts: dict[str, Any] = {"devices": {}, "splits": {"device": {"cousin": evaluate_family(two, FAMILY, asked)}}}
    permuted = {"mean_cost": 0.1, "interval": [0.0, 0.2], "uses_hardware": False, "swaps": []}
    funnel = [{"device": "cousin", "measured": 1, "refused": {}, "kept": 1, "best_kept": 1.0}]
    facts |= {"permute": permuted, "funnel": funnel, "ablate": {"means": {}, "objectives": {}}}
    text = page({"families": {FAMILY: facts}, "counts": counts, "seeds": 1, "work_s": 1.0}, "report", {})
    assert ("2.5x fewer" in text) == (16 in counts) and ("zero-shot best@10, mean" in text) == (0 in counts)
    (head,) = [line for line in text.splitlines() if line.startswith("| target | ranking | 0 |")][:1]
    random = next(line for line in text.splitlines() if "*random*" in line)
    assert random.split("|")[3].strip() and ("16" in head) == (16 in counts)  # no sample, whatever was asked for


def test_the_funnel_counts_every_kernel_and_measures_what_it_lost() -> None:
    (table,) = tables(WIDE)
    for most in (256, 5):
        for found in survivors(table, most=most):
            assert found.kept + sum(found.refused.values()) == found.measured
            assert found.kept <= most and 0 < found.best_kept <= 1
    slow = replace(table, labels=-table.frame["expected_log"].to_numpy())  # the analysis is wrong about everything
    assert min(found.best_kept for found in survivors(slow, most=5)) < 0.97


def _scaled(factor: float, job: int) -> float:
    if job < 0:
        raise ValueError("a negative job")
    return factor * job


def test_jobs_are_spread_over_processes_and_their_errors_come_back() -> None:
    assert sorted(spread(_scaled, 2.0, [1, 2, 3], processes=2)) == [(1, 2.0), (2, 4.0), (3, 6.0)]
    with pytest.raises(HaotunerError, match="a negative job"):
        list(spread(_scaled, 2.0, [1, -1], processes=2))


def test_tables_travel_to_other_processes() -> None:
    (table,) = tables(WIDE)
    found = dict(spread(_labels, table, [0, 1], processes=2))
    assert found[1] == pytest.approx(float(np.sum(table.labels)) + 1)


def _ignored(given: float, job: int) -> bool:
    return signal.getsignal(signal.SIGINT) is signal.SIG_IGN


def test_ctrl_c_is_left_to_the_first_process() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert all(found for _, found in spread(_ignored, 0.0, [0, 1], processes=2))
    assert signal.getsignal(signal.SIGINT) is before is not signal.SIG_IGN


def _labels(table: Any, job: int) -> float:
    return float(np.sum(table.labels)) + job


def test_a_run_told_as_plain_values_gives_the_same_report(two: Read) -> None:
    question = Question(target="cousin", counts=(0, 16), seeds=2)
    runs = runs_of(two, FAMILY, question)
    again = [run_of(json.loads(json.dumps(plain(run)))) for run in runs]
    assert report_of(again) == report_of(runs) == evaluate_family(two, FAMILY, question)
    assert runs_of(two, FAMILY, question, seeds=[1])[0].chosen == runs[1].chosen
