"""Records out of a store and back, and the `records` verbs."""

from __future__ import annotations

import gzip
import importlib.util
import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.records import MemoryStore
from haotuner.records.codec import encode
from haotuner.records.export import FORMATS, export
from haotuner.records.importing import load_jsonl
from haotuner.spec.record import REASONS, Failed, Record
from tests.contract.record_examples import record
from tests.contract.record_strategies import records

TRIAL = encode(record(1))["trial"]
HAVE_PYARROW = importlib.util.find_spec("pyarrow") is not None


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(batch=st.lists(records, min_size=1, max_size=5, unique_by=lambda r: r.id))
def test_json_lines_read_back_equal(batch, tmp_path):
    path = tmp_path / "records.jsonl"
    assert export(batch, path, "jsonl", replace=True) == len(batch)
    store = MemoryStore()
    done = load_jsonl(path).into(store)
    assert list(store.records()) == batch
    assert (done.new, done.torn, dict(done.refused)) == (len(batch), "", {})
    assert load_jsonl(path).into(store).new == 0


@pytest.mark.parametrize("form", ["jsonl", "t4"])
def test_records_of_a_stand_in_are_not_exported(form, tmp_path):
    rows = [record(1), replace(record(2), device_id="stand-in-sm-80")]
    path = tmp_path / f"records.{form}"
    with pytest.raises(UsageError, match="stand-in-sm-80 are of a stand-in for tests.*not exported"):
        export(rows, path, form)
    assert not list(tmp_path.iterdir())
    assert export(rows[:1], path, form) == 1


def test_json_lines_cut_at_any_byte_give_the_complete_records(tmp_path):
    path = tmp_path / "records.jsonl"
    rows = [record(m) for m in (1, 2, 3)]
    export(rows, path, "jsonl")
    whole = path.read_bytes()
    for size in range(1, len(whole), 7):
        path.write_bytes(whole[:size])
        store = MemoryStore()
        try:
            done = load_jsonl(path).into(store)
        except UsageError as error:
            assert "line 1 is cut short" in str(error)
            continue
        stored = list(store.records())
        assert stored == rows[: len(stored)]
        assert bool(done.torn) == (whole[:size].count(b"\n") == len(stored) and not whole[:size].endswith(b"\n"))


@pytest.mark.parametrize(
    "change, reason",
    [
        ({"schema": 2}, "record schema 2"),
        ({"id": "0" * 32}, "content hash"),
        ({"when": "now"}, "when is 'now'"),
        ({"seed": True}, "seed is True"),
        ({"more": 1}, "unknown keys \\['more'\\]"),
        ({"outcome": {"samples_us": [0.0], "max_error": 0.0}}, "positive"),
        ({"outcome": {"samples_us": [5], "max_error": 0.0}}, "decimal point"),
        ({"outcome": {"stage": "lunch", "reason": "crash", "detail": ""}}, "stage must be one of"),
        ({"trial": []}, "trial must be an object"),
        ({"trial": {**TRIAL, "repeat": 0}}, "repeat is 0"),
        ({"trial": {**TRIAL, "repeat": -1}}, "repeat -1 must be in"),
        ({"trial": {**TRIAL, "repeat": 1.0}}, "repeat is 1.0, of the wrong type"),
        ({"trial": {**TRIAL, "repeat": 1}}, "content hash"),
        ({"facts": {"a": None}}, "fact 'a' is None"),
    ],
)
def test_a_line_that_was_changed_is_counted_under_its_reason(tmp_path, change, reason):
    path = tmp_path / "records.jsonl"
    export([record(1), record(2)], path, "jsonl")
    first, second = path.read_text().splitlines()
    path.write_text(json.dumps({**json.loads(first), **change}) + "\n" + second + "\n")
    store = MemoryStore()
    done = load_jsonl(path).into(store)
    assert list(store.records()) == [record(2)]
    (message,) = done.refused
    assert message.startswith("line 1: ")
    assert re.search(reason, message)


@pytest.mark.parametrize("line", ["nonsense", '{"schema": 1}', "10" * 200, '{"when": ' + "1" * 400 + "}"])
def test_refused_lines_and_failures_alone_are_not_an_import(tmp_path, line):
    path = tmp_path / "records.jsonl"
    export([record(1, outcome=Failed(stage="run", reason="crash"))], path, "jsonl")
    assert load_jsonl(path).into(MemoryStore()).failed == 1, "a file of failures is whole"
    path.write_text(path.read_text() + line + "\n")
    store = MemoryStore()
    with pytest.raises(UsageError, match="records.jsonl: not one timed record, only 1 failed: line 2.*nothing was stored"):
        load_jsonl(path).into(store)
    assert list(store.records()) == []


def test_an_integer_beyond_all_floats_costs_its_line_alone(tmp_path):
    path = tmp_path / "records.jsonl"
    export([record(1), record(2)], path, "jsonl")
    first, second = path.read_text().splitlines()
    path.write_text(json.dumps({**json.loads(first), "facts": {"a": 10**400}}) + "\n" + second + "\n")
    done = load_jsonl(path).into(MemoryStore())
    assert (done.timed, sum(done.refused.values()), done.torn) == (1, 1, "")


def test_json_lines_are_read_gzipped_and_with_a_mark_in_front(tmp_path):
    path = tmp_path / "records.jsonl"
    export([record(1), record(2)], path, "jsonl")
    text = path.read_bytes()
    for written in (gzip.compress(text[:50]) + gzip.compress(text[50:]), b"\xef\xbb\xbf" + text):
        path.write_bytes(written)
        assert (load_jsonl(path).into(MemoryStore()).new, load_jsonl(path).into(MemoryStore()).torn) == (2, "")
    path.write_bytes(gzip.compress(text)[:-12])
    done = load_jsonl(path).into(MemoryStore())
    assert done.new >= 1 and "gzip data ends early" in done.torn


