"""A later pack of whole models that answers slower does not take the place of the one that lies there."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import haotuner
from haotuner.errors import PackInvalid
from haotuner.graph import decompositions
from haotuner.graph.extents import Extent, dimension
from haotuner.graph.graph import Graph, GraphBuilder
from haotuner.pack.folder import MANIFEST
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import as_json, sealed
from haotuner.tuning import publisher as publishing_module
from haotuner.tuning.publisher import Publisher
from haotuner.verify import pack_race
from haotuner.verify.pack_race import (
    KeepPublishedPack,
    Outcome,
    check_not_slower,
    comparable,
    form_times,
    raced_apart,
    ratio,
)
from tests.runtime.model_packs import model_pack
from tests.runtime.native_builds import cc

B, T = dimension("batch"), dimension("seq")
EXPECTED = {"batch=1;seq=2": {"all": 1.0}, "batch=2;seq=60": {"all": 2.0}}


def net(*sizes: Extent) -> Graph:
    g = GraphBuilder()
    return g.finish(decompositions.softmax(g, g.input("x", (*(sizes or (B, T)), 8))))


def with_times(pack: Path, requests: Mapping[str, Any] = EXPECTED, **more: Any) -> Path:
    """The pack with what tuning says of its model in its manifest."""
    document = dict(read_manifest(pack).document)
    document["tuning"] = {**document["tuning"], "models": {"net": {"predicted_us": {"1": requests}}}, **more}
    for name, data in sealed(as_json(document)).items():
        (pack / name).write_bytes(data)
    return pack


@pytest.fixture(scope="module")
def packs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same model by one plan and by another."""
    folder = tmp_path_factory.mktemp("packs")
    first, second = model_pack(folder / "one", {"net": net()}), model_pack(folder / "other", {"net": net()}, exact=False)
    return with_times(first), with_times(second)


@pytest.mark.long
def test_two_packs_are_raced_where_they_mean_the_same(packs, tmp_path):
    pack, other = packs
    assert comparable(pack, other) and comparable(pack, pack) and not comparable(tmp_path / "none", pack)
    for name, change in (("sizes", {"model_ranges": {"net": {"batch": [1, 9]}}}), ("threads", {"models": {}})):
        copy = with_times(shutil.copytree(other, tmp_path / name), **change)
        assert not comparable(pack, copy), name
        check_not_slower(pack, copy, {})
    measured_ratio = raced_apart(pack, other, {}).ratio
    assert measured_ratio is not None and 0.01 < measured_ratio < 100


@pytest.mark.long
def test_packs_of_one_model_are_timed_at_each_request(packs, tmp_path):
    rows = form_times([*packs, packs[0]], {})
    assert rows is not None and len(rows) == 3
    assert all(row.keys() == {("net", sizes) for sizes in EXPECTED} and min(row.values()) > 0 for row in rows)
    assert form_times([packs[0], crashing(packs[1], tmp_path / "fallen")], {}) is None


def test_packs_of_a_model_of_fixed_sizes_are_raced(tmp_path):
    first, second = (
        with_times(model_pack(tmp_path / name, {"net": net(2, 5)}), {"": {"all": 1.0}}) for name in ("first", "second")
    )
    assert ratio(first, second) > 0


def crashing(pack: Path, out: Path) -> Path:
    """The pack with a library that falls over when it is mapped."""
    text = (
        "#include <signal.h>\n#include <stdint.h>\n__attribute__((constructor)) static void fall(void) { raise(SIGSEGV); }\n"
    )
    (out.parent / "fall.c").write_text(text)
    copy = Path(shutil.copytree(pack, out))
    (library,) = (copy / "lib").iterdir()
    cc([out.parent / "fall.c"], library, "-shared", "-fPIC")
    document = json.loads((copy / MANIFEST).read_text())
    document["files"] = {name: hashlib.sha256((copy / name).read_bytes()).hexdigest() for name in document["files"]}
    for name, data in sealed(as_json(document)).items():
        (copy / name).write_bytes(data)
    return copy


def test_what_was_not_judged_is_not_published_and_who_failed_is_told(packs, tmp_path, monkeypatch):
    pack, other = packs
    fallen = crashing(other, tmp_path / "fallen")
    with pytest.raises(PackInvalid, match=r"(?s)failed beside.*not published.*Segmentation fault"):
        check_not_slower(pack, fallen, {})
    assert "Segmentation fault" in check_not_slower(fallen, other, {}), "an old pack that falls stands in no pack's way"
    (tmp_path / "cut").mkdir()
    cut = shutil.copytree(pack, tmp_path / "cut" / "pack")
    (cut / "models" / "net.json").unlink()
    assert "net.json" in check_not_slower(cut, other, {})
    with pytest.raises(PackInvalid, match=r"net\.json"):
        check_not_slower(pack, cut, {})
    monkeypatch.setattr(pack_race, "LIMIT_S", 0.01)
    with pytest.raises(KeepPublishedPack, match=r"more than 0 s.*nobody knows.*--resume"):
        check_not_slower(pack, other, {})


