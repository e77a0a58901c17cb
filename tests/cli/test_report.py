"""`haotuner report`: panels hold what packs, stores and races hold; texts of others stay texts; wrong input has words."""

from __future__ import annotations

import base64
import gzip
import json
import re
import shutil
from collections.abc import Mapping
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from haotuner.cli.pages import document as page_document
from haotuner.cli.pages.document import document_of, html_of
from haotuner.cli.pages.figures import cleaned
from haotuner.cli.pages.op_panels import kernel_map, plans_of
from haotuner.cli.pages.sources import Sources, documents_of, opened
from haotuner.cli.terminal_plot import has_plotext
from haotuner.errors import EnvironmentMissing, PackInvalid, RecordsUnusable, UsageError
from haotuner.records import SqliteStore
from haotuner.records.codec import trial_of
from haotuner.spec.record import Failed, Record
from haotuner.spec.shape import Shape
from tests.cli.command import haotuner
from tests.contract.record_examples import record

needs_plotly = pytest.mark.skipif(find_spec("plotly") is None, reason="plotly: not installed")
HOSTILE = "</script><img src=x onerror=alert(1)>\"'&amp;{{DATA}}\u202egnp"
Tuned = tuple[Path, Any]


def panel(document: Mapping[str, Any], page: str, title: str) -> Any:
    (own,) = (item for item in document["pages"] if item["title"] == page)
    return next(item for item in own["panels"] if item["title"] == title)


def hostile_store(folder: Path) -> Path:
    """A store whose texts try to leave their place, of two devices."""
    path = folder / "r.db"
    every = [
        Record(
            trial=trial_of(op=f"conv {HOSTILE}", kernel="k__a1_b2", shape=Shape.of(m=m)),
            outcome=record(m, us=float(m)).outcome if m < 4 else Failed(stage="build", reason="error", detail=HOSTILE),
            device_id=f"{device} {HOSTILE}", fingerprint="f", session=HOSTILE, when=1.7e9 + m,
        )
        for device in ("one", "two") for m in range(1, 6)
    ]  # fmt: skip
    with closing(SqliteStore(path)) as store:
        store.start(HOSTILE, what=HOSTILE)
        store.append(every)
    return path


def held(html: str) -> Any:
    """The document that a file holds."""
    text = re.search(r'id="data">([^<]*)</script>', html)
    assert text is not None
    return json.loads(gzip.decompress(base64.b64decode(text[1])))


@needs_plotly
def test_texts_of_others_are_no_markup(tmp_path: Path) -> None:
    with opened([str(hostile_store(tmp_path))]) as sources:
        html = html_of(document_of(sources, f"{HOSTILE}.db"))
    assert "<img" not in html.partition('id="library"')[0] and "\u202e" not in html
    assert html.count("</script>") == 3 and html.count("<script") == 3
    assert "&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;&quot;&#x27;&amp;amp;{{DATA}}" in html, "the title, escaped"
    document = held(html)
    assert document["title"].startswith("haotuner report: </script><img")
    logs = panel(document, "Failures", "Logs")["tables"][""]["rows"]
    assert logs[0][1].startswith("</script><img") and "\\u202e" in logs[0][1]


@needs_plotly
def test_the_file_asks_nothing_of_a_network(tmp_path: Path) -> None:
    html = html_of(document_of(Sources(), "nothing"))
    page = re.sub(r'(id="(data|library)">)[^<]*', r"\1", html)
    assert re.findall(r"""(?:src|href)\s*=\s*["'](?!data:|#)[^"']*""", page) == []
    assert "default-src 'none'" in page and "http" not in page.replace("http-equiv", "")
    assert "sendChartToCloud" not in page and "modeBarButtons" in page, "buttons of Plotly are listed one by one"
    assert len(html) < 2.2e6


