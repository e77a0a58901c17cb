"""Files that others name: what is no regular file is neither read nor replaced."""

from __future__ import annotations

import errno
import os
import socket
from pathlib import Path

import pytest

from haotuner.host.files import kind_of, open_beneath, open_regular, read_regular, written_aside


def make(what: str, path: Path) -> Path:
    """Something that is not a regular file."""
    if what == "pipe":
        os.mkfifo(path)
    elif what == "folder":
        path.mkdir()
    elif what == "link":
        (path.parent / "target").write_bytes(b"mine")
        path.symlink_to("target")
    elif what == "socket":
        with socket.socket(socket.AF_UNIX) as unix_socket:
            unix_socket.bind(str(path))
    return Path("/dev/zero") if what == "device" else path


@pytest.mark.parametrize("what", ["pipe", "folder", "socket", "device"])
def test_only_a_regular_file_is_read(tmp_path: Path, what: str) -> None:
    path = make(what, tmp_path / "it")
    assert what in kind_of(path)
    with pytest.raises(OSError, match=f"it is a {what}, not a regular file"):
        read_regular(path, 100)


@pytest.mark.parametrize("what", ["pipe", "folder", "socket", "link"])
def test_only_a_regular_file_is_replaced(tmp_path: Path, what: str) -> None:
    path = make(what, tmp_path / "it")
    before = path.lstat()
    with pytest.raises(OSError, match=f"it is a {what}"), written_aside(path) as aside:
        aside.write_bytes(b"new")
    assert (path.lstat().st_ino, path.lstat().st_mode) == (before.st_ino, before.st_mode)
    assert {p.name for p in tmp_path.iterdir()} <= {"it", "target"}


def test_what_takes_the_place_while_it_is_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "it"
    with pytest.raises(OSError, match="it is a pipe"), written_aside(path) as aside:
        aside.write_bytes(b"new")
        os.mkfifo(path)
    assert kind_of(path) == "a pipe" and [p.name for p in tmp_path.iterdir()] == ["it"]


def test_a_link_to_a_file_is_read_through(tmp_path: Path) -> None:
    assert read_regular(make("link", tmp_path / "it"), 4) == b"mine"


def test_a_larger_file_is_refused_without_reading_it(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"12345")
    assert read_regular(path, 5) == b"12345"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading it would take minutes
    with pytest.raises(OSError, match="it has more than 3 MiB"):
        read_regular(path, 3 << 20)


def test_a_file_whose_size_is_not_known_is_bounded_too() -> None:
    with pytest.raises(OSError, match="more than"):
        read_regular(Path("/proc/self/maps"), 10)


def test_a_name_of_full_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("n" * 255)
    with written_aside(path) as aside:
        aside.write_bytes(b"new")
    assert path.read_bytes() == b"new"


def test_a_block_that_fails_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "it"
    path.write_bytes(b"old")
    with pytest.raises(ZeroDivisionError), written_aside(path) as aside:
        aside.write_bytes(b"new")
        raise ZeroDivisionError
    assert path.read_bytes() == b"old" and [p.name for p in tmp_path.iterdir()] == ["it"]


def test_a_new_file_follows_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        with written_aside(tmp_path / "it"):
            pass
    finally:
        os.umask(before)
    assert (tmp_path / "it").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("what", ["pipe", "folder", "socket", "device"])
def test_only_a_regular_file_is_opened_relative_to_a_folder(tmp_path: Path, what: str) -> None:
    path = make(what, tmp_path / "it")
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match=f"it is a {what}, not a regular file"):
            open_regular(path.name, 100, folder=folder)
    finally:
        os.close(folder)


def test_a_link_is_refused_where_links_are_not_allowed(tmp_path: Path) -> None:
    link = make("link", tmp_path / "it")
    with pytest.raises(OSError, match="it is a link") as refused:
        read_regular(link, 100, follow=False)
    assert refused.value.errno == errno.ELOOP
    (tmp_path / "round").symlink_to("round")
    with pytest.raises(OSError, match="symbolic links"):
        read_regular(tmp_path / "round", 100)


def test_a_pipe_that_takes_the_place_of_a_file_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(tmp_path / "it")
    (tmp_path / "file").write_bytes(b"")
    as_before = (tmp_path / "file").stat()
    monkeypatch.setattr("haotuner.host.files.os.stat", lambda *_, **__: as_before)
    with pytest.raises(OSError, match="it is a pipe"):
        open_regular(tmp_path / "it", 100)


def test_a_file_beneath_a_folder_is_opened_through_links_that_stay_there(tmp_path: Path) -> None:
    model = tmp_path / "model"
    (model / "data").mkdir(parents=True)
    (model / "data" / "w.bin").write_bytes(b"inside")
    (tmp_path / "secret").write_bytes(b"outside")
    (model / "link").symlink_to("data/w.bin")
    (model / "folder").symlink_to("data")
    for name in ("data/w.bin", "link", "folder/w.bin", "./data/../data/w.bin"):
        with open_beneath(model, name, 100) as file:
            assert file.read() == b"inside"
    (model / "out").symlink_to("../secret")
    (model / "up").symlink_to("..")
    for name in ("out", "up/secret", "../secret", str(tmp_path / "secret")):
        with pytest.raises(PermissionError, match="leads out of its folder"):
            open_beneath(model, name, 100)
    os.mkfifo(model / "pipe")
    (model / "itself").symlink_to("itself")
    for name, why in (
        ("pipe", "a pipe"),
        ("itself", "symbolic links"),
        (".", "a folder"),
        ("data", "a folder"),
        ("no", "No such"),
    ):
        with pytest.raises(OSError, match=why):
            open_beneath(model, name, 100)
    with pytest.raises(OSError, match="more than 3 bytes"):
        open_beneath(model, "link", 3)


def test_a_link_that_comes_after_the_path_was_resolved_is_not_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "secret").write_bytes(b"outside")
    (tmp_path / "model" / "w").symlink_to("../secret")
    monkeypatch.setattr("haotuner.host.files.os.path.realpath", lambda path, **_: str(path))
    with pytest.raises(OSError, match="it is a link"):
        open_beneath(tmp_path / "model", "w", 100)
