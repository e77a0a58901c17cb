"""The transfer verbs as a user runs them, on a store of made-up devices that have real profiles."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli import transfer as verbs
from haotuner.cli.app import run
from haotuner.cli.output_path import check_output_path, plots_beside
from haotuner.cli.transfer_input import known_device
from haotuner.errors import UnknownDevice, UsageError
from haotuner.hw_profiles.find import find_device
from haotuner.records.address import open_store
from haotuner.spec.record import Record
from haotuner.transfer.models_shipped import models_shipped
from tests.judgement.transfer_examples import WIDE, records

pytestmark = pytest.mark.long

IDS = ("titan-rtx", "a4000", "rtx-3090")  # any ids of profiles: the records are of made-up CPU kernels


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('transfer') / 'r.db'}"
    store = open_store(url, write=True)
    rows: list[Record] = []
    for seed, name in enumerate(IDS):
        device = find_device(name, measure=False).id
        rows += [replace(row, device_id=device) for row in records(WIDE, seed=seed)]
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


def test_fit_refuses_a_target_on_which_the_kernels_do_not_run(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["transfer", "fit", "--db", db, "--target", "xeon-8380", "--out", str(tmp_path / "model")]) == 2
    said = capsys.readouterr().err
    assert "its kernels do not run on xeon-8380, which is another kind of machine" in said
    assert not (tmp_path / "model").exists()


def test_report_writes_a_page_and_prints_one_json_document(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page"
    words = ["--samples", "0,16", "--seeds", "1", "--jobs", "1", "--numbers", str(tmp_path / "numbers"), "-q", "--json"]
    assert run(["transfer", "report", "--db", db, "--out", str(page), *words]) == 0
    document = json.loads(capsys.readouterr().out)
    assert set(document["families"]["cpu_dense_fp32"]["splits"]["device"]) == set(IDS)
    assert "haotuner transfer report --db URL --out page --seeds 1 --samples 0,16" in page.read_text()
    # two splits and a learning curve each, the architecture left out where another device is of it, a fold a pair
    assert len((tmp_path / "numbers").read_text().splitlines()) == 3 * len(IDS) + 2 + 6
    assert [path.name for path in sorted(tmp_path.iterdir())] == ["numbers", "page"]


def test_report_without_a_page_prints_a_summary(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--samples", "0,16", "--seeds", "1", "--jobs", "1", "--split", "architecture", "-q"]
    assert run(["transfer", "report", "--db", db, *words]) == 0
    printed = capsys.readouterr().out
    assert "device out\n" not in printed and "half of the configurations" not in printed
    for said in ("whole architecture out", "oracle of opinions", "by the number of source devices", "titan-rtx", "worst"):
        assert said in printed


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
    assert run(["transfer", "report", "--data", str(tmp_path / "data"), *words]) == 0
    printed = capsys.readouterr()
    assert set(json.loads(printed.out)["families"]["kt_conv2d"]["devices"]) == {"a4000", "titan-rtx"}
    assert "left out" in printed.err and "other.json" in printed.err
    (unknown,) = [line for line in printed.err.splitlines() if "A4001" in line and "unknown device" in line]
    assert "a4000" in unknown, "the nearest names"
    assert f"{titan}: left out 1: a time is zero or negative" in printed.err and f"{a4000}: cut short: " in printed.err


def test_a_host_whose_model_ships_is_known_by_its_id() -> None:
    one = models_shipped().models[0]
    assert known_device(one.device.id).id == one.device.id
    with pytest.raises(UnknownDevice, match="no-such-host"):
        known_device("no-such-host")


def test_report_reads_a_store_or_a_folder_and_not_both_or_none(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = ["--out", str(tmp_path / "page.md")]
    for words, said in (
        ([], "either --db URL, a record store, or --data FOLDER"),
        (["--db", db, "--data", str(tmp_path)], "either --db URL, a record store, or --data FOLDER"),
        (["--data", str(tmp_path / "none")], "is no folder"),
        (["--data", str(tmp_path)], "holds no Kernel Tuner cache file that can be used: it holds no *.json"),
        (["--db", db, "--split", "week"], "--split week is none of device, architecture, device-and-configs"),
    ):
        assert run(["transfer", "report", *words, *out]) == 2
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--target", "no-such-device"], "unknown device"),
        (["--target", "h200"], "transfer to h200 needs records of it"),
        (["--target", "a4000", "--samples", "many"], "--samples 'many': write counts"),
        (["--target", "a4000", "--split", "week"], "unknown split"),
        (["--target", "a4000", "--family", "none"], "no records of --family none; the store has cpu_dense_fp32"),
    ],
)
def test_wrong_questions_are_usage_errors(db: str, words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", "evaluate", "--db", db, *words]) == 2
    assert said in capsys.readouterr().err


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["transfer", "evaluate", "--target", "a4000", "--db", f"sqlite:///{tmp_path / 'none.db'}"]) in (1, 2, 4)
    assert "none.db" in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["fit", "evaluate", "report"])
def test_a_family_that_the_store_has_not_is_refused_with_those_that_it_has(
    db: str, verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = {"fit": ["--target", "a4000", "--out", str(tmp_path / "out")], "report": ["--out", str(tmp_path / "out")]}
    words["evaluate"] = ["--target", "a4000"]
    assert run(["transfer", verb, "--db", db, "--family", "nope", *words[verb]]) == 2
    assert "no records of --family nope; the store has cpu_dense_fp32" in capsys.readouterr().err


def in_the_way(folder: Path) -> dict[str, str]:
    (folder / "folder").mkdir()
    (folder / "file").touch()
    os.mkfifo(folder / "pipe")
    return {
        **{"": "names no file", ".": "names no file", "/": "names no file"},
        **{str(folder / "folder"): "is a folder", str(folder / "pipe"): "is a device or a pipe"},
        **{str(folder / part / "x"): "there is no folder" for part in ("file", "none")},
        **{str(folder / ("n" * 300)): "File name too long", str(folder / ("n" * 252)): "File name too long"},
    }


@pytest.mark.parametrize("verb", ["fit", "report"])
def test_a_place_that_cannot_be_written_is_said_before_the_records_are_read(
    tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    places = in_the_way(tmp_path)
    before = sorted(tmp_path.iterdir())
    target = ["--target", "a4000"] if verb == "fit" else []
    for out, said in places.items():
        assert run(["transfer", verb, "--db", "sqlite:////no/such/store.db", *target, "--out", out]) == 2
        err = capsys.readouterr().err
        assert "--out" in err and said in err
    assert sorted(tmp_path.iterdir()) == before and (tmp_path / "pipe").is_fifo()


def test_a_place_that_can_be_written_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "old").write_text("kept")
    for name in ("new", "old"):
        check_output_path(tmp_path / name)
    assert [path.read_text() for path in tmp_path.iterdir()] == ["kept"]


def test_the_plots_of_a_page_never_take_its_name(tmp_path: Path) -> None:
    for name, folder in {"a.md": "a", "a": "a-plots", ".md": ".md-plots"}.items():
        assert plots_beside(tmp_path / name) == tmp_path / folder
    (tmp_path / "a").touch()
    with pytest.raises(UsageError, match="its plots go into the folder .*a, which is a file"):
        plots_beside(tmp_path / "a.md")


def test_ctrl_c_ends_with_3_and_a_word(db: str, monkeypatch: Any, capsys: pytest.CaptureFixture[str]) -> None:
    def interrupted(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(verbs, "read_store", interrupted)
    assert run(["transfer", "evaluate", "--target", "a4000", "--db", db]) == 3
    assert capsys.readouterr().err.strip() == "haotuner: stopped"


def test_verbose_says_what_was_read_and_what_the_gauge_saw(
    db: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["transfer", "fit", "--db", db, "--target", "a4000", "--out", str(tmp_path / "model")]
    for more in ([], ["-v"], ["-v", "-q"]):
        assert run([*words, *more]) == 0
        err = capsys.readouterr().err
        assert ("cpu_dense_fp32 on titan-rtx: 280 rows of 2 tasks" in err) == (more == ["-v"])
        assert ("held out: residual 0." in err and "from-scratch 0." in err) == (more == ["-v"])


def test_verbose_tells_every_step_of_an_evaluation(db: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["transfer", "evaluate", "--db", db, "--target", "a4000", "--samples", "0", "--seeds", "2"]
    assert run([*words, "--json", "--verbose"]) == 0
    printed = capsys.readouterr()
    assert json.loads(printed.out) and all(f"seed {at} of 2" in printed.err for at in (1, 2))


def test_report_takes_verbose(db: str, tmp_path: Path, monkeypatch: Any) -> None:
    seen = []

    def looked(*_: Any, quiet: bool, verbose: bool) -> None:
        seen.append((quiet, verbose))
        raise UsageError("enough")

    monkeypatch.setattr(verbs, "device_tables", looked)
    assert run(["transfer", "report", "--db", db, "-v", "--out", str(tmp_path / "out")]) == 2 and seen == [(False, True)]
