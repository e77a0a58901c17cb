"""`haotuner bench` as a user runs it, on a pack that was just tuned."""

from __future__ import annotations

import base64
import gzip
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from haotuner.bench.compare import compare, contest_of, facts_of
from haotuner.cli.bench import _shapes
from haotuner.errors import UsageError
from haotuner.pack.manifest import read_manifest
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.cli.command import environment, haotuner
from tests.cli.command import race as race_of
from tests.racing.test_bench_processes import gone
from tests.standin.patience import WALL_S

pytestmark = pytest.mark.long

OP = "dense_n48_k32"
QUICK = ("--seconds-per-row", "0.1")


def test_the_document_has_the_keys_of_the_contract_and_nothing_else_is_printed(tuned, cache, tmp_path):
    pack = tuned[0] / "pack"
    options = ("--peers", "numpy,zentorch", "--shapes", "m=1,7", "--cache-state", "cold,hot", "--json")
    answer = haotuner("bench", str(pack), *options, *QUICK, cache=cache, cwd=tmp_path)
    assert answer.code == 0, answer.err
    document = answer.json()
    assert [(row["op"], row["shape"], row["weights"]) for row in document["rows"]] == [
        (OP, {"m": 1}, "cold"), (OP, {"m": 7}, "cold"), (OP, {"m": 1}, "hot"), (OP, {"m": 7}, "hot")]  # fmt: skip
    for row in document["rows"]:
        assert {"threads", "ours_us", "peers_us", "spread", "peak_ratio", "regret", "contended"} <= set(row)
        assert row["failed"] == {} and row["ours_us"] > 0 and row["peers_us"]["numpy"] > 0
        assert 0 < row["peak_ratio"] < 2, "in units of the measured peak"
        assert row["composition"].endswith("@serial")
        assert row["noise"]["ratio"] > 0
    if importlib.util.find_spec("zentorch") is None:
        assert document["missing"] == ["zentorch"]
    summary = document["summary"]
    assert summary["geomean_vs_best"] > 0 and summary["geomean_vs"]["numpy"] > 0
    assert summary["worst"].keys() >= {"op", "shape", "peer", "ratio"}
    assert -5000 < summary["dispatch_ns"] < 1e6
    assert summary["weights"] == "cold" and len(document["groups"]) == 2
    assert "4/4" in answer.err, "one line a row where there is no terminal"


def test_people_get_a_table_and_the_figures(tuned, cache, tmp_path):
    options = ("--peers", "numpy", "--op", "dense:n=48,k=32", "--shapes", "m=1..3", "--cache-state", "hot")
    answer = haotuner("bench", str(tuned[0] / "pack"), *options, *QUICK, "-q", cache=cache, cwd=tmp_path)
    assert answer.code == 0, answer.err
    lines = answer.out.splitlines()
    assert lines[0].split()[:4] == ["op", "shape", "threads", "weights"]
    shapes = [line.split()[1] for line in lines[1 : lines.index("")]]
    assert shapes == ["m=1", "m=2", "m=3"]
    assert "x the best peer at each shape" in answer.out and "noise floor" in answer.out
    assert "2/" not in answer.err


@pytest.mark.parametrize(
    "words, code, message",
    [
        (("--peers", "cublas"), 2, "known are torch, onednn"),
        (("--op", "dense_n7_k7"), 2, "holds no op dense_n7_k7; it holds dense_n48_k32"),
        (("--shapes", "n=4"), 2, "write m=1,5,37"),
        (("--shapes", "m=0"), 2, "start at 1"),
        (("--cache-state", "warm"), 2, "known states are cold, hot"),
        (("--threads", "0"), 2, "--threads '0'"),
        (("--seconds-per-row", "0"), 2, "must be positive"),
        (("--plot", "x.pdf"), 2, "ends in .png"),
        (("--report", "no/such/folder/x.html"), 2, "no/such/folder"),
        (("--plot", "no/such/folder/x.png"), 2, "there is no folder no/such/folder"),
    ],
)
def test_a_request_that_makes_no_sense_is_refused_before_anything_starts(tuned, cache, tmp_path, words, code, message):
    answer = haotuner("bench", str(tuned[0] / "pack"), *words, cache=cache, cwd=tmp_path)
    assert (answer.code, answer.out) == (code, "")
    assert message in answer.err


def test_a_changed_pack_is_refused_and_none_of_its_code_runs(tuned, cache, tmp_path):
    pack = Path(shutil.copytree(tuned[0] / "pack", tmp_path / "pack"))
    library = next((pack / "lib").iterdir())
    data = bytearray(library.read_bytes())
    data[len(data) // 2] ^= 1
    library.write_bytes(data)
    answer = haotuner("bench", str(pack), "--peers", "numpy", cache=cache, cwd=tmp_path)
    assert answer.code == 5 and "sha256" in answer.err
    assert haotuner("bench", str(tmp_path), cache=cache, cwd=tmp_path).code == 5


@pytest.mark.skipif(importlib.util.find_spec("plotly") is None, reason="plotly: not installed")
def test_a_race_writes_the_report_of_the_pack_with_its_peers(tuned, cache, tmp_path):
    options = ("--peers", "numpy", "--op", "dense:n=48,k=32", "--shapes", "m=1,7", "--report", "race.html", "-q")
    answer = haotuner("bench", str(tuned[0] / "pack"), *options, *QUICK, cache=cache, cwd=tmp_path)
    assert answer.code == 0, answer.err
    text = re.search(r'id="data">([^<]*)</script>', (tmp_path / "race.html").read_text())
    assert text is not None
    document = json.loads(gzip.decompress(base64.b64decode(text[1])))
    assert document["title"].endswith("pack, raced") and "numpy" in json.dumps(document["pages"])
    assert [path.name for path in tmp_path.iterdir()] == ["race.html"]


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is not None, reason="matplotlib: it is installed")
def test_plots_need_matplotlib_and_the_message_says_how_to_get_it(tuned, cache, tmp_path):
    answer = haotuner("bench", str(tuned[0] / "pack"), "--plot", "x.png", cache=cache, cwd=tmp_path)
    assert answer.code == 4 and "pip install '.[bench]'" in answer.err


