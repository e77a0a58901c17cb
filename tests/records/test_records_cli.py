"""The `records` verbs, as a shell sees them."""

from __future__ import annotations

import json
import sqlite3
import statistics
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from haotuner.cli.records import records_app
from haotuner.errors import EnvironmentMissing, HaotunerError, RecordsUnusable, UnknownDevice, UsageError
from haotuner.records import open_store
from haotuner.spec.record import Timed
from tests.contract.record_examples import record
from tests.records.test_records_import import cache, gemm_row

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
    (entry,) = document["files"]
    assert entry["device_id"] == "titan-rtx", "through the aliases of the device profiles"
    assert entry["refused"] == {"a time is zero or negative": 1}
    assert (entry["rows"], entry["timed"], entry["failed"], entry["new"]) == (3, 1, 1, 2)
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


def document_of(*words: object) -> tuple[dict[str, Any], HaotunerError]:
    """The JSON of an import that fails, and the error that becomes its exit code."""
    result = CliRunner().invoke(records_app, ["import", *(str(word) for word in words), "--json"])
    assert isinstance(result.exception, HaotunerError), result.output
    return json.loads(result.stdout), result.exception


def test_a_file_that_does_not_come_in_keeps_no_other_out(db, gemm, tmp_path):
    odd, last = tmp_path / "odd.json", tmp_path / "last.json"
    odd.write_text(json.dumps(cache([gemm_row()], device_name="Voodoo 2")))
    last.write_text(json.dumps(cache([gemm_row(20.0)])))
    document, error = document_of(gemm, odd, tmp_path / "none.json", last, "--db", db)
    sound, unknown, missing, more = document["files"]
    assert (sound["new"], more["new"]) == (2, 1)
    assert (unknown["path"], unknown["exit_code"], missing["exit_code"]) == (str(odd), 2, 2)
    assert "odd.json: unknown device 'Voodoo 2'" in unknown["error"]
    assert error.exit_code == 2, "the first one's"
    assert "2 of 4 files were not imported" in str(error) and "none.json" in str(error)
    (group,) = json.loads(run("list", "--db", db, "--json"))["groups"]
    assert group["timed"] == 2
    result = CliRunner().invoke(records_app, ["import", str(odd), str(last), "--db", db])
    assert "last.json: 1 rows" in result.stdout


def test_a_file_tells_its_own_format(db, gemm, tmp_path):
    run("import", gemm, "--db", db)
    folder = tmp_path / "both"
    folder.mkdir()
    run("export", folder / "out.jsonl", "--db", db, "-q")
    gemm.rename(folder / gemm.name)
    other = f"sqlite:///{tmp_path}/other.db"
    assert len(json.loads(run("import", folder, "--db", other, "--json"))["files"]) == 2
    with_ids = [[r.id for r in open_store(url, write=False).records()] for url in (db, other)]
    assert with_ids[0] == with_ids[1]
    (tmp_path / "x.csv").write_text("m,n,k,time\n1,2,3,4.0\n")
    with pytest.raises(UsageError, match=r"What comes in: Kernel Tuner's caches, and JSON Lines as"):
        run("import", tmp_path / "x.csv", "--db", db)


def test_one_file_that_does_not_come_in_is_told_as_itself(db, tmp_path):
    document, error = document_of(tmp_path / "none.json", "--db", db)
    (entry,) = document["files"]
    assert entry == {"path": str(tmp_path / "none.json"), "error": str(error), "exit_code": 2}


@pytest.mark.parametrize("content", [None, "", "[]", cache([gemm_row(0.0)]), cache([gemm_row()], device_name="cpu")])
@pytest.mark.parametrize("form", ["kernel-tuner", "jsonl"])
def test_a_wrong_file_makes_no_store(db, tmp_path, content, form):
    path = tmp_path / "x.json"
    if content is not None:
        path.write_text(content if isinstance(content, str) else json.dumps(content))
    with pytest.raises((UsageError, EnvironmentMissing), match=r"x\.json"):
        run("import", path, "--db", db, "--format", form)
    assert [p.name for p in tmp_path.iterdir()] == (["x.json"] if content is not None else [])


def test_options_that_are_wrong_are_told_once_and_before_any_file_is_read(db, gemm, tmp_path):
    for words, match in ((("--device", "nope"), "unknown device 'nope'"), (("--mapping", "nope"), "unknown mapping 'nope'")):
        with pytest.raises(UsageError, match=match) as caught:
            run("import", gemm, tmp_path / "none.json", "--db", db, *words)
        assert "none.json" not in str(caught.value)
    with pytest.raises(UsageError, match="clblast_xgemm runs on GPUs, and 'xeon-8380'"):
        run("import", gemm, "--db", db, "--device", "xeon-8380")
    assert list(tmp_path.iterdir()) == [gemm]


def test_a_store_that_breaks_ends_the_import_and_is_told(db, gemm, tmp_path, monkeypatch):
    last = tmp_path / "last.json"
    last.write_text(json.dumps(cache([gemm_row(20.0)])))

    def full(*_: object) -> int:
        raise RecordsUnusable("records: the disk is full")

    monkeypatch.setattr("haotuner.records.sqlite.SqliteStore.append", full)
    document, error = document_of(gemm, last, "--db", db)
    assert [entry["error"] for entry in document["files"]] == ["records: the disk is full"]
    assert error.exit_code == 1


