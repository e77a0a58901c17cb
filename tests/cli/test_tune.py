"""`haotuner tune`: its JSON, its exit codes, what it leaves behind, and what is in its way."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from haotuner.pack.manifest import read_manifest
from haotuner.plan.cover import MAX_KEPT
from tests.cli.command import TINY, haotuner


def digest(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_the_json_has_every_key_of_the_contract(tuned: tuple[Path, Any]) -> None:
    document = tuned[1]
    assert {"pack", "device", "seconds", "stopped", "ops"} <= document.keys()
    (op,) = document["ops"]
    assert {
        "name",
        "kernels",
        "candidates",
        "refused",
        "measured",
        "regret_mean",
        "regret_max",
        "packed_ratio",
        "model",
    } <= op.keys()
    assert op["name"] == "dense_n48_k32"
    assert 1 <= len(op["kernels"]) <= MAX_KEPT and all(isinstance(name, str) for name in op["kernels"])
    assert 0 < op["measured"] <= op["candidates"]
    assert all(isinstance(count, int) and count > 0 for count in op["refused"].values())
    plans = json.loads((tuned[0] / "pack" / "manifest.json").read_text())["ops"][0]["facts"]["plans"]
    timed = any(plan["measured_us"] for plan in plans.values())  # a loaded machine has no time to let compositions contend
    assert timed == (op["regret_mean"] is not None) == (op["regret_max"] is not None)
    assert not timed or 0 <= op["regret_mean"] <= op["regret_max"] + 1e-9
    assert op["packed_ratio"] >= 1
    assert op["model"].keys() == {"pairwise", "best@1", "best@10"}, "a score that too few measurements give is null"
    assert document["started_from"]["model"] and document["unverified"] is False, "a model ships for CPUs"


def test_the_pack_is_all_that_is_left_beside_the_records(tuned: tuple[Path, Any]) -> None:
    folder, _ = tuned
    assert {p.name for p in folder.iterdir()} <= {"pack", "pack.records.db", "pack.records.db-wal", "pack.records.db-shm"}
    assert {p.name for p in (folder / "pack").iterdir()} == {"manifest.json", "manifest.sha256", "lib"}


def test_resume_measures_nothing_that_is_recorded(tuned: tuple[Path, Any], cache: Path, tmp_path: Path) -> None:
    folder, first = tuned
    shutil.copytree(folder, tmp_path / "again")
    answer = haotuner("tune", *TINY, "--budget", "2s", "--json", "--resume", cache=cache, cwd=tmp_path / "again")
    assert answer.code == 0, answer.err
    again = answer.json()
    assert again["reused"] > 0
    assert again["ops"][0]["measured"] >= first["ops"][0]["measured"]


def test_its_own_pack_is_replaced(tuned: tuple[Path, Any], cache: Path, tmp_path: Path) -> None:
    folder, _ = tuned
    shutil.copytree(folder / "pack", tmp_path / "pack")
    before = digest(tmp_path / "pack")
    answer = haotuner("tune", *TINY, "--budget", "1s", "--seed", "1", "-q", cache=cache, cwd=tmp_path)
    assert (answer.code, answer.out, answer.err) == (0, "pack\n", ""), answer.err
    assert digest(tmp_path / "pack") != before
    assert {p.name for p in tmp_path.iterdir() if not p.name.startswith("pack.records")} == {"pack"}


@pytest.mark.parametrize("what", ["file", "folder"])
def test_anything_else_in_the_way_is_exit_2_and_stays(cache: Path, tmp_path: Path, what: str) -> None:
    target = tmp_path / "out"
    if what == "file":
        target.write_text("mine")
    else:
        target.mkdir()
        (target / "thesis.txt").write_text("mine")
    before = digest(tmp_path)
    answer = haotuner("tune", *TINY, "--out", "out", cache=cache, cwd=tmp_path)
    assert answer.code == 2
    assert "--out" in answer.err and "Traceback" not in answer.err
    assert digest(tmp_path) == before or what == "file"
    assert (target if what == "file" else target / "thesis.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["--op", "conv:n=3"], 2, "unknown op kind"),
        (["--op", "dense:n=0,k=3"], 2, "n=0"),
        (["--op", "dense:n=x"], 2, "whole number"),
        (["--op", "dense:n=48,k=32", "--shapes", "m=9..3"], 2, "empty"),
        (["--op", "dense:n=48,k=32", "--shapes", "m=1..4294967296"], 2, "2^31-1"),
        (["--op", "dense:n=48,k=32", "--shapes", "q=1..4"], 2, "axes"),
        (["--op", "dense:n=48,k=32", "--shapes", "none.csv"], 2, "none.csv"),
        (["--op", "dense:n=48,k=32", "--budget", "0s"], 2, "--budget"),
        (["--op", "dense:n=48,k=32", "--budget", "soon"], 2, "--budget"),
        (["--op", "dense:n=48,k=32", "--threads", "0"], 2, "--threads"),
        (["--op", "dense:n=48,k=32", "--threads", "4000"], 2, "--threads"),
        (["--op", "dense:n=48,k=32", "--device", "gtx-banana"], 2, "gtx-banana"),
        (["--op", "dense:n=48,k=32", "--device", "h200"], 2, "h200"),
        (["--op", "dense:n=48,k=32", "--cache-state", "warm"], 2, "--cache-state"),
        (["--op", "dense:n=48,k=32", "--op", "dense:n=48,k=32"], 2, "twice"),
        (["--op", "dense:n=48,k=32", "--workload", "bert_base"], 2, "exclude"),
        (["--workload", "bird"], 2, "bert_base"),
        (["--op", "grouped:g=2,n=48,k=32"], 2, "grouped"),
        (["--op", "dense:n=48,k=32", "--db", "mysql://x"], 2, "mysql"),
        (["--op", "dense:n=48,k=32", "--out", "no/such/folder/pack"], 2, "does not exist"),
        (["--nonsense"], 2, "--nonsense"),
    ],
)
def test_a_wrong_request_says_so_and_writes_nothing(
    cache: Path, tmp_path: Path, words: list[str], code: int, message: str
) -> None:
    answer = haotuner("tune", *words, cache=cache, cwd=tmp_path)
    assert answer.code == code, answer.err
    assert message in answer.err
    assert "Traceback" not in answer.err and answer.out == ""
    assert not list(tmp_path.iterdir())


def test_damaged_records_are_refused_and_kept(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "r.db").write_bytes(b"SQLite format 3\0" + bytes(range(256)) * 40)
    before = digest(tmp_path)
    answer = haotuner("tune", *TINY, "--db", "sqlite:///r.db", cache=cache, cwd=tmp_path)
    assert answer.code == 1, answer.err
    assert "r.db" in answer.err and "Traceback" not in answer.err
    assert digest(tmp_path) == before


def test_a_trace_is_taken_as_traffic(cache: Path, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text(
        "op,m,weight\ndense_n48_k32,3,5\ndense_n48_k32,17,1\nother_n1_k1,9,1\n".replace("other", "dense")
    )
    words = (
        "--op",
        "dense:n=48,k=32",
        "--shapes",
        "t.csv",
        "--peers",
        "none",
        "--threads",
        "1",
        "--budget",
        "3s",
        "--json",
    )
    answer = haotuner("tune", *words, cache=cache, cwd=tmp_path)
    assert answer.code == 0, answer.err
    (op,) = read_manifest(tmp_path / "pack").ops
    assert (op.first_m, op.last_m) == (3, 17)