@pytest.mark.skipif(importlib.util.find_spec("matplotlib") is None, reason="matplotlib: not installed")
def test_a_plot_is_a_png(tuned, cache, tmp_path):
    options = ("--peers", "numpy", "--shapes", "m=1,7", "--plot", "x.png", "--json")
    assert haotuner("bench", str(tuned[0] / "pack"), *options, *QUICK, cache=cache, cwd=tmp_path).code == 0
    assert (tmp_path / "x.png").read_bytes().startswith(b"\x89PNG")


def test_ctrl_c_ends_the_race_and_every_process(tuned, cache, tmp_path):
    words = ("bench", str(tuned[0] / "pack"), "--peers", "numpy", "--shapes", "m=1,2,3", "--seconds-per-row", "30")
    race = subprocess.Popen(race_of(*words), cwd=tmp_path, env=environment(cache), stderr=subprocess.PIPE, text=True)
    assert race.stderr is not None
    with race.stderr:
        pids: set[int] = set()
        while len(pids) < 3:  # ours twice, and numpy
            assert race.poll() is None
            time.sleep(0.02)
            pids = children(race.pid)
        race.send_signal(signal.SIGINT)
        assert race.wait(timeout=WALL_S) == 3
        assert "stopped before the first row" in race.stderr.read()
    assert all(gone(pid) for pid in pids)


def test_a_race_stopped_half_way_prints_what_it_has(tuned, cache, tmp_path):
    words = (
        "bench",
        str(tuned[0] / "pack"),
        "--peers",
        "numpy",
        "--shapes",
        "m=1,2,3",
        "--seconds-per-row",
        "1",
        "--json",
    )
    pipe = subprocess.PIPE
    race = subprocess.Popen(race_of(*words), cwd=tmp_path, env=environment(cache), stdout=pipe, stderr=pipe, text=True)
    assert race.stderr is not None
    assert race.stderr.readline().startswith("1/3")
    race.send_signal(signal.SIGINT)
    out, err = race.communicate(timeout=WALL_S)
    assert race.returncode == 3
    assert json.loads(out)["stopped"] and [row["shape"] for row in json.loads(out)["rows"]][0] == {"m": 1}
    assert "of 3 rows were raced" in err


def children(pid: int) -> set[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children")
    return {int(word) for word in listed.read_text().split()} if listed.exists() else set()


def test_a_quick_look_returns_the_same_document(tuned):
    pack = tuned[0] / "pack"
    document = compare(
        pack,
        [Op.parse(OP)],
        [Shape.of(m=2), Shape.of(m=9)],
        [1],
        ["numpy"],
        3.0,
        environment=dict(os.environ),
        weights="hot",
    )
    assert [row["shape"] for row in document["rows"]][0] == {"m": 2}
    assert document["rows"][0]["ours_us"] > 0 and document["rows"][0]["noise"] is None
    assert compare(pack, [Op.parse(OP + "_gelu")], [], [1], ["numpy"], 3.0, environment={})["rows"] == [], (
        "peers compute no epilogue"
    )


def test_what_the_manifest_knows_goes_into_the_document(tuned):
    pack = tuned[0] / "pack"
    plans = read_manifest(pack).ops[0].facts["plans"]["1"]["measured_us"]
    facts = facts_of(pack, None)
    assert facts.tuning_seconds == json.loads((pack / "manifest.json").read_text())["tuning"]["seconds"]
    for m, times in plans.items():
        for name, us in times.items():
            assert facts.regret(OP, int(m), 1, name) == pytest.approx(us / min(times.values()) - 1)
    assert facts.regret(OP, 1, 1, "no such composition") is None
    assert facts.regret(OP, 1, 64, "") is None and facts.regret("dense_n1_k1", 1, 1, "") is None


def test_shapes_not_given_spread_over_the_tuned_range(tuned):
    contest = contest_of(tuned[0] / "pack", environment={})
    extents = [shape["m"] for shape in contest.shapes]
    assert (extents[0], extents[-1]) == (1, 24) and 3 <= len(extents) <= 8
    assert [op.name for op in contest.ops] == [OP]
    with pytest.raises(UsageError, match="it holds dense_n48_k32"):
        contest_of(tuned[0] / "pack", environment={}, ops=[Op.parse("dense_n1_k1")])


def test_a_list_is_raced_whole_a_range_sampled_and_a_trace_at_its_heaviest_shapes(tmp_path):
    def extents(text: str) -> list[int]:
        return [shape["m"] for shape in _shapes(text, [Op.parse(OP)])]

    assert extents("m=" + ",".join(map(str, range(1, 21)))) == list(range(1, 21))
    sampled = extents("m=1..4096")
    assert (sampled[0], sampled[-1]) == (1, 4096) and 3 <= len(sampled) <= 8
    trace = tmp_path / "t.jsonl"
    trace.write_text("\n".join(json.dumps({"m": m, "weight": 100 - m}) for m in range(1, 30)) + "\n")
    assert extents(str(trace)) == list(range(1, 9))
