"""What is kept between runs: made once for its content, whole or not at all, gone when nobody uses it."""

from __future__ import annotations

import os
import time
from itertools import count
from pathlib import Path

import pytest

from tests import kept
from tests.run_folder import run_folder


@pytest.fixture(autouse=True)
def place(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    monkeypatch.setattr(kept, "PLACE", tmp_path / "kept")
    return tmp_path / "kept"


def test_an_entry_is_made_once_for_its_content_and_cuts_between_parts_count() -> None:
    numbers = count(1)

    def text(*content: str | bytes) -> str:
        return kept.text("words", content, lambda: str(next(numbers)))

    assert [text("ab", b"c"), text("ab", b"c"), text("a", "bc"), text("ab", b"c")] == ["1", "1", "2", "1"]


def test_what_could_not_be_made_is_made_by_the_next(place: Path) -> None:
    def broken(folder: Path) -> None:
        (folder / "half").touch()
        raise RuntimeError("no compiler")

    with pytest.raises(RuntimeError, match="no compiler"):
        kept.kept("unit", ["a"], broken)
    assert list(place.iterdir()) == []
    made = kept.kept("unit", ["a"], lambda folder: (folder / "whole").touch())
    assert [path.name for path in made.iterdir()] == ["whole"]


def test_entries_that_nobody_used_go_and_one_that_is_used_stays(place: Path) -> None:
    old, used = (kept.kept("unit", [name], lambda folder: None) for name in ("old", "used"))
    long_ago = time.time() - (kept.DAYS + 1) * 24 * 3600
    for folder in (old, used):
        os.utime(folder, (long_ago, long_ago))
    assert kept.kept("unit", ["used"], lambda folder: None) == used
    kept.forget()
    assert list(place.iterdir()) == [used]


def test_a_place_that_cannot_be_written_is_that_of_the_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setattr(kept, "PLACE", tmp_path / "file" / "below")
    assert kept.place() == run_folder()
