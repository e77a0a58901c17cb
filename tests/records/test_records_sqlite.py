"""The SQLite store against damage, locks, full disks and read-only places."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from haotuner.errors import HaotunerError, RecordsUnusable, UsageError
from haotuner.records import SqliteStore, open_store
from haotuner.records.opening import create, filesystem
from haotuner.records.schema import UPGRADES
from tests.contract.record_examples import record

ROOT = Path(__file__).parents[2]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A store of 300 records, closed."""
    path = tmp_path / "records.db"
    store = SqliteStore(path)
    store.append([record(m) for m in range(1, 301)])
    store.close()
    return path


def files(path: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in sorted(path.parent.iterdir()) if entry.is_file()}


def refused(path: Path, match: str, error: type[HaotunerError] = RecordsUnusable) -> None:
    """Opening fails with that message and the path in it, and no byte in the folder changes."""
    before = files(path)
    for write in (True, False):
        with pytest.raises(error, match=match) as caught:
            SqliteStore(path, write=write, busy_s=0.2)
        assert str(path) in str(caught.value)
    assert files(path) == before


def test_a_closed_store_is_one_file_and_opens_again(path):
    assert list(files(path)) == ["records.db"]
    with sqlite3.connect(path) as db:
        assert db.execute("PRAGMA journal_mode").fetchone()[0] == "wal"
    db.close()
    store = SqliteStore(path)
    assert len(store.measured("f")) == 300
    assert store.check() == ()
    store.close()


def test_a_folder_is_in_the_way(tmp_path):
    (tmp_path / "records.db").mkdir()
    refused(tmp_path / "records.db", "is a folder", UsageError)


def test_a_pipe_is_in_the_way(tmp_path):
    os.mkfifo(tmp_path / "records.db")
    with pytest.raises(UsageError, match="not a regular file"):
        SqliteStore(tmp_path / "records.db")


def test_the_folder_is_missing(tmp_path):
    with pytest.raises(UsageError, match="does not exist; create it"):
        SqliteStore(tmp_path / "no" / "records.db")
    assert list(tmp_path.iterdir()) == []


def test_a_text_file_is_refused(tmp_path):
    (tmp_path / "records.db").write_text("op,time\ndense,1\n" * 100)
    refused(tmp_path / "records.db", "not an SQLite database")


def test_an_empty_file_is_refused_because_a_store_never_is(tmp_path):
    (tmp_path / "records.db").touch()
    refused(tmp_path / "records.db", "it has 0 bytes")


def test_a_database_of_another_program_is_refused(tmp_path):
    db = sqlite3.connect(tmp_path / "records.db")
    db.execute("CREATE TABLE record (id TEXT)")
    db.close()
    refused(tmp_path / "records.db", "another program")


@pytest.mark.parametrize("version, word", [(3, "newer"), (0, "unknown")])
def test_another_schema_is_refused(path, version, word):
    db = sqlite3.connect(path)
    db.execute(f"PRAGMA user_version = {version}")
    db.close()
    refused(path, f"schema {version}, {word}")


@pytest.fixture
def older(path: Path) -> Path:
    """The same store with the tables of version 1, before trials had repeats."""
    db = sqlite3.connect(path)
    db.execute("ALTER TABLE record DROP COLUMN repeat")
    db.execute("PRAGMA user_version = 1")
    db.commit()
    db.close()
    return path


def test_an_older_store_is_read_as_it_is(older):
    before = files(older)
    store = SqliteStore(older, write=False)
    assert list(store.records()) == [record(m) for m in range(1, 301)] and store.check() == ()
    store.close()
    assert files(older) == before


def test_an_older_store_is_upgraded_by_writing_and_loses_nothing(older):
    reader = SqliteStore(older, write=False)
    seen = reader.records()
    first = next(seen)
    again = replace(record(1), trial=replace(record(1).trial, repeat=1))
    for new in (1, 0):  # the second finds it done
        store = SqliteStore(older)
        assert store.append([record(1), again]) == new
        assert list(store.records()) == [*(record(m) for m in range(1, 301)), again] and store.check() == ()
        store.close()
    assert [first, *seen] == [record(m) for m in range(1, 301)], "who was reading reads on"
    assert len(reader.measured("f")) == 301
    reader.close()


