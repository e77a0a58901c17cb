"""``python -m tests.bench.transfer_study`` on a store of made-up devices that have real profiles."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli.pages.document import document_of_pages
from haotuner.errors import UsageError
from tests.bench.transfer_study import evaluate_verb, report_verb
from tests.bench.transfer_study.__main__ import main
from tests.bench.transfer_study.plots import plots_beside
from tests.bench.transfer_study.report_html import report_pages
from tests.transfer.profile_store import store_of_profiles

pytestmark = pytest.mark.long

IDS = ("titan-rtx", "a4000", "rtx-3090")  # any ids of profiles: the records are of made-up CPU kernels


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    return store_of_profiles(tmp_path_factory.mktemp("transfer") / "r.db", IDS)


def test_evaluate_prints_one_json_document(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--db", db, "--target", "a4000", "--samples", "0,16", "--seeds", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["target"] == "a4000" and set(report["chosen"]) == {"0", "16"}


def test_evaluate_prints_a_table(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--target", "NVIDIA RTX A4000", "--samples", "0", "--seeds", "1", "-q", "--split", "device-and-configs"]
    assert main(["evaluate", "--db", db, *words]) == 0
    printed = capsys.readouterr()
    assert "zero-shot" in printed.out and "measurements to" in printed.out and not printed.err


def test_report_writes_a_page_and_prints_one_json_document(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page"
    words = ["--samples", "0,16", "--seeds", "1", "--jobs", "1", "--numbers", str(tmp_path / "numbers"), "-q", "--json"]
    assert main(["report", "--db", db, "--out", str(page), *words]) == 0
    document = json.loads(capsys.readouterr().out)
    pages = document_of_pages(report_pages(document), "transfer")["pages"]
    assert [tab["title"] for tab in pages] == ["Transfer", "cpu_dense_fp32"]
    regret, scores, curves = pages[1]["panels"]
    assert set(regret["figures"]) == set(scores["figures"]) == set(pages[1]["choices"]) == set(curves["figures"])
    assert all(line["y"] and None not in line["y"] for choice in regret["figures"].values() for line in choice["data"])
    assert set(document["families"]["cpu_dense_fp32"]["splits"]["device"]) == set(IDS)
    assert "python -m tests.bench.transfer_study report --db URL --out page --seeds 1 --samples 0,16" in page.read_text()
    # two splits and a learning curve each, the architecture left out where another device is of it, a fold a pair
    assert len((tmp_path / "numbers").read_text().splitlines()) == 3 * len(IDS) + 2 + 6
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["numbers", "page"]


def test_report_is_one_html_file_where_it_is_named(db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("plotly")
    words = ["--samples", "0", "--seeds", "1", "--jobs", "1", "--split", "architecture", "-q"]
    assert main(["report", "--db", db, "--report", str(tmp_path / "page.html"), *words]) == 0
    text = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<title>haotuner report: transfer, --db URL</title>" in text and "{{" not in text
    assert main(["report", "--db", db, "--report", str(tmp_path / "none" / "page.html"), *words]) == 2
    assert "none" in capsys.readouterr().err


def test_report_without_a_page_prints_a_summary(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--samples", "0,16", "--seeds", "1", "--jobs", "1", "--split", "architecture", "-q"]
    assert main(["report", "--db", db, *words]) == 0
    printed = capsys.readouterr().out
    assert "device out\n" not in printed and "half of the configurations" not in printed
    for phrase in ("whole architecture out", "oracle of opinions", "by the number of source devices", "titan-rtx", "worst"):
        assert phrase in printed


def cache_file(folder: Path, device: str) -> None:
    """A Kernel Tuner cache file of a few convolution kernels."""
    axes = {"block_size_x": (16, 32, 64), "block_size_y": (1, 2, 4), "tile_size_x": (1, 2, 4), "tile_size_y": (1, 2)}
    fixed = {"filter_width": 15, "filter_height": 15, "use_padding": 0, "read_only": 0}
    rows = {}
    for values in product(*axes.values()):
        time = 1.0 + 0.01 * sum(values) + 0.3 * values[2]
        rows[",".join(map(str, values))] = {**dict(zip(axes, values, strict=True)), **fixed, "time": time, "times": [time]}
    document: dict[str, Any] = {"device_name": device, "kernel_name": "convolution_kernel", "problem_size": [4096, 4096]}
    document |= {"tune_params_keys": [*axes, *fixed], "tune_params": {}, "cache": rows}
    (folder / f"{device}.json").write_text(json.dumps(document))


def test_report_reads_a_folder_of_cache_files_and_says_what_it_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "data" / "below"
    data.mkdir(parents=True)
    for device in ("NVIDIA RTX A4000", "TITAN RTX"):
        cache_file(data, device)
    cache_file(data, "NVIDIA RTX A4001")  # nobody knows it
    (data / "other.json").write_text("{}")
    titan, a4000 = data / "TITAN RTX.json", data / "NVIDIA RTX A4000.json"
    titan.write_text(titan.read_text().replace('"time": 1.', '"time": -1.', 1))
    a4000.write_text(a4000.read_text()[:-400])
    words = ["--out", str(tmp_path / "page.md"), "--samples", "0", "--seeds", "1", "--jobs", "1", "--json"]
    assert main(["report", "--data", str(tmp_path / "data"), *words]) == 0
    printed = capsys.readouterr()
    assert set(json.loads(printed.out)["families"]["kt_conv2d"]["devices"]) == {"a4000", "titan-rtx"}
    assert "left out" in printed.err and "other.json" in printed.err
    (unknown,) = [line for line in printed.err.splitlines() if "A4001" in line and "unknown device" in line]
    assert "a4000" in unknown, "the nearest names"
    assert f"{titan}: left out 1: a time is zero or negative" in printed.err and f"{a4000}: cut short: " in printed.err


def test_report_reads_a_store_or_a_folder_and_not_both_or_none(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "page.md")]
    for words, message in (
        ([], "either --db URL, a record store, or --data FOLDER"),
        (["--db", db, "--data", str(tmp_path)], "either --db URL, a record store, or --data FOLDER"),
        (["--data", str(tmp_path / "none")], "is no folder"),
        (["--data", str(tmp_path)], "holds no Kernel Tuner cache file that can be used: it holds no *.json"),
        (["--db", db, "--split", "week"], "--split week is none of device, architecture, device-and-configs"),
    ):
        assert main(["report", *words, *out]) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--target", "no-such-device"], "unknown device"),
        (["--target", "h200"], "transfer to h200 needs records of it"),
        (["--target", "a4000", "--samples", "many"], "--samples 'many': write counts"),
        (["--target", "a4000", "--split", "week"], "unknown split"),
        (["--target", "a4000", "--family", "none"], "no records of --family none; the store has cpu_dense_fp32"),
    ],
)
def test_wrong_questions_are_usage_errors(
    db: str, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["evaluate", "--db", db, *words]) == 2
    assert message in capsys.readouterr().err


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "--target", "a4000", "--db", f"sqlite:///{tmp_path / 'none.db'}"]) in (1, 2, 4)
    assert "none.db" in capsys.readouterr().err


def test_the_plots_of_a_page_never_take_its_name(tmp_path: Path) -> None:
    for name, folder in {"a.md": "a", "a": "a-plots", ".md": ".md-plots"}.items():
        assert plots_beside(tmp_path / name) == tmp_path / folder
    (tmp_path / "a").touch()
    with pytest.raises(UsageError, match="its plots go into the folder .*a, which is a file"):
        plots_beside(tmp_path / "a.md")


def test_ctrl_c_ends_with_3_and_a_word(db: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate_verb, "read_store", interrupted)
    assert main(["evaluate", "--target", "a4000", "--db", db]) == 3
    assert capsys.readouterr().err.strip() == "haotuner: stopped"


def test_verbose_tells_every_step_of_an_evaluation(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["evaluate", "--db", db, "--target", "a4000", "--samples", "0", "--seeds", "2"]
    assert main([*words, "--json", "--verbose"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) and all(f"seed {at} of 2" in printed.err for at in (1, 2))


def test_report_takes_verbose(db: str, tmp_path: Path, monkeypatch: Any) -> None:
    seen = []

    def looked(*_: Any, quiet: bool, verbose: bool) -> None:
        seen.append((quiet, verbose))
        raise UsageError("enough")

    monkeypatch.setattr(report_verb, "device_tables", looked)
    assert main(["report", "--db", db, "-v", "--out", str(tmp_path / "out")]) == 2 and seen == [(False, True)]


@pytest.mark.parametrize("verb", ["evaluate", "report"])
def test_a_family_that_the_store_has_not_is_refused_with_those_that_it_has(
    db: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"report": ["--out", str(tmp_path / "out")], "evaluate": ["--target", "a4000"]}
    assert main([verb, "--db", db, "--family", "nope", *words[verb]]) == 2
    assert "no records of --family nope; the store has cpu_dense_fp32" in capsys.readouterr().err


def test_a_page_that_cannot_be_written_is_said_before_the_records_are_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "folder").mkdir()
    for out, message in ((tmp_path / "folder", "is a folder"), (tmp_path / "none" / "x", "there is no folder")):
        assert main(["report", "--db", "sqlite:////no/such/store.db", "--out", str(out)]) == 2
        err = capsys.readouterr().err
        assert "--out" in err and message in err
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
