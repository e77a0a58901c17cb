"""Compiled sources of the runtime are kept by content: the same library, and no second compilation."""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from pathlib import Path

import pytest

from haotuner.backends.cpu.compile import RUNTIME_SOURCES
from haotuner.backends.object_cache import ObjectCache, hash_of, key_of, not_private
from haotuner.backends.toolchain import Toolchain

SOURCES = [RUNTIME_SOURCES / "check.c", RUNTIME_SOURCES / "tvm_ffi_stubs.c"]


class Linked:
    """Links the same library again and again, and says which sources the compiler was given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log, compiler = folder / "log", folder / "cc"
        compiler.write_text(f'#!/bin/sh\necho "$*" >>{self.log}\nexec {Toolchain.find().compiler} "$@"\n')
        compiler.chmod(0o755)
        self.tools = replace(Toolchain.find(folder / "objects"), compiler=str(compiler))

    def __call__(self, tools: Toolchain | None = None) -> tuple[bytes, list[str]]:
        data, out = self.folder / "data.c", self.folder / "out.so"
        data.write_text("int ht_op_count = 0;\n")
        self.log.write_text("")
        (tools or self.tools).link([], [data, *SOURCES], [RUNTIME_SOURCES], out)
        sources = [word.rsplit("/", 1)[-1] for word in self.log.read_text().split() if word.endswith(".c")]
        return out.read_bytes(), sources


@pytest.fixture
def linked(tmp_path: Path) -> Linked:
    return Linked(tmp_path)


def test_a_kept_object_gives_the_same_library_and_is_not_compiled_again(linked: Linked) -> None:
    plain, sources = linked(replace(linked.tools, objects=None))
    assert sources == ["data.c", "check.c", "tvm_ffi_stubs.c"]
    first, sources = linked()
    assert sorted(sources) == ["check.c", "data.c", "tvm_ffi_stubs.c"]
    second, sources = linked()
    assert sources == ["data.c"]  # it is not the package's: made for one library
    assert plain == first == second


def test_another_library_with_more_headers_shares_what_lies_in_the_first_folder(linked: Linked, tmp_path: Path) -> None:
    linked()
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "own.h").write_text("")
    linked.log.write_text("")
    linked.tools.link([], [linked.folder / "data.c", *SOURCES], [RUNTIME_SOURCES, tmp_path / "more"], tmp_path / "other.so")
    assert [word for word in linked.log.read_text().split() if word.endswith("/check.c")] == []


def test_sources_are_compiled_side_by_side(linked: Linked, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each compiler waits for the other one's start."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    compiler, real = Path(linked.tools.compiler), Toolchain.find().compiler
    meet = f"echo >>{linked.folder}/begun; until [ $(wc -l <{linked.folder}/begun) -ge 2 ]; do sleep 0.02; done"
    compiler.write_text(f'#!/bin/sh\n{meet}\nexec {real} "$@"\n')
    linked.tools.compile_ahead(SOURCES, [RUNTIME_SOURCES], timeout_s=300)
    assert len(list((linked.folder / "objects").glob("*.o"))) == 2


def test_a_damaged_object_is_made_again(linked: Linked) -> None:
    sound, _ = linked()
    objects = sorted((linked.folder / "objects").glob("*.o"))
    objects[0].write_bytes(objects[0].read_bytes()[:-1])
    again, sources = linked()
    assert again == sound
    assert len(sources) == 2
    assert linked()[1] == ["data.c"]


def test_without_a_place_for_objects_the_library_is_built_all_the_same(linked: Linked) -> None:
    sound, _ = linked()
    (linked.folder / "file").write_text("")
    assert linked(replace(linked.tools, objects=linked.folder / "file"))[0] == sound


def test_a_source_that_does_not_compile_is_said_and_not_kept(linked: Linked) -> None:
    broken = replace(linked.tools, include=linked.folder)  # without tvm-ffi's headers
    with pytest.raises(RuntimeError, match="failed with 1"):
        broken.compile_ahead(SOURCES[:1], [RUNTIME_SOURCES])
    assert not list((linked.folder / "objects").iterdir())


def test_source_headers_compiler_and_flags_are_in_the_key(tmp_path: Path) -> None:
    header, source = tmp_path / "in" / "deep" / "one.h", tmp_path / "one.c"
    header.parent.mkdir(parents=True)
    header.write_text("1")
    source.write_text("a")
    keys = [key_of(source, hash_of(["gcc 12"], [tmp_path / "in"])), key_of(source, hash_of(["gcc 13"], [tmp_path / "in"]))]
    header.write_text("2")
    keys.append(key_of(source, hash_of(["gcc 12"], [tmp_path / "in"])))
    source.write_text("b")
    keys.append(key_of(source, hash_of(["gcc 12"], [tmp_path / "in"])))
    assert len(set(keys)) == len(keys)


def test_what_others_may_write_is_not_linked(linked: Linked) -> None:
    linked()
    objects = linked.folder / "objects"
    assert {path.stat().st_mode & 0o777 for path in objects.glob("*.o")} == {
        0o600
    } and objects.stat().st_mode & 0o777 == 0o700
    for mode in (0o620, 0o602):
        for path in objects.glob("*.o"):
            path.chmod(mode)
        assert sorted(linked()[1]) == ["check.c", "data.c", "tvm_ffi_stubs.c"], "made anew"
    objects.chmod(0o777)
    assert f"others may write in {objects}" in not_private(objects)
    assert sorted(linked()[1]) == ["check.c", "data.c", "tvm_ffi_stubs.c"] and not list(objects.glob(".new-*"))
    objects.chmod(0o755)
    assert linked()[1] == ["data.c"] and not not_private(objects)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_what_belongs_to_others_is_not_linked(tmp_path: Path) -> None:
    cache, planted = ObjectCache(tmp_path / "objects"), b"code of others"
    with cache.aside():
        pass
    path = cache.folder / f"key.{hashlib.sha256(planted).hexdigest()[:32]}.o"
    path.write_bytes(planted)
    path.chmod(0o600)
    assert cache.find("key") == path
    os.chown(path, 65534, 65534)
    assert cache.find("key") is None
    os.chown(path, 0, 0)
    os.chown(cache.folder, 65534, 65534)
    assert cache.find("key") is None and "belongs to another user" in not_private(cache.folder)


def test_links_pipes_and_folders_above_are_looked_at(tmp_path: Path) -> None:
    cache = ObjectCache(tmp_path / "shared" / "haotuner" / "objects")
    assert not not_private(cache.folder)
    with cache.aside() as aside:
        path = cache.keep("key", Path(aside, "made.o").absolute()) if Path(aside, "made.o").write_bytes(b"code") else None
    assert path is not None and cache.find("key") == path
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert cache.find("key") is None
    path.unlink()
    os.mkfifo(path)
    assert cache.find("key") is None
    (tmp_path / "shared").chmod(0o777)
    assert "others may write in" in not_private(cache.folder)
    with pytest.raises(PermissionError, match="others may write"):
        cache.aside()
    (tmp_path / "shared").chmod(0o1777)  # as /tmp
    assert not not_private(cache.folder)


def test_a_full_disk_under_the_cache_fails_nothing(linked: Linked) -> None:
    """The compiler cannot write there, and says so in words of its own."""
    compiler = linked.folder / "cc"
    full = 'case "$*" in *objects*) echo "fatal error: writing made.o: No space left on device" >&2; exit 1;; esac\n'
    compiler.write_text(compiler.read_text().replace("exec ", f"{full}exec "))
    assert linked()[1].count("check.c") == 2, "once for the cache, once for the library"