def test_an_upgrade_that_fails_changes_nothing(older, monkeypatch):
    monkeypatch.setitem(UPGRADES, 1, "ALTER TABLE record ADD COLUMN id TEXT")
    before = older.read_bytes()
    with pytest.raises(RecordsUnusable, match="duplicate column name"):
        SqliteStore(older)
    assert older.read_bytes() == before
    monkeypatch.undo()
    store = SqliteStore(older)
    assert len(store.measured("f")) == 300
    store.close()


@pytest.mark.parametrize("size", [1, 15, 16, 99, 100, 4095, 4096, 12288, -4096, -1])
def test_a_file_cut_short_is_refused(path, size):
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    refused(path, "damaged|not an SQLite database")


def test_overwritten_pages_are_noticed_unless_nothing_was_kept_there(path):
    expected = [record(m) for m in range(1, 301)]
    whole = path.read_bytes()
    pages = len(whole) // 4096
    for page in (0, 1, 5, pages // 2, pages - 1):
        for at in (0, 100):
            damaged = bytearray(whole)
            damaged[page * 4096 + at : page * 4096 + at + 512] = bytes((i * 97 + page) % 256 for i in range(512))
            path.write_bytes(damaged)
            try:
                store = SqliteStore(path, write=False)
            except RecordsUnusable:
                continue
            assert store.check() or list(store.records()) == expected, f"page {page} at {at}"
            store.close()


def test_a_changed_value_is_reported_where_it_is(path):
    db = sqlite3.connect(path)
    db.execute("UPDATE record SET outcome = replace(outcome, '1', '2') WHERE seq = 7")
    db.execute("UPDATE record SET shape = 'm=3' WHERE seq = 9")
    db.execute("UPDATE record SET seed = 'x' WHERE seq = 11")
    db.execute("UPDATE record SET repeat = 1 WHERE seq = 12")
    db.execute("UPDATE record SET repeat = '' WHERE seq = 13")
    db.commit()
    db.close()
    store = SqliteStore(path)
    with pytest.raises(RecordsUnusable, match=r"row 7: the digest.*records check"):
        list(store.records())
    assert [text.split(":")[0] for text in store.check()] == [f"record in row {n}" for n in (7, 9, 11, 12, 13)]
    store.close()


def test_a_lock_that_stays_is_named_and_nothing_is_lost(path):
    store = SqliteStore(path, busy_s=0.2)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(RecordsUnusable, match=r"locked by another process for more than 0.2 s"):
        store.append([record(500)])
    assert len(list(store.records())) == 300
    other.execute("ROLLBACK")
    other.close()
    assert store.append([record(500)]) == 1
    store.close()


def test_a_file_that_another_process_keeps_for_itself_is_refused(path):
    code = (
        "import sqlite3, sys; db = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "db.execute('PRAGMA locking_mode=EXCLUSIVE'); db.execute('BEGIN EXCLUSIVE'); print('held', flush=True); input()"
    )
    holder = subprocess.Popen([sys.executable, "-c", code, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    try:
        with pytest.raises(RecordsUnusable, match="locked by another process"):
            SqliteStore(path, busy_s=0.2)
    finally:
        holder.communicate(b"\n")
    SqliteStore(path).close()


def test_a_full_database_rolls_back_and_keeps_what_it_had(path):
    store = SqliteStore(path)
    assert store._db is not None
    pages = store._db.execute("PRAGMA page_count").fetchone()[0]
    store._db.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(RecordsUnusable, match="disk is full"):
        store.append([record(m) for m in range(1000, 2000)])
    assert len(list(store.records())) == 300
    store._db.execute("PRAGMA max_page_count = 1000000")
    assert store.append([record(1000)]) == 1
    store.close()


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 256 KiB."""
    mount_point = tmp_path / "disk"
    mount_point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "haotuner-test", str(mount_point)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip("mount: needs the right to mount a tmpfs")
    yield mount_point
    subprocess.run(["umount", "-l", str(mount_point)], check=True)


def test_a_full_disk_keeps_every_record_that_append_returned_for(small_disk):
    path = small_disk / "records.db"
    store = SqliteStore(path)
    stored = 0
    with pytest.raises(RecordsUnusable, match="disk is full|check the disk"):
        for m in range(1, 2000):
            stored += store.append([record(m)])
    assert 0 < stored < 1999
    (small_disk / "more").write_bytes(b"")  # even an empty file may not fit; the store must still be readable
    assert len(list(store.records())) == stored
    with pytest.raises(RecordsUnusable, match="cannot create"):
        fill = small_disk / "fill"
        with fill.open("wb", buffering=0) as file, pytest.raises(OSError):
            while True:
                file.write(b"x" * 512)
        SqliteStore(small_disk / "other.db")
    assert sorted(p.name for p in small_disk.iterdir() if p.suffix == ".new") == []
    (small_disk / "fill").unlink()
    store.close()
    again = SqliteStore(path)
    assert len(again.measured("f")) == stored
    again.close()


def as_nobody(code: str, path: Path) -> str:
    """What the code prints as a user whom file modes stop; root is not stopped by them."""
    prelude = (
        "import os, sys; from pathlib import Path; from haotuner.records import SqliteStore\n"
        "from haotuner.errors import RecordsUnusable\n"
        "path = Path(sys.argv[1]); os.setgroups([]); os.setresgid(65534, 65534, 65534); os.setresuid(65534, 65534, 65534)\n"
    )
    if os.geteuid() != 0:
        prelude = prelude.rpartition(" os.setgroups")[0] + "\n"
    ran = subprocess.run(
        [sys.executable, "-c", prelude + code, str(path)], capture_output=True, text=True, cwd=ROOT, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


@pytest.fixture
def reachable(path):
    """The store in a folder that every user can reach."""
    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        folder = Path(name) / "folder"
        folder.mkdir()
        yield Path(shutil.copy(path, folder))
        folder.chmod(0o755)


@pytest.mark.parametrize(
    "file_mode, folder_mode, words", [(0o444, 0o777, "is not writable"), (0o666, 0o555, "the folder"), (0, 0o777, "is not")]
)
def test_read_only_places_are_refused_for_writing(reachable, file_mode, folder_mode, words):
    before = files(reachable)
    reachable.chmod(file_mode)
    reachable.parent.chmod(folder_mode)
    code = "try:\n    SqliteStore(path)\nexcept RecordsUnusable as error:\n    print('refused:', error)"
    output = as_nobody(code, reachable)
    assert output.startswith("refused:")
    assert words in output
    assert str(reachable.parent) in output
    reachable.chmod(0o644)
    assert files(reachable) == before


def test_a_read_only_place_can_be_read(reachable):
    reachable.chmod(0o444)
    reachable.parent.chmod(0o555)
    read = "store = SqliteStore(path, write=False)\nprint(len(list(store.records())), store.check()); store.close()"
    assert as_nobody(read, reachable) == "300 ()\n"
    assert list(files(reachable)) == ["records.db"]


def test_reading_makes_no_file_and_changes_nothing(path):
    with pytest.raises(RecordsUnusable, match="does not exist"):
        SqliteStore(path.parent / "typo.db", write=False)
    before = files(path)
    store = SqliteStore(path, write=False)
    with pytest.raises(RecordsUnusable, match="reading only"):
        store.append([record(900)])
    with pytest.raises(RecordsUnusable, match="reading only"):
        store.start("f")
    store.close()
    assert files(path) == before


def test_a_network_file_system_is_refused(tmp_path):
    mounts = tmp_path / "mounts"
    share = tmp_path / "sha re"
    share.mkdir()
    point = str(share).replace(" ", "\\040")
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {point} nfs4 rw 0 0\n")
    assert filesystem(share, mounts) == "nfs4"
    assert filesystem(tmp_path, mounts) == "ext4"
    with pytest.raises(RecordsUnusable, match=r"network file system \(nfs4\)"):
        SqliteStore(share / "records.db", mounts=mounts)
    assert list(share.iterdir()) == []
    mounts.write_text(f"/dev/sda / ext4 rw 0 0\nserver:/x {point} nfs4 rw 0 0\ntmpfs {point} tmpfs rw 0 0\n")
    assert filesystem(share, mounts) == "tmpfs"


def test_a_new_store_appears_complete_and_never_replaces_one(path):
    before = path.read_bytes()
    create(path)
    assert path.read_bytes() == before
    assert list(files(path)) == ["records.db"]
    fresh = path.parent / "fresh.db"
    create(fresh)
    assert fresh.stat().st_size > 4096
    store = SqliteStore(fresh)
    assert list(store.records()) == []
    store.close()


def test_two_stores_of_one_file_in_one_process_see_each_other(path):
    first, second = SqliteStore(path), SqliteStore(path)
    first.append([record(700)])
    assert len(list(second.records())) == 301
    second.close()
    first.append([record(701)])
    first.close()
    shutil.copy(path, path.parent / "copy.db")
    copy = open_store(f"sqlite:///{path.parent}/copy.db", write=False)
    assert len(list(copy.records())) == 302
    copy.close()
