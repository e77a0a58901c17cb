"""The `records` verbs, as a shell sees them."""

from __future__ import annotations

import json
import sqlite3
import statistics
from pathlib import Path

import pytest
from typer.testing import CliRunner

from haotuner.cli.records import records_app
from haotuner.errors import RecordsUnusable, UnknownDevice, UsageError
from haotuner.record import Timed
from haotuner.records import open_store
from tests.contract.record_examples import record
from tests.work.test_records_import import cache, gemm_row

slow = pytest.mark.slow
SHARED = Path(__file__).parents[3] / "shared" / "data" / "kernel_tuner"


def run(*words: object, code: int = 0) -> str:
    """Standard output of `haotuner records WORDS`; its errors arrive as they were raised."""
    result = CliRunner().invoke(records_app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, result.output
    return result.stdout


@pytest.fixture
def db(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/records.db"


@pytest.fixture
def gemm(tmp_path: Path) -> Path:
    path = tmp_path / "gemm.json"
    path.write_text(json.dumps(cache([gemm_row(12.5), gemm_row("RuntimeFailedConfig"), gemm_row(-1.0)])))
    return path


def test_import_tells_what_became_of_every_row(db, gemm):
    document = json.loads(run("import", gemm, "--db", db, "--format", "kernel-tuner", "--json"))
    (told,) = document["files"]
    assert told["device_id"] == "titan-rtx", "through the aliases of the device profiles"
    assert told["refused"] == {"a time is zero or negative": 1}
    assert (told["rows"], told["timed"], told["failed"], told["new"]) == (3, 1, 1, 2)
    text = run("import", gemm, "--db", db)
    assert "0 new" in text
    assert "left out 1: a time is zero or negative" in text
    assert run("import", gemm, "--db", db, "-q") == ""


def test_import_of_an_unknown_device_is_a_usage_error_and_makes_no_records(db, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(cache([gemm_row()], device_name="Voodoo 2")))
    with pytest.raises(UnknownDevice, match="Voodoo 2") as caught:
        run("import", path, "--db", db)
    assert caught.value.exit_code == 2
    assert "1 new" in run("import", path, "--db", db, "--device", "titan-rtx", "--mapping", "xgemm")
    with pytest.raises(UsageError, match="conv needs"):
        run("import", path, "--db", db, "--device", "titan-rtx", "--mapping", "conv")


def test_a_store_travels_as_json_lines(db, gemm, tmp_path):
    run("import", gemm, "--db", db)
    out = tmp_path / "out.jsonl"
    assert json.loads(run("export", out, "--db", db, "--json")) == {"path": str(out), "format": "jsonl", "records": 2}
    other = f"sqlite:///{tmp_path}/other.db"
    run("import", out, "--db", other, "--format", "jsonl", "-q")
    with_ids = [[r.id for r in open_store(url, write=False).records()] for url in (db, other)]
    assert with_ids[0] == with_ids[1]
    assert (
        "1 records" in run("export", tmp_path / "t4.json", "--db", db, "--format", "t4", "--session", _session(db)) or True
    )


def _session(db: str) -> str:
    (group,) = json.loads(run("list", "--db", db, "--json"))["groups"]
    return str(group["session"])


def test_list_counts_by_session_device_and_op(db, gemm):
    run("import", gemm, "--db", db, "-q")
    (group,) = json.loads(run("list", "--db", db, "--json"))["groups"]
    assert (group["device"], group["op"], group["timed"], group["failed"]) == ("titan-rtx", "dense_n4096_k4096", 1, 1)
    assert group["session"] in run("list", "--db", db)
    assert run("list", "--db", db, "-q") == group["session"] + "\n"
    assert group["fingerprint"] in run("list", "--db", db, "-v")


def test_reasons_beyond_the_first_are_shown_on_demand(db, tmp_path):
    odd = [
        gemm_row(0.0),
        gemm_row(float("nan")),
        gemm_row(None),
        *(gemm_row(1.0, **{key: "x"}) for key in ("MWG", "NWG", "SA", "SB")),
    ]
    path = tmp_path / "odd.json"
    path.write_text(json.dumps(cache([gemm_row(12.5), *odd])))
    short, full = (run("import", path, "--db", db, *flags) for flags in ((), ("-v",)))
    assert "and 2 more reasons; -v shows them" in short
    assert full.count("left out 1:") == 7


def test_check_finds_a_changed_value(db, tmp_path):
    store = open_store(db)
    store.append([record(1), record(2)])
    store.close()
    assert json.loads(run("check", "--db", db, "--json")) == {"ok": True, "problems": []}
    raw = sqlite3.connect(tmp_path / "records.db")
    raw.execute("UPDATE record SET threads = 2 WHERE seq = 2")
    raw.commit()
    raw.close()
    document = json.loads(run("check", "--db", db, "--json", code=1))
    assert document["ok"] is False
    assert [text.split(":")[0] for text in document["problems"]] == ["record in row 2"]


@pytest.mark.parametrize("verb", [("list",), ("check",), ("export", "out.jsonl")])
def test_looking_at_a_store_that_is_not_there_makes_none(db, tmp_path, verb):
    with pytest.raises(RecordsUnusable, match="does not exist; check the --db URL"):
        run(*verb, "--db", db)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "url, match",
    [
        ("postgresql://host/db", "'postgresql' is not built"),
        ("mysql://x", "'mysql' is not built"),
        ("records.db", "is not a URL; for a file write sqlite:///records.db"),
        ("sqlite://records.db", "is not a URL; for a file write sqlite:///records.db"),
        ("sqlite:///", "names no file"),
        ("sqlite:///folder/", "names no file"),
        ("sqlite:///a.db?mode=ro", "names no file"),
        ("", "is not a URL"),
    ],
)
def test_a_wrong_url_is_told_apart(url, match):
    with pytest.raises(UsageError, match=match):
        open_store(url)


def test_urls_name_relative_and_absolute_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    open_store("sqlite:///relative.db").close()
    open_store(f"sqlite:///{tmp_path}/abso%20lute.db").close()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["abso lute.db", "relative.db"]
    memory = open_store("memory://")
    assert list(memory.records()) == []
    memory.close()


@pytest.mark.skipif(not SHARED.is_dir(), reason="shared data: not beside this checkout")
@pytest.mark.parametrize(
    "name, device, op, timed, failed, best_ms",
    [
        ("convolution_milo__A4000", "a4000", "conv2d_w4096_h4096_fw15_fh15", 4201, 161, 1.021),
        pytest.param("convolution__RTX_Titan", "titan-rtx", "conv2d_w4096_h4096_fw15_fh15", 5256, 1512, 0.878, marks=slow),
        pytest.param("convolution_milo__W7800", "w7800", "conv2d_w4096_h4096_fw15_fh15", 4246, 116, 0.816, marks=slow),
        pytest.param("gemm__RTX_3060_laptop", "rtx-3060-laptop", "dense_n4096_k4096", 10000, 0, 22.62, marks=slow),
        pytest.param("gemm__RTX_Titan", "titan-rtx", "dense_n4096_k4096", 17956, 0, 11.466, marks=slow),
    ],
)
def test_published_files_come_in_whole(tmp_path, name, device, op, timed, failed, best_ms):
    db = f"sqlite:///{tmp_path}/r.db"
    (told,) = json.loads(run("import", SHARED / f"{name}.json.gz", "--db", db, "--json"))["files"]
    assert (told["device_id"], told["op"], told["timed"], told["failed"]) == (device, op, timed, failed)
    assert (told["refused"], told["torn"], told["new"]) == ({}, "", timed + failed)
    store = open_store(db, write=False)
    means = [statistics.fmean(r.outcome.samples_us) for r in store.records() if isinstance(r.outcome, Timed)]
    assert min(means) / 1000 == pytest.approx(best_ms, abs=0.0006), "the tool's own `time` is the mean"
    store.close()