def test_a_report_of_nothing_says_what_to_name() -> None:
    document = document_of(Sources(), "nothing")
    assert [page["title"] for page in document["pages"]] == ["Overview", "Search", "Failures"]
    for page in document["pages"]:
        for item in page["panels"]:
            assert not item["figures"] and item["missing"][""], item["title"]


def test_an_empty_store_says_that_it_is_empty(tmp_path: Path) -> None:
    SqliteStore(tmp_path / "r.db").close()
    with opened([f"sqlite:///{tmp_path}/r.db"]) as sources:
        document = document_of(sources, "r.db")
    assert "no record yet" in panel(document, "Search", "Best so far")["missing"][""]
    assert "nothing failed" in panel(document, "Failures", "Logs")["missing"][""]


def test_a_curve_that_never_fell_has_an_axis_of_its_height(tmp_path: Path) -> None:
    for name, every in (
        ("flat", [record(1)]),
        ("falls", [record(1, us=9.0), record(1, us=3.0, session="t")]),
    ):
        with closing(SqliteStore(tmp_path / f"{name}.db")) as store:
            store.append(every)
        with opened([str(tmp_path / f"{name}.db")]) as sources:
            (figure,) = panel(document_of(sources, "r"), "Search", "Best so far")["figures"].values()
        assert ("range" in figure["layout"]["yaxis"]) == (name == "flat")


def test_devices_stand_side_by_side(tmp_path: Path) -> None:
    every = [record(m, us=us * m, device_id=device) for device, us in (("near", 1.0), ("far", 3.0)) for m in (1, 2, 4)]
    with closing(SqliteStore(tmp_path / "r.db")) as store:
        store.append(every)
    with opened([str(tmp_path / "r.db")]) as sources:
        (figure,) = panel(document_of(sources, "r"), "Devices", "Devices side by side")["figures"].values()
    assert {trace["name"]: trace["x"] for trace in figure["data"]} == {"far": [1, 2, 4], "near": [1, 2, 4]}
    assert figure["data"][0]["y"] == pytest.approx([3.05, 6.05, 12.05])


def test_a_pack_shows_its_plan_and_its_records(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tuned[0])
    with opened(["pack"]) as sources:
        (plan,) = plans_of(sources)
        document = document_of(sources, "pack")
        shares = kernel_map(plan)
        expected = plan.facts["predicted_us"]
    data = panel(document, "Operators", "Time over shape")["figures"][plan.choice]["data"]
    lines = {trace["name"]: trace for trace in data}
    assert {"plan, as expected", "roofline"} <= lines.keys()
    for m, us in zip(lines["plan, as expected"]["x"], lines["plan, as expected"]["y"], strict=True):
        timed = plan.measured.get(Shape.of(m=m), {}).values()
        assert us == pytest.approx(expected[m - 1], rel=1e-3) or any(us == pytest.approx(time, rel=1e-3) for time in timed)
    for at in range(len(shares["data"][0]["x"])):
        assert sum(trace["y"][at] for trace in shares["data"]) == pytest.approx(100)
    funnel = panel(document, "Operators", "Selection")["figures"][plan.choice]["data"][0]
    stages = dict(zip(funnel["y"], funnel["x"], strict=True))
    assert (
        stages["in the pack"] == len(plan.entry.kernels) and stages["points"] >= stages["legal"] >= stages["on the frontier"]
    )
    rows = panel(document, "Search", "Records")["tables"][""]["rows"]
    assert "dense_n48_k32" in {row[1] for row in rows}
    calibrated = panel(document, "Search", "Predicted and measured")["figures"][""]
    assert all(us > 0 for trace in calibrated["data"] for us in (*trace["x"], *trace["y"]))
    assert json.dumps(cleaned(document)) == json.dumps(document), "texts and numbers are clean"


