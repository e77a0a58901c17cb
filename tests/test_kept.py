"""What is kept between runs: made once for its content, whole or not at all, gone when nobody uses it."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pytest

from tests import kept, kept_objects
from tests.run_folder import run_folder
from tests.standin import image, library


@pytest.fixture(autouse=True)
def objects_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(kept, "PLACE", tmp_path / "kept")
    return tmp_path / "kept"


def test_an_entry_is_made_once_for_its_content_and_cuts_between_parts_count() -> None:
    numbers = count(1)

    def text(*content: str | bytes) -> str:
        return kept.text("words", content, lambda: str(next(numbers)))

    assert [text("ab", b"c"), text("ab", b"c"), text("a", "bc"), text("ab", b"c")] == ["1", "1", "2", "1"]


def test_what_could_not_be_made_is_made_by_the_next(objects_folder: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        kept.kept("unit", ["a"], broken)
    assert list(objects_folder.iterdir()) == []
    entry = kept.kept("unit", ["a"], lambda folder: (folder / "whole").touch())
    assert [path.name for path in entry.iterdir()] == ["whole"]


def test_entries_that_nobody_used_go_and_one_that_is_used_stays(objects_folder: Path) -> None:
    old, used = (kept.kept("unit", [name], lambda folder: None) for name in ("old", "used"))
    long_ago = time.time() - (kept.DAYS + 1) * 24 * 3600
    for folder in (old, used):
        os.utime(folder, (long_ago, long_ago))
    assert kept.kept("unit", ["used"], lambda folder: None) == used
    kept.forget()
    assert list(objects_folder.iterdir()) == [used]


def test_a_place_that_cannot_be_written_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kept, "PLACE", tmp_path / "file" / "below")
    assert kept.place() == run_folder()


def test_an_object_is_compiled_anew_for_another_compiler_or_header_and_for_a_source_inside(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    native = tmp_path / "native"
    native.mkdir()
    for name, words in (("one.c", '#include "two.c"\n'), ("two.c", "int two = 2;\n"), ("three.h", "")):
        (native / name).write_text(words)

    def compiled() -> Path:
        return kept_objects.compiled(["cc"], native / "one.c", [native])

    seen = [compiled()]
    assert compiled() == seen[0]
    for name in ("two.c", "three.h"):
        (native / name).write_text("int two = 3;\n")
        seen.append(compiled())
    monkeypatch.setattr(kept_objects, "version", lambda compiler: "cc of tomorrow")
    assert len({*seen, compiled()}) == 4


@pytest.mark.parametrize("folder", ["haotuner", "microkernels", "hw_profiles"])
def test_generated_code_is_written_anew_when_what_writes_it_changes(
    folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept, "ROOT", tmp_path)
    (tmp_path / folder).mkdir()
    seen = set()
    for words in ("bits = 16", "bits = 8"):
        (tmp_path / folder / "types.py").write_text(words)
        seen.add(kept.sources.__wrapped__())
    assert len(seen) == 2


def test_the_stand_in_is_built_anew_by_another_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def keys() -> tuple[str, str]:
        return library._hash([b"source"], ["-O1"]), image._headers_hash()

    before = keys()
    for module in (library, image):
        monkeypatch.setattr(module, "compilers", lambda: "g++ of tomorrow")
    assert all(now != then for now, then in zip(keys(), before, strict=True))
