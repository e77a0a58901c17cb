"""Publishing a pack: nothing is written outside its folder, only packs are replaced, and whoever dies leaves nothing."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from haotuner.errors import HaotunerError, PackInvalid, UsageError
from haotuner.pack.__main__ import main
from haotuner.pack.folder import foreign, is_ours, is_pack_file
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import as_json, check_destination, publish, sealed

LIBRARY = "lib/0123456789abcdef.so"


def files(turn: int = 0, **more: Any) -> dict[str, bytes]:
    """A pack by its names alone: nobody loads it."""
    document = {"schema": 2, "files": {LIBRARY: hashlib.sha256(b"code").hexdigest()}, "turn": turn, **more}
    return {LIBRARY: b"code", "models/m.json": b"{}", "models/m.weights": bytes(3), **sealed(as_json(document))}


def put(folder: Path, content: dict[str, bytes]) -> Path:
    for name, data in content.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return folder


def seen(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


OUTSIDE = (
    *("../victim", "/tmp/victim", "lib/../../victim", "x86-64-v3/../../victim/manifest.json", "sm_90/../../v/manifest.json"),
    *("a", "", ".", "models/../x.json", "models/.x.json", "models/a b.json", "lib/app.js", "nosuch/manifest.json"),
    *("manifest.json/", "manifest.json\n", "./manifest.json", f"{LIBRARY}/manifest.json", "sm_90/h200/x/manifest.json"),
)


@pytest.mark.parametrize("name", OUTSIDE)
def test_no_name_leads_out_of_the_folder(tmp_path, name):
    assert not is_pack_file(name)
    (tmp_path / "here").mkdir()
    with pytest.raises(PackInvalid, match="is no file of a pack; nothing was written"):
        publish(tmp_path / "here" / "pack", {**files(), name: b"x"}, lambda _: None)
    assert seen(tmp_path) == {}


def test_names_of_packs_are_taken():
    plain = ("manifest.json", "facts.json", LIBRARY, "models/bert-base.1.weights")
    names = (
        *plain,
        f"x86-64-v4/{LIBRARY}",
        f"sm_90a/h200-x/{LIBRARY}",
        "x86-64/manifest.sha256",
        "sm_121/gb10/models/m.json",
    )
    assert all(map(is_pack_file, names))


def put_manifest(pack: Path, change: Any) -> None:
    document = json.loads((pack / "manifest.json").read_bytes())
    change(document)
    put(pack, sealed(as_json(document)))


@pytest.mark.parametrize(
    ("key", "value"),
    [("arch", "sm_90/../../victim"), ("id", "../../home/app"), ("id", "a/b"), ("id", ".."), ("arch", ".x"), ("arch", ""),
     ("id", "a\n"), ("arch", "a" * 300), ("id", 5), ("arch", None)],
)  # fmt: skip
def test_a_device_is_named_by_a_plain_word(built_pack, tmp_path, key, value):
    pack = Path(shutil.copytree(built_pack.path, tmp_path / "in" / "pack"))
    put_manifest(pack, lambda document: document["device"].update({key: value}))
    with pytest.raises(PackInvalid, match=f"device.{key}|text|control"):
        read_manifest(pack)
    before = seen(tmp_path)
    assert main(["merge", str(pack), str(built_pack.path), "--out", str(tmp_path / "out")]) == 5
    assert seen(tmp_path) == before


def test_a_merge_that_is_refused_writes_nothing(built_pack, tmp_path):
    pack = Path(shutil.copytree(built_pack.path, tmp_path / "pack"))
    put_manifest(pack, lambda document: document["device"].update(arch="armv9"))
    before = seen(tmp_path)
    assert main(["merge", str(pack), str(built_pack.path), "--out", str(tmp_path / "out")]) == 5
    assert seen(tmp_path) == before and not list(tmp_path.glob(".*"))


NOT_PACKS: dict[str, dict[str, bytes]] = {
    "a web app": {"manifest.json": b'{"name": "my web app"}', "lib/app.js": b"/* work */"},
    "an extension": {"manifest.json": b'{"manifest_version": 3}'},
    "a thesis": {"manifest.json": b"{}", "models/thesis.txt": b"years"},
    "a manifest of others with a schema": {"manifest.json": b'{"schema": 1, "files": {"a.txt": "x"}}'},
    "a list": {"manifest.json": b"[]"},
    "a package": {"package.json": b"{}", "manifest.json": b"{}", "lib/index.js": b""},
    "nothing of a pack": {"notes.txt": b"x"},
    "a manifest alone, damaged": {"manifest.json": b"{", "models/m.json": b"x"},
    "a file beside a pack's": {**files(), "notes.txt": b"x"},
    "a hidden file beside a pack's": {**files(), ".git/config": b"x"},
    "a file among libraries": {**files(), "lib/app.js": b"x"},
    "a file in a level": {**files(), "x86-64-v3/readme.md": b"x"},
    "a file far below": {**files(), "models/a/b/c": b"x"},
    "a pack in a pack": {**files(), "models/pack/manifest.json": b"{}"},
}


@pytest.mark.parametrize("what", NOT_PACKS)
def test_only_what_haotuner_made_is_replaced(tmp_path, what):
    put(tmp_path / "out", NOT_PACKS[what])
    with pytest.raises(UsageError, match="it is left as it is. Name another folder"):
        check_destination(tmp_path / "out")
    with pytest.raises(UsageError, match="it is left as it is"):
        publish(tmp_path / "out", files(), lambda _: None)
    assert seen(tmp_path) == {f"out/{name}": data for name, data in NOT_PACKS[what].items()}


@pytest.mark.parametrize("kind", ["link", "pipe", "folder", "link to a folder"])
def test_a_pack_with_something_else_inside_is_left(tmp_path, kind):
    out = put(tmp_path / "out", files())
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "work").write_bytes(b"x")
    path = {"link": "facts.json", "pipe": "facts.json", "folder": "photos", "link to a folder": "x86-64-v3"}[kind]
    match kind:
        case "link":
            (out / path).symlink_to(tmp_path / "mine" / "work")
        case "pipe":
            os.mkfifo(out / path)
        case "folder":
            (out / path).mkdir()
        case _:
            (out / path).symlink_to(tmp_path / "mine")
    assert foreign(out) == path
    with pytest.raises(UsageError, match=f"holds {path}, which no haotuner pack has"):
        publish(out, files(), lambda _: None)
    assert (tmp_path / "mine" / "work").read_bytes() == b"x" and os.path.lexists(out / path)


PACKS = {
    "sound": files(),
    "another schema": files(schema=99),
    "damaged": {**files(), "manifest.json": b"damaged"},
    "of levels": {"manifest.json": as_json({"schema": 1, "levels": {"x86-64": ""}})},
    "of levels with files": {f"x86-64-v3/{name}": data for name, data in files().items()}
    | sealed(as_json({"schema": 2, "levels": {"x86-64-v3": "0"}})),
}


@pytest.mark.parametrize("what", PACKS)
def test_a_pack_is_replaced_whatever_its_schema_or_damage(tmp_path, what):
    out = put(tmp_path / "out", PACKS[what])
    assert is_ours(out)
    publish(out, files(7), lambda _: None)
    assert seen(out) == files(7) and [path.name for path in tmp_path.iterdir()] == ["out"]


DIES = """
import json, os, signal, sys
from pathlib import Path
from haotuner.pack import write
files = {name: bytes.fromhex(data) for name, data in json.loads(sys.argv[2]).items()}
for out, at, way in json.loads(sys.argv[1]):
    child = os.fork()
    if child == 0:
        if way == "two renames":
            write._exchange = lambda one, other: False
        step = lambda name: name == at and os.kill(os.getpid(), signal.SIGKILL)
        write.publish(Path(out), files, lambda _: None, step)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