def test_a_pack_against_itself_gains_nothing(tuned: Tuned, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tuned[0])
    with opened(["pack"]) as own, opened(["pack"]) as other:
        document = document_of(own, "new", (other, "old"))
    for row in panel(document, "Compare", "Summary")["tables"][""]["rows"]:
        assert (row[1], row[2], row[3]) == ("1.000x", "0", "0")
    for figure in panel(document, "Compare", "Gains and losses by shape")["figures"].values():
        assert all(y == 1 for trace in figure["data"] for y in trace["y"])


def test_a_ratio_over_one_means_that_the_first_is_faster(tmp_path: Path) -> None:
    paths = {"fast": 1.0, "slow": 2.0}
    for name, us in paths.items():
        rows = [race_row(m, us * m) for m in (1, 8)]
        (tmp_path / f"{name}.json").write_text(json.dumps({"rows": rows}))
    with opened([str(tmp_path / "fast.json")]) as own, opened([str(tmp_path / "slow.json")]) as other:
        document = document_of(own, "fast", (other, "slow"))
    (row,) = panel(document, "Compare", "Summary")["tables"][""]["rows"]
    assert row == ["as raced", "2.000x", "2", "0", "0"]


def race_row(m: int, us: float) -> dict[str, Any]:
    return {"op": "dense_n48_k32", "shape": {"m": m}, "threads": 1, "weights": "cold", "ours_us": us,
            "peers_us": {"numpy": 3 * us}, "regret": None, "contended": False}  # fmt: skip


def test_packs_with_the_same_ops_are_shown_apart(tuned: Tuned, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("avx2", "sse")]
    for path in paths:
        shutil.copytree(tuned[0] / "pack", path)
    elsewhere = {"rows": [race_row(4, 2.0)], "device": {"id": "of another host"}}
    (tmp_path / "bench.json").write_text(json.dumps(elsewhere))
    with opened([*map(str, paths), str(tmp_path / "bench.json")]) as sources:
        document = document_of(sources, "both")
        compared = document_of(sources, "both", (sources, "both"))
    (page,) = (page for page in document["pages"] if page["title"] == "Operators")
    assert page["choices"] == ["dense_n48_k32, threads: 1, avx2", "dense_n48_k32, threads: 1, sse"]
    for shown in page["panels"][:3]:
        assert list(shown["figures"]) == page["choices"], shown["title"]
    drawn = [trace["name"] for trace in page["panels"][0]["figures"][page["choices"][0]]["data"]]
    assert "numpy" not in drawn, "a race of another device"
    assert [row[1] for row in panel(compared, "Compare", "Summary")["tables"][""]["rows"]][:1] == ["1.000x"]


def test_peers_stand_beside_the_plan(tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tuned[0])
    (tmp_path / "bench.json").write_text(json.dumps({"rows": [race_row(4, 2.0), race_row(16, 5.0)]}))
    with opened(["pack", str(tmp_path / "bench.json")]) as sources:
        document = document_of(sources, "pack")
    (figure,) = panel(document, "Operators", "Time over shape")["figures"].values()
    (peer,) = (trace for trace in figure["data"] if trace["name"] == "numpy")
    assert (peer["x"], peer["y"]) == ([4, 16], [6.0, 15.0])
    assert not panel(document, "Operators", "Time over shape")["missing"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "cannot be read as JSON"),
        ("[" * 100_000, "cannot be read as JSON"),
        ("[1, 2]", "holds no rows"),
        ('{"rows": []}', "holds no rows"),
        (json.dumps({"rows": [race_row(1, 1.0) | {"shape": {"m": "x"}}]}), "of another type"),
        (json.dumps({"rows": [race_row(1, 1.0) | {"peers_us": 3}]}), "must be an object"),
        ('{"steps": [{"what": "a", "makes": "b", "us": 1, "do": "c"}]}', "names no model"),
    ],
)
def test_a_file_that_is_no_document_is_refused(text: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UsageError, match=words):
        documents_of(tmp_path / "a.json")


