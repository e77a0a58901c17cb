"""What is loaded: files of one pack also while another takes its place, regular ones of a sane size, and no links."""

from __future__ import annotations

import json
import os
import shutil
import threading
from typing import Any

import pytest

import haotuner
from haotuner.pack.write import write_pack
from tests.runtime.conftest import DENSE, rows
from tests.runtime.native_builds import c_pack
from tests.runtime.packs import packed_op
from tests.runtime.test_pack_files import library, refused, verify


def test_a_pack_that_is_loaded_while_it_is_replaced(built_pack, copied, weight, tmp_path):
    """A reader gets the old pack or the new one and never an error: its files come from one folder, or it begins again."""
    other = c_pack(tmp_path / "other", [packed_op(DENSE, 4, 8, (1,))])  # another library, so another name in lib/
    sources = []
    for pack in (built_pack.path, other):
        library(pack)
        sources.append((tmp_path / f"{pack.name}.keep", json.loads((pack / "manifest.json").read_text())))
        sources[-1][0].write_bytes(library(pack).read_bytes())
    done = threading.Event()
    turns = 0

    def replace() -> None:
        nonlocal turns
        while not done.is_set():
            write_pack(copied, *sources[turns % 2], lambda _: None)
            turns += 1

    writer = threading.Thread(target=replace)
    writer.start()
    try:
        seen: set[tuple[str, ...]] = set()
        loads = 0
        while loads < 100 or (loads < 5000 and (turns < 4 or len(seen) < 2)):  # a busy machine gives the writer few turns
            loads += 1
            with haotuner.load(copied, threads=1) as pack:
                seen.add(pack.ops)
                assert pack.op(DENSE).bind(weight)(rows(1)).shape == (1, 100)
    finally:
        done.set()
        writer.join()
    assert len(seen) == 2 and turns > 3


@pytest.mark.parametrize("turn", range(3))
def test_files_that_change_between_two_looks_are_read_again(built_pack, copied, monkeypatch, turn):
    """Each place where a replacement can come between: the manifest, the hash, the mapping."""
    from haotuner.runtime import library as module

    aside = copied.parent / "aside"
    shutil.copytree(copied, aside)
    done: list[int] = []

    def exchange() -> None:
        if not done:
            done.append(1)
            copied.rename(copied.parent / "old")
            aside.rename(copied)
            shutil.rmtree(copied.parent / "old")

    name = ("manifest_in", "check_library_in", "_load")[turn]
    real = getattr(module, name)

    def around(*arguments: Any, **more: Any) -> Any:
        if name != "_load":
            exchange()
            return real(*arguments, **more)
        result = real(*arguments, **more)
        exchange()
        return result

    monkeypatch.setattr(module, name, around)
    haotuner.load(copied).close()
    assert done


def test_libraries_that_are_no_regular_files_of_a_sane_size(copied):
    path = library(copied)
    path.unlink()
    os.mkfifo(path)  # opening it would wait for a writer for ever
    refused(copied, "not a regular file")
    assert verify(copied).returncode == 5
    path.unlink()
    with path.open("wb") as stream:
        stream.truncate(300 << 30)  # sparse
    refused(copied, "more than 1 GiB")


def test_a_linked_manifest_is_not_followed(copied, tmp_path):
    shutil.move(copied / "manifest.json", tmp_path / "elsewhere.json")
    (copied / "manifest.json").symlink_to(tmp_path / "elsewhere.json")
    refused(copied, "cannot read manifest.json")


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_a_new_packs_folders_follow_the_umask(copied, tmp_path, mask):
    document = json.loads((copied / "manifest.json").read_text())
    old = os.umask(mask)
    try:
        out = write_pack(tmp_path / "out", library(copied), document, lambda _: None)
    finally:
        os.umask(old)
    assert [path.stat().st_mode & 0o777 for path in (out, out / "lib")] == [0o777 & ~mask] * 2
    assert library(out).stat().st_mode & 0o777 == 0o666 & ~mask
    assert sorted(path.name for path in out.iterdir()) == ["lib", "manifest.json", "manifest.sha256"]
