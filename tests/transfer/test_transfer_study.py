"""The study of docs/transfer/study.md: its survey, bars, page and plots, on made-up devices."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from haotuner.records.address import open_store
from haotuner.transfer.reading import DeviceTables
from tests.bench.transfer_study.__main__ import main
from tests.bench.transfer_study.bars import bars
from tests.bench.transfer_study.evaluate import Evaluation, evaluate_family
from tests.bench.transfer_study.page import study_page
from tests.bench.transfer_study.plots import draw
from tests.bench.transfer_study.report_page import gaps
from tests.bench.transfer_study.survey import survey
from tests.bench.transfer_study.survivors import survivors
from tests.transfer.transfer_examples import COUSIN, WIDE, read, records, tables

pytestmark = pytest.mark.long

FAMILY = "cpu_dense_fp32"


@pytest.fixture(scope="module")
def two() -> DeviceTables:
    return read(WIDE, COUSIN)


@pytest.fixture(scope="module")
def stored_parts() -> dict[str, dict[str, Any]]:
    return {}


@pytest.fixture(scope="module")
def document(two: DeviceTables, stored_parts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return survey(two, counts=(0, 16, 32), seeds=1, keep=stored_parts.__setitem__)


def test_both_splits_of_every_target_and_the_tests_of_the_family_are_there(document: dict[str, Any]) -> None:
    facts = json.loads(json.dumps(document))["families"][FAMILY]
    assert set(facts["devices"]) == {"wide", "cousin"} and {"ablate", "permute", "funnel"} <= set(facts)
    for split in ("device", "device-and-configs"):
        assert set(facts["splits"][split]) == {"wide", "cousin"}


def test_what_was_kept_is_not_computed_again(
    two: DeviceTables, document: dict[str, Any], stored_parts: dict[str, dict[str, Any]]
) -> None:
    again: list[str] = []
    other = survey(two, counts=(0, 16, 32), seeds=1, earlier=stored_parts, keep=lambda key, _: again.append(key))
    assert other == document and again == []


def test_every_bar_has_its_figure_and_can_fail(document: dict[str, Any]) -> None:
    every = list(bars(document))
    assert len(every) == 2 * 10 + 2 and all(bar.text and bar.reached for bar in every)
    worse = json.loads(json.dumps(document))
    for reports in worse["families"][FAMILY]["splits"].values():
        for report in reports.values():
            for scores in (*report["chosen"].values(), report["modes"]["zero-shot"]["0"]):
                scores.update({"pairwise": 0.1, "best@1": 0.1, "best@10": 0.1})
    failed = [bar for bar in bars(worse) if not bar.met]
    assert len(failed) >= 2 * 7
    gap, best = gaps(worse["families"][FAMILY]["splits"]["device"]["wide"], "best@10")["0"]
    assert gap > 0.5 and best in ("zero-shot", "copy", "copy-mean")


def test_the_page_has_every_target_baseline_and_plot(document: dict[str, Any], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    picture = tmp_path / "plots" / "latency.png"
    draw(document["families"][FAMILY]["splits"]["device"], "latency", picture)
    assert picture.read_bytes().startswith(b"\x89PNG")
    text = study_page(document, "python -m tests.bench.transfer_study study", {(FAMILY, "device"): "plots/latency.png"})
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
def test_a_page_of_few_counts_leaves_out_what_it_cannot_say(two: DeviceTables, counts: tuple[int, ...]) -> None:
    evaluation = Evaluation(target="cousin", counts=counts, seeds=1)
    facts: dict[str, Any] = {"devices": {}, "splits": {"device": {"cousin": evaluate_family(two, FAMILY, evaluation)}}}
    permuted = {"mean_cost": 0.1, "interval": [0.0, 0.2], "uses_hardware": False, "swaps": []}
    funnel = [{"device": "cousin", "measured": 1, "refused": {}, "kept": 1, "best_kept": 1.0}]
    facts |= {"permute": permuted, "funnel": funnel, "ablate": {"means": {}, "objectives": {}}}
    text = study_page({"families": {FAMILY: facts}, "counts": counts, "seeds": 1, "work_s": 1.0}, "report", {})
    assert ("2.5x fewer" in text) == (16 in counts) and ("zero-shot best@10, mean" in text) == (0 in counts)
    (head,) = [line for line in text.splitlines() if line.startswith("| target | ranking | 0 |")][:1]
    random = next(line for line in text.splitlines() if "*random*" in line)
    assert random.split("|")[3].strip() and ("16" in head) == (16 in counts)  # no sample, whatever was asked for


def test_the_funnel_counts_every_kernel_and_measures_what_it_lost() -> None:
    (table,) = tables(WIDE)
    for most in (256, 5):
        for funnel in survivors(table, most=most):
            assert funnel.kept + sum(funnel.refused.values()) == funnel.measured
            assert funnel.kept <= most and 0 < funnel.best_kept <= 1
    slow = replace(table, labels=-table.frame["expected_log"].to_numpy())  # the analysis is wrong about everything
    assert min(funnel.best_kept for funnel in survivors(slow, most=5)) < 0.97


def test_the_command_line_of_the_study_answers_in_json_and_refuses_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = stored(tmp_path)
    for study in ("ablate", "permute"):
        assert main([study, "--db", url, "--seeds", "1"]) == 0
        assert json.loads(capsys.readouterr().out)["families"][0]["family"] == FAMILY
    assert main(["speed", "--db", url, "--target", "a4000", "--rows", "40"]) == 0
    rows = json.loads(capsys.readouterr().out)["families"][0]["rows"]["40"]
    assert set(rows) == {"features", "zero-shot", "residual", "own forest"} and min(rows.values()) > 0
    for words, message in (
        (["ablate", "--db", url, "--family", "nope"], "no records of --family nope; the store has cpu_dense_fp32"),
        (["speed", "--db", url, "--target", "h200"], "needs records of it and of another device"),
        (["speed", "--db", url, "--target", "a4000", "--rows", "abc"], "--rows 'abc': write counts from 1 up"),
        (["permute", "--db", f"sqlite:///{tmp_path / 'none.db'}"], "none.db"),
        (["study", "--db", url, "--out", str(tmp_path / "none" / "page.md")], "there is no folder"),
    ):
        assert main(words) in (1, 2)
        assert message in capsys.readouterr().err


def stored(folder: Path) -> str:
    """A store of two profiles' ids with the records of a made-up CPU."""
    url = f"sqlite:///{folder / 'r.db'}"
    store = open_store(url, write=True)
    for seed, name in enumerate(("titan-rtx", "a4000")):
        store.append([replace(row, device_id=name) for row in records(WIDE, seed=seed)])
    store.close()
    return url