def test_the_least_times_in_turns_decide(packs, monkeypatch):
    """Time stands still but for the calls, of which those of the second pack take three times as long."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(pack_race, "SECONDS", 0.0)
    of = [1.0, 3.0]

    def call(model: Any, dims: Any) -> Any:
        us = of[[str(path) for path in packs].index(str(model.pack.path))]

        def run() -> None:
            clock.now += us

        return run

    monkeypatch.setattr(pack_race, "call_of", call)
    pack, other = packs
    turns: list[str] = []
    assert ratio(pack, other, lambda: clock.now, turns.append) == pytest.approx(3.0) and turns[:3] == ["old", "new", "old"]
    assert ratio(pack, other, now=lambda: clock.now) == pytest.approx(3.0)
    monkeypatch.setattr(pack_race, "raced_apart", lambda old, new, _: Outcome(ratio(old, new, now=lambda: clock.now)))
    with pytest.raises(KeepPublishedPack, match=r"3\.00"):
        check_not_slower(pack, other, {})
    check_not_slower(other, pack, {})
    of[1] = 1.04  # chance
    check_not_slower(pack, other, {})


class Kept:
    """A publisher whose packs are copies of one that is there; ``slower``: whether the race says so."""

    def __init__(self, new: Path, out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.said, self.slower = list[str](), False
        lab = SimpleNamespace(
            backend=SimpleNamespace(write_library=lambda *_: {}, lacking=lambda _: ""), compile_object=None
        )
        request = SimpleNamespace(out=out, cache=None, environment={}, zero_measure=False, records="records")
        written = SimpleNamespace(name="net")
        model = SimpleNamespace(
            executables={}, file=new, shapes="", on_device=False, parts=(), written=written, source_sha256="", subgraph=None
        )

        def write(path: Path, library: Path, document: Any, check: Any, models: Any) -> None:
            aside = Path(shutil.copytree(new, path.parent / "aside"))
            (aside / "count").write_text(str(len(self.said)))
            try:
                check(aside)
                shutil.rmtree(path, ignore_errors=True)
                aside.rename(path)
            finally:
                shutil.rmtree(aside, ignore_errors=True)

        monkeypatch.setattr(publishing_module, "write_pack", write)
        monkeypatch.setattr(publishing_module, "_groups_of", lambda *_: None)
        monkeypatch.setattr(publishing_module, "_cannot_run", lambda *_: "")
        monkeypatch.setattr(publishing_module, "_verify", lambda *_: None)
        monkeypatch.setattr("haotuner.verify.model_check.check_apart", lambda *_: None)
        monkeypatch.setattr(pack_race, "raced_apart", lambda *_: Outcome(1.3 if self.slower else 0.9))
        self.publisher = Publisher(request, None, lab, None, lambda *arguments: self.said.append(arguments[1]) or True, 0.0)  # type: ignore[arg-type, func-returns-value]
        monkeypatch.setattr(self.publisher, "_with_times", lambda *_: {})
        monkeypatch.setattr(
            self.publisher, "_document", lambda *_, **facts: {"unverified": facts["unverified"], "tuning": {}}
        )
        self.model = model

    def publish(self, **more: Any) -> Any:
        return self.publisher.publish([], [self.model], unverified=False, stopped="budget", **more)  # type: ignore[list-item]


@pytest.fixture
def publishing(packs, tmp_path, monkeypatch) -> Iterator[tuple[Kept, Path]]:
    yield Kept(packs[1], tmp_path / "pack", monkeypatch), tmp_path / "pack"


def test_a_slower_later_pack_does_not_replace_a_better_one(publishing, packs):
    """First a pack, then a better one takes its place, then a slower one does not, and the pack is whole all the time."""
    harness, out = publishing
    harness.publish(what="a first pack")
    assert not harness.publisher.reason_kept and (out / MANIFEST).exists()
    harness.publisher._last = None
    harness.publish(what="a better pack")
    second = (out / "count").read_text()
    harness.publisher._last, harness.slower = None, True
    document = harness.publish(what="the pack")
    assert "answers faster" in harness.publisher.reason_kept and harness.said[-1].startswith("not published: ")
    assert (out / "count").read_text() == second and not (out.parent / "aside").exists()
    assert document == read_manifest(out).whole_document, "what is told is of the pack that lies there"
    with haotuner.load(out, threads=1) as pack:
        assert pack.models == ("net",)
    assert harness.publish(what="the pack") == document, "the same is not raced again"
    harness.publisher._last, harness.slower = None, False
    harness.publish(what="the pack")
    assert not harness.publisher.reason_kept and (out / "count").read_text() != second
