"""Hashes of kernels' code are kept by package and toolchain, where this user alone may write."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from haotuner.backends import object_cache
from haotuner.backends.object_cache import sources_hash, stored_codes

OURS, FOREIGN = "cpu_dense_fp32__mr1_nr8_pw8_ku1_vl8_pf0", "cpu_generated_row_sum_fp32__vl8"


class Make:
    """Says a hash of each name, and keeps what it was asked."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, names: Sequence[str]) -> Mapping[str, str]:
        self.names += names
        return {name: f"code of {name}" for name in names}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "codes"
    path.mkdir(mode=0o700)
    return path


def test_what_is_known_is_not_made_again(folder: Path) -> None:
    first, again, of_another = Make(), Make(), Make()
    codes = stored_codes(folder, ["gcc 12"], [OURS], first)
    assert codes == stored_codes(folder, ["gcc 12"], [OURS], again) == {OURS: f"code of {OURS}"}
    stored_codes(folder, ["gcc 13"], [OURS], of_another)
    assert (first.names, again.names, of_another.names) == ([OURS], [], [OURS])


def test_only_what_is_missing_is_made_and_nothing_is_lost(folder: Path) -> None:
    other, make = f"{OURS}_nt4", Make()
    stored_codes(folder, [], [OURS], Make())
    assert set(stored_codes(folder, [], [OURS, other], make)) == {OURS, other}
    assert make.names == [other]
    stored_codes(folder, [], [OURS, other], make)
    assert make.names == [other]


def test_kernels_of_kinds_that_others_bring_are_made_each_time(folder: Path) -> None:
    make = Make()
    for _ in range(2):
        stored_codes(folder, [], [FOREIGN], make)
    assert make.names == [FOREIGN, FOREIGN], "their sources are not the package's"


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cpu'])
def test_a_damaged_file_is_written_anew(folder: Path, text: str) -> None:
    stored_codes(folder, [], [OURS], Make())
    (path,) = folder.iterdir()
    path.write_text(text)
    make = Make()
    for _ in range(2):
        stored_codes(folder, [], [OURS], make)
    assert make.names == [OURS]


def test_where_others_may_write_nothing_is_read_or_written(folder: Path) -> None:
    folder.chmod(0o777)
    make = Make()
    for _ in range(2):
        stored_codes(folder, [], [OURS], make)
    assert make.names == [OURS, OURS] and list(folder.iterdir()) == []


def test_hashes_of_old_versions_do_not_pile_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for version in range(20):
        monkeypatch.setattr(object_cache, "sources_hash", lambda version=version: f"version {version}")
        stored_codes(folder, [], [OURS], Make())
    assert len(list(folder.iterdir())) == 8


def test_every_source_of_the_package_counts() -> None:
    assert sources_hash() == sources_hash() and len(sources_hash()) == 32
