"""The transfer verbs as a user runs them, on a store of made-up devices that have real profiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from haotuner.cli.app import run
from haotuner.hw_profiles.find import find_device
from haotuner.record import Record
from haotuner.records.address import open_store
from tests.judgement.transfer_examples import WIDE, records

IDS = ("titan-rtx", "a4000", "rtx-3090")  # any ids of profiles: the records are of made-up CPU kernels


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('transfer') / 'r.db'}"
    store = open_store(url, write=True)
    rows: list[Record] = []
    for seed, name in enumerate(IDS):
        rows += [replace(row, device_id=find_device(name, measure=False).id) for row in records(WIDE, seed=seed)]
    store.append(rows)
    store.close()
    return url


def test_evaluate_prints_one_json_document(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", "evaluate", "--db", db, "--target", "a4000", "--samples", "0,16", "--seeds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == "a4000" and set(report["chosen"]) == {"0", "16"}


def test_evaluate_prints_a_table(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "NVIDIA RTX A4000", "--samples", "0", "--seeds", "1", "-q", "--split", "device-and-configs"]
    assert run(["transfer", "evaluate", "--db", db, *words]) == 0
    printed = capsys.readouterr()
    assert "zero-shot" in printed.out and "measurements to" in printed.out and not printed.err


def test_fit_writes_a_model_for_a_device_that_has_no_records(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "model"
    assert run(["transfer", "fit", "--db", db, "--target", "h200", "--out", str(out), "--json"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out)["mode"] == "zero-shot" and out.stat().st_size > 1000
    assert "no records of h200" in printed.err


@pytest.mark.parametrize("verb", ["ablate", "permute"])
def test_the_other_verbs_answer_in_json(db: str, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", verb, "--db", db, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["families"][0]["family"] == "cpu_dense_fp32"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "no-such-device"], "unknown device"),
        (["--target", "h200"], "transfer to h200 needs records of it"),
        (["--target", "a4000", "--samples", "many"], "write counts such as 0,16,32"),
        (["--target", "a4000", "--split", "week"], "unknown split"),
        (["--target", "a4000", "--family", "none"], "needs records of it"),
    ],
)
def test_wrong_questions_are_usage_errors(db: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", "evaluate", "--db", db, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", "permute", "--db", f"sqlite:///{tmp_path / 'none.db'}"]) in (1, 2, 4)
    assert "none.db" in capsys.readouterr().err