BEFORE = ("made", f"written {LIBRARY}", "written models/m.weights", "written manifest.sha256", "synced", "checked")
AFTER = ("exchanged", "published")
DEATHS = [
    *((step, "exchange", earlier) for step in (*BEFORE, *AFTER) for earlier in (True, False)),
    *((step, "two renames", True) for step in ("moved", "exchanged", "published")),
]


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str, bool], Path]:
    """Folders with what a process left at ``out`` that was killed at a step."""
    folders = {death: tmp_path_factory.mktemp("killed") for death in DEATHS}
    for (_, _, earlier), folder in folders.items():
        if earlier:
            publish(folder / "out", files(1), lambda _: None)
    deaths = [(str(folder / "out"), step, way) for (step, way, _), folder in folders.items()]
    new = json.dumps({name: data.hex() for name, data in files(2).items()})
    ran = subprocess.run([sys.executable, "-c", DIES, json.dumps(deaths), new], check=True, capture_output=True, text=True)
    assert ran.stdout.split() == [str(-signal.SIGKILL)] * len(deaths)
    return folders


@pytest.mark.parametrize(("step", "way", "earlier"), DEATHS)
def test_whoever_is_killed_leaves_a_whole_pack_and_nothing_for_long(killed, step, way, earlier):
    folder = killed[step, way, earlier]
    out, there = folder / "out", files(2) if step in AFTER else files(1) if earlier else {}
    if step != "moved":  # between two renames there is none for a moment
        assert (seen(out) if out.exists() else {}) == there
    check_destination(out)
    assert [path.name for path in folder.iterdir()] == (["out"] if there else [])
    assert (seen(out) if out.exists() else {}) == there
    publish(out, files(3), lambda _: None)
    assert seen(folder) == {f"out/{name}": data for name, data in files(3).items()}


def test_what_others_work_in_or_made_is_left(tmp_path):
    out = tmp_path / "out"
    mine = put(tmp_path / ".out.abcdefgh.new", {"notes.txt": b"mine"})  # named so, but no pack
    (tmp_path / ".out.abcdefgi.new").symlink_to(mine)
    seen_inside: list[str] = []

    def second(_: Path) -> None:
        publish(tmp_path / "out", files(2), lambda _: seen_inside.extend(p.name for p in tmp_path.glob(".out.*.new")))

    publish(out, files(1), second)
    assert len(seen_inside) == 4  # of the first, the second, and what is none of ours
    assert seen(out) == files(1) and (mine / "notes.txt").read_bytes() == b"mine"


def test_a_check_that_fails_leaves_nothing(tmp_path):
    def fails(_: Path) -> None:
        raise PackInvalid("wrong numbers")

    with pytest.raises(HaotunerError, match="wrong numbers"):
        publish(tmp_path / "out", files(), fails)
    assert not list(tmp_path.iterdir())


def test_weights_that_are_a_link_are_not_merged(built_pack, tmp_path):
    pack = Path(shutil.copytree(built_pack.path, tmp_path / "pack"))
    (library,) = (pack / "lib").iterdir()
    library.rename(tmp_path / "library")
    library.symlink_to(tmp_path / "library")
    assert main(["merge", str(pack), str(built_pack.path), "--out", str(tmp_path / "out")]) == 5
    assert not (tmp_path / "out").exists()