def test_a_column_that_no_record_can_hold_is_told(db, tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps(cache([gemm_row(12.5, power=10**400)])))
    assert "dropped from 1 rows: power" in run("import", path, "--db", db)
    (entry,) = json.loads(run("import", path, "--db", db, "--json"))["files"]
    assert entry["dropped"] == {"power": 1}


def test_export_understands_devices_as_import_does(db, gemm, tmp_path):
    run("import", gemm, "--db", db)
    for at, (name, count) in enumerate([("titan-rtx", 2), ("NVIDIA TITAN RTX", 2), ("h200", 0)]):
        summary = json.loads(run("export", tmp_path / f"{at}.jsonl", "--db", db, "--device", name, "--json"))
        assert summary["records"] == count, name
    with pytest.raises(UnknownDevice, match="--device 'nope': the store has titan-rtx, and no profile goes by that name"):
        run("export", tmp_path / "no.jsonl", "--db", db, "--device", "nope")
    assert not (tmp_path / "no.jsonl").exists()


def test_export_takes_ids_that_only_the_store_knows(db, tmp_path):
    store = open_store(db)
    store.append([record(1, device_id="cpu-of-another-host"), record(2, device_id="h200")])
    store.close()
    output = run("export", tmp_path / "r.jsonl", "--db", db, "--device", "cpu-of-another-host", "--json")
    assert json.loads(output)["records"] == 1


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
    (entry,) = json.loads(run("import", SHARED / f"{name}.json.gz", "--db", db, "--json"))["files"]
    assert (entry["device_id"], entry["op"], entry["timed"], entry["failed"]) == (device, op, timed, failed)
    assert (entry["refused"], entry["torn"], entry["new"]) == ({}, "", timed + failed)
    store = open_store(db, write=False)
    means = [statistics.fmean(r.outcome.samples_us) for r in store.records() if isinstance(r.outcome, Timed)]
    assert min(means) / 1000 == pytest.approx(best_ms, abs=0.0006), "the tool's own `time` is the mean"
    store.close()


def store_of(path: Path, *extents: int) -> str:
    url = f"sqlite:///{path}"
    with closing(open_store(url)) as store:
        store.start("f", what=path.stem)
        store.append([record(m) for m in extents])
    return url


def test_merge_brings_stores_into_one_and_leaves_the_sources(tmp_path):
    left, right = store_of(tmp_path / "left.db", 1, 2), store_of(tmp_path / "right.db", 2, 3)
    into = f"sqlite:///{tmp_path}/all.db"
    text = run("merge", into, left, right)
    assert "left.db: 2 records, 2 new, 1 new sessions" in text and "right.db: 2 records, 1 new" in text
    document = json.loads(run("merge", into, left, right, "--json"))
    assert [(source["records"], source["new"], source["sessions"]) for source in document["sources"]] == [(2, 0, 0)] * 2
    assert run("merge", into, left, "-q") == "" and run("check", "--db", into).endswith("sound\n")
    with closing(open_store(into, write=False)) as store:
        assert [r.trial.shape["m"] for r in store.records()] == [1, 2, 3]
        assert [session.what for session in store.sessions()] == ["left", "right"]


def test_a_merge_with_a_wrong_source_makes_no_new_store(tmp_path):
    left, into = store_of(tmp_path / "left.db", 1), tmp_path / "all.db"
    (tmp_path / "damaged.db").write_bytes(b"no database" * 100)
    for source, error in (
        (f"sqlite:///{tmp_path}/absent.db", RecordsUnusable),
        (f"sqlite:///{tmp_path}/damaged.db", RecordsUnusable),
        ("mysql://host/db", UsageError),
    ):
        with pytest.raises(error):
            run("merge", f"sqlite:///{into}", left, source)
        assert not into.exists()
    (tmp_path / "link.db").symlink_to(tmp_path / "left.db")
    with pytest.raises(UsageError, match="also the store that receives"):
        run("merge", left, f"sqlite:///{tmp_path}/link.db")


def test_a_merge_stops_at_a_changed_row_and_a_later_merge_completes_it(tmp_path):
    right, into = store_of(tmp_path / "right.db", 1, 2), f"sqlite:///{tmp_path}/all.db"
    with closing(sqlite3.connect(tmp_path / "right.db")) as db, db:
        (seed,) = db.execute("SELECT seed FROM record WHERE seq = 2").fetchone()
        db.execute("UPDATE record SET seed = 99 WHERE seq = 2")
    with pytest.raises(RecordsUnusable, match="row 2"):
        run("merge", into, right)
    with closing(sqlite3.connect(tmp_path / "right.db")) as db, db:
        db.execute("UPDATE record SET seed = ? WHERE seq = 2", (seed,))
    run("merge", into, right)
    with closing(open_store(into, write=False)) as store:
        assert len(list(store.records())) == 2 and store.check() == ()
