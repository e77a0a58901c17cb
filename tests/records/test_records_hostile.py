"""Record stores of others: nothing in them runs, and what is wrong with them is said in words."""

from __future__ import annotations

import random
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from haotuner.errors import RecordsUnusable
from haotuner.records import SqliteStore
from tests.contract.record_examples import record
from tests.records.test_records_sqlite import path, refused  # noqa: F401


def changed(path: Path, statement: str) -> None:  # noqa: F811
    with sqlite3.connect(path) as db:
        db.execute(statement)
    db.close()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        ("CREATE TRIGGER gone AFTER INSERT ON session BEGIN DELETE FROM record; END", "holds a trigger .gone."),
        ("CREATE TRIGGER gone BEFORE DELETE ON claim BEGIN DELETE FROM record; END", "holds a trigger"),
        ("CREATE VIEW seen AS SELECT * FROM record", "holds a view .seen."),
        ("CREATE VIRTUAL TABLE words USING fts5(text)", "holds a virtual table .words."),
    ],
)
def test_a_store_that_would_run_something_is_refused(path, statement, message):  # noqa: F811
    changed(path, statement)
    refused(path, message)


def test_functions_in_the_schema_of_others_do_not_run(path):  # noqa: F811
    changed(path, "CREATE INDEX own ON record (digest)")  # plain indices are data
    with closing(SqliteStore(path)) as store:
        assert store._db is not None
        assert store._db.execute("PRAGMA trusted_schema").fetchone() == (0,)
        with pytest.raises(sqlite3.OperationalError, match="not authorized|no such function"):
            store._db.execute("SELECT load_extension('nothing')")


def test_rows_that_are_not_read_are_told(path):  # noqa: F811
    changed(path, "UPDATE record SET seq = -1 WHERE seq = 7")
    with closing(SqliteStore(path, write=False)) as store:
        assert len(store.measured("f")) == 299
        assert store.check() == ("record in row -1: rows are numbered from 1 on, so that it is not read",)


def test_damage_of_any_byte_is_said_in_words(path):  # noqa: F811
    """Names in the schema, which SQLite repeats when it finds them damaged, need not be UTF-8 then."""
    sound, draw = path.read_bytes(), random.Random(3)
    start = sound.index(b"CREATE TABLE")
    for turn in range(60):
        at = start - 40 + turn * 6 if turn < 30 else draw.randrange(len(sound))
        path.write_bytes(
            sound[:at] + bytes([sound[at] | 0x80 if turn < 30 else sound[at] ^ 1 << draw.randrange(8)]) + sound[at + 1 :]
        )
        for file in path.parent.glob("records.db-*"):
            file.unlink()
        try:
            with closing(SqliteStore(path, write=False, busy_s=0.2)) as store:
                store.check()
                list(store.measured("f"))
        except RecordsUnusable as error:
            assert "records:" in str(error)


def test_a_sound_store_is_still_one(path):  # noqa: F811
    with closing(SqliteStore(path)) as store:
        store.append([record(500)])
        assert store.check() == ()