def test_sources_that_are_none_are_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "a.txt").write_text("text")
    (tmp_path / "broken.db").write_bytes(b"SQLite format 3\0" * 100)
    for name, error, words in (
        ("nothing", UsageError, "is not there"),
        ("a.txt", UsageError, "of no kind"),
        ("empty", PackInvalid, "not a haotuner pack"),
        ("broken.db", RecordsUnusable, "records:"),
        ("missing.db", RecordsUnusable, "does not exist"),
        ("mysql://me:secret@host/db", UsageError, "not built"),
    ):
        with (
            pytest.raises(error, match=words) as refused,
            opened([name if "://" in name else str(tmp_path / name)]),
        ):
            pass
        assert "secret" not in str(refused.value)
    SqliteStore(tmp_path / "r.db").close()
    with pytest.raises(UsageError, match="has no session"), opened([str(tmp_path / "r.db")], "s"):
        pass


def test_a_damaged_pack_is_refused(tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "pack").mkdir()
    for name in ("manifest.json", "manifest.sha256"):
        (tmp_path / "pack" / name).write_bytes((tuned[0] / "pack" / name).read_bytes())
    with opened([str(tmp_path / "pack")]) as sources:  # its library is gone: what the manifest says is shown
        document = document_of(sources, "pack")
    assert "was not loaded" in next(iter(panel(document, "Operators", "Kernels over shape")["missing"].values()))
    (tmp_path / "pack" / "manifest.json").write_bytes(b"{}")
    with pytest.raises(PackInvalid), opened([str(tmp_path / "pack")]):
        pass


def test_a_store_beside_a_pack_that_is_damaged_is_left_out_and_said(tuned: Tuned, tmp_path: Path) -> None:
    (tmp_path / "pack").symlink_to(tuned[0] / "pack")
    (tmp_path / "pack.records.db").write_bytes(b"no database" * 100)
    with opened([str(tmp_path / "pack")]) as sources:
        document = document_of(sources, "pack")
    rows = panel(document, "Overview", "Sources")["tables"][""]["rows"]
    assert any(row[0] == "not read" and "records:" in row[1] for row in rows)


@needs_plotly
def test_the_command_writes_one_file(tuned: Tuned, cache: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    answer = haotuner("report", "pack", "--out", str(out), "--json", cache=cache, cwd=tuned[0])
    assert answer.code == 0, answer.err
    document = answer.json()
    assert document["bytes"] == len(out.read_text()) < 5 << 20 and "Operators" in document["pages"]
    assert {row["panel"] for row in document["missing"]} >= {"Time over shape"}
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    for words, code in (
        (("report",), 2),
        (("report", "nothing", "--out", str(out)), 2),
        (("report", "pack", "--out", str(tmp_path / "no" / "x.html")), 2),
        (("report", "pack", "--compare", "nothing", "--out", str(out)), 2),
    ):
        refused = haotuner(*words, cache=cache, cwd=tuned[0])
        assert refused.code == code and "Traceback" not in refused.err


def test_without_plotly_there_is_a_word_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_document, "find_spec", lambda _: None)
    with pytest.raises(EnvironmentMissing, match=r"plotly.*pip install '.\[report\]'"):
        page_document.plotly_source()


@pytest.mark.skipif(not has_plotext(), reason="plotext: not installed")
def test_explain_draws_time_over_shape(tuned: Tuned, cache: Path) -> None:
    answer = haotuner("explain", "pack", "--plot", cache=cache, cwd=tuned[0])
    assert answer.code == 0, answer.err
    assert "dense_n48_k32, threads: 1" in answer.out and "roofline" in answer.out
    assert "m across, time of a call up, in µs" in answer.out
    assert "\x1b" not in answer.out
    for words in (("--plot", "--shape", "m=3"), ("--plot", "--json"), ("--plot", "--op", "dense_n1_k1")):
        assert haotuner("explain", "pack", *words, cache=cache, cwd=tuned[0]).code == 2