@pytest.mark.parametrize("when", [253402343999.0, -1e12, 1e300])
def test_t4_writes_a_time_beyond_its_calendar_as_unknown(tmp_path, when):
    path = tmp_path / "t4.json"
    assert export([replace(record(1), when=when)], path, "t4") == 1
    assert json.loads(path.read_text())["results"][0]["timestamp"] == "1970-01-01T00:00:00+00:00"


def test_t4_has_what_its_readers_need(tmp_path):
    failures = [record(10 + i, outcome=Failed(stage="run", reason=reason)) for i, reason in enumerate(REASONS)]
    path = tmp_path / "t4.json"
    assert export([record(1, us=2000.0), *failures], path, "t4") == 1 + len(REASONS)
    document = json.loads(path.read_text())
    assert document["schema_version"] == "1.0.0"
    first, *rest = document["results"]
    assert first["configuration"] == {
        **{"kernel": "cpu_dense_fp32__mr6_nr64", "mr": 6, "nr": 64},
        **{"shape_m": 1, "threads": 1, "weights": "cold", "split": "n", "repeat": 0},
    }
    assert first["times"]["runtimes"] == [2.0, pytest.approx(2.0001)]
    assert first["measurements"] == [{"name": "time", "value": pytest.approx(2.00005), "unit": "ms"}]
    assert (first["invalidity"], first["correctness"], first["objectives"]) == ("correct", 1.0, ["time"])
    assert first["timestamp"].startswith("2023-11-14T22:13:21")
    allowed = {"timeout", "compile", "runtime", "correctness", "constraints"}
    assert {result["invalidity"] for result in rest} < allowed
    assert all(result["times"]["runtimes"] == [] for result in rest)


def test_t4_holds_one_op_on_one_device(tmp_path):
    with pytest.raises(
        UsageError, match="one op on one device; choose with --op and --device among dense_n8_k8 on cpu; other"
    ):
        export([record(1), record(2, op="other")], tmp_path / "t4.json", "t4")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(HAVE_PYARROW, reason="pyarrow: is installed, so nothing is missing")
def test_parquet_without_its_library_says_what_to_install(tmp_path):
    with pytest.raises(EnvironmentMissing, match="pip install pyarrow"):
        export([record(1)], tmp_path / "r.parquet", "parquet")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not HAVE_PYARROW, reason="pyarrow: not installed")
def test_parquet_reads_back_as_a_table(tmp_path):
    path = tmp_path / "r.parquet"
    assert export([record(1), record(2, outcome=Failed(stage="run", reason="crash"))], path, "parquet") == 2
    rows = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
    assert [row["samples_us"] for row in rows] == [[10.0, 10.1], None]
    assert [row["reason"] for row in rows] == [None, "crash"]
    assert rows[0]["id"] == record(1).id
    assert json.loads(rows[0]["shape"]) == {"m": 1}


@pytest.mark.skipif(not HAVE_PYARROW, reason="pyarrow: not installed")
def test_parquet_writes_half_a_character_pair_out(tmp_path):
    path = tmp_path / "r.parquet"
    broken = record(1, outcome=Failed(stage="build", reason="compile_error", detail="é \ud800 x"))
    assert export([broken], path, "parquet") == 1
    (row,) = importlib.import_module("pyarrow.parquet").read_table(path).to_pylist()
    assert row["detail"] == "é \\ud800 x"


def test_what_is_in_the_way_stays(tmp_path):
    path = tmp_path / "records.jsonl"
    path.write_text("mine")
    with pytest.raises(UsageError, match="--force"):
        export([record(1)], path, "jsonl")
    assert path.read_text() == "mine"
    with pytest.raises(UsageError, match="is a folder"):
        export([record(1)], tmp_path, "jsonl")
    with pytest.raises(UsageError, match="unknown format 'csv'; known: jsonl, parquet, t4"):
        export([record(1)], tmp_path / "x", "csv")
    with pytest.raises(EnvironmentMissing, match="cannot write"):
        export([record(1)], tmp_path / "no" / "x.jsonl", "jsonl")


@pytest.mark.parametrize("form", [f for f in FORMATS if f != "parquet" or HAVE_PYARROW])
def test_an_export_that_fails_half_way_leaves_the_old_file(tmp_path, form):
    path = tmp_path / "records.out"
    path.write_text("old")

    def broken() -> Iterator[Record]:
        yield record(1)
        raise OSError(28, "No space left on device")

    with pytest.raises(EnvironmentMissing, match="No space left"):
        export(broken(), path, form, replace=True)
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["records.out"]


@pytest.mark.parametrize("what", ["pipe", "link", "dangling link", "folder"])
def test_force_replaces_regular_files_only(tmp_path, what):
    path = tmp_path / "out.jsonl"
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    else:
        path.symlink_to("kept")
    if what == "link":
        (tmp_path / "kept").write_text("mine")
    before = path.lstat()
    with pytest.raises(UsageError, match=f"is a {what.split()[-1]}; name a new file"):
        export([record(1)], path, "jsonl", replace=True)
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert {p.name for p in tmp_path.iterdir()} == {"out.jsonl"} | ({"kept"} if what == "link" else set())


def test_force_does_not_replace_a_device():
    with pytest.raises(UsageError, match="is a device"):
        export([record(1)], Path("/dev/full"), "jsonl", replace=True)
