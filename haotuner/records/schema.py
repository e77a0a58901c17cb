"""The tables of the SQLite store, and how a record becomes a row of them."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from typing import Any

from haotuner.records.codec import decode, encode, line
from haotuner.spec.record import Record, Timed

USER_VERSION = 2  # raised by every change of the tables; a newer one is refused
OLDEST = 1  # still read as it is, and upgraded by whoever opens it to write
UPGRADES = {1: "ALTER TABLE record ADD COLUMN repeat INTEGER NOT NULL DEFAULT 0"}  # from that version to the next
APPLICATION_ID = 0x68616F74  # "haot": tells our files from any other SQLite database

# Only types and clauses that PostgreSQL knows too (there REAL becomes DOUBLE PRECISION and seq an identity column).
TABLES = """
CREATE TABLE session (
    id TEXT PRIMARY KEY, seq INTEGER NOT NULL, fingerprint TEXT NOT NULL, started REAL NOT NULL, what TEXT NOT NULL
);
CREATE TABLE record (
    seq INTEGER PRIMARY KEY, id TEXT NOT NULL UNIQUE, digest TEXT NOT NULL, record_schema INTEGER NOT NULL,
    session TEXT NOT NULL, fingerprint TEXT NOT NULL, device_id TEXT NOT NULL,
    op TEXT NOT NULL, kernel TEXT NOT NULL, shape TEXT NOT NULL, threads INTEGER NOT NULL,
    weights TEXT NOT NULL, split TEXT NOT NULL, trial_key TEXT NOT NULL,
    status TEXT NOT NULL, median_us REAL, outcome TEXT NOT NULL,
    measured_at REAL NOT NULL, seed INTEGER NOT NULL, facts TEXT NOT NULL, repeat INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX record_by_trial ON record (session, trial_key);
CREATE INDEX record_by_fingerprint ON record (fingerprint, op);
CREATE TABLE claim (
    session TEXT NOT NULL, trial_key TEXT NOT NULL, owner TEXT NOT NULL, expires REAL NOT NULL,
    PRIMARY KEY (session, trial_key)
);
"""

_PLAIN = ("session", "fingerprint", "device_id")
_TRIAL = ("op", "kernel", "threads", "weights", "split")
_CONTENT = (
    "id",
    "record_schema",
    *_PLAIN,
    *_TRIAL,
    "shape",
    "outcome",
    "measured_at",
    "seed",
    "facts",
    "repeat",
)  # what a digest covers; a repeat of 0 is left out of it, because rows of version 1 have none
_DERIVED = ("trial_key", "status", "median_us")  # for queries by hand and for the index
WRITTEN = ("digest", *_CONTENT, *_DERIVED)
INSERT = f"INSERT INTO record ({', '.join(WRITTEN)}) VALUES ({', '.join('?' * len(WRITTEN))}) ON CONFLICT (id) DO NOTHING"


def image() -> bytes:
    """The bytes of a new, empty record store in WAL mode."""
    memory = sqlite3.connect(":memory:")
    try:
        memory.executescript(TABLES)
        memory.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        memory.execute(f"PRAGMA user_version = {USER_VERSION}")
        result = bytearray(memory.serialize())
    finally:
        memory.close()
    # Bytes 18 and 19 of the header say WAL (sqlite.org/fileformat2.html 1.3.3). Set here because two processes that
    # switch a new file to WAL at the same moment can both be told "locked".
    result[18:20] = b"\x02\x02"
    return bytes(result)


def columns(version: int) -> str:
    """Columns to select for ``from_row`` from a store of that version of the tables."""
    read = ", ".join(("seq", "digest", *_CONTENT))
    return read if version > 1 else read.replace("repeat", "0 AS repeat")


def to_row(record: Record) -> tuple[Any, ...]:
    """The values that ``INSERT`` wants.

    Raises:
        ValueError: the record could not be read back.
    """
    data = encode(record)
    decode(data, verify=False)
    trial = data["trial"]
    content = (
        *(data["id"], data["schema"], *(data[name] for name in _PLAIN), *(trial[name] for name in _TRIAL)),
        *(line(trial["shape"]), line(data["outcome"]), data["when"], data["seed"], line(data["facts"])),
        record.trial.repeat,
    )
    median = record.outcome.median_us if isinstance(record.outcome, Timed) else None
    return (_digest(content), *content, record.trial.key(), "failed" if median is None else "timed", median)


def from_row(row: tuple[Any, ...], *, verify: bool = False) -> Record:
    """The record of a row selected as ``columns`` says; ``verify`` also computes the content hash again.

    The digest over all cells is always compared: it costs microseconds, and SQLite itself notices no changed byte
    inside a value. Since it covers the id, the id is as good as verified.

    Raises:
        ValueError: the row does not decode, or does not fit its digest.
    """
    _, digest, *content = row
    if _digest(tuple(content)) != digest:
        raise ValueError("the digest does not fit the content: a value was changed after it was written")
    cells = dict(zip(_CONTENT, content, strict=True))
    repeat = {} if cells["repeat"] == 0 else {"repeat": cells["repeat"]}
    return decode(
        {
            "schema": cells["record_schema"],
            "id": cells["id"],
            "trial": {"shape": _json(cells, "shape"), **{name: cells[name] for name in _TRIAL}, **repeat},
            "outcome": _json(cells, "outcome"),
            **{name: cells[name] for name in _PLAIN},
            "when": cells["measured_at"],
            "seed": cells["seed"],
            "facts": _json(cells, "facts"),
        },
        verify=verify,
    )


def _digest(content: tuple[Any, ...]) -> str:
    *first, repeat = content
    seen = first if repeat == 0 else (*first, repeat)
    return hashlib.sha256(json.dumps(seen, default=repr).encode()).hexdigest()[:32]  # a cell may have become bytes


def _json(cells: dict[str, Any], name: str) -> Any:
    if not isinstance(cells[name], str):
        raise ValueError(f"{name} is {cells[name]!r}, expected JSON text")
    return json.loads(cells[name])
