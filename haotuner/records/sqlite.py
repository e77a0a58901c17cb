"""The record store in one SQLite file, in write-ahead-log mode; owners of claims."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import RecordsUnusable
from haotuner.records import opening
from haotuner.records.opening import BUSY_S, connect, guarded, version
from haotuner.records.schema import INSERT, columns, from_row, to_row
from haotuner.records.store import LEASE_S, Session
from haotuner.spec.record import Record

_PROC = Path("/proc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Owner:
    """One store object in one process. The text form is what the store keeps."""

    host: str  # boot and process-id namespace: only inside one can a process id be looked up
    pid: int
    born: str  # start time in clock ticks since boot, so that a reused process id is not taken for the owner
    token: str  # tells store objects of one process apart

    @staticmethod
    def mine() -> Owner:
        """A new owner in this process."""
        return Owner(host=_host_id(), pid=os.getpid(), born=_born(os.getpid()) or "?", token=uuid.uuid4().hex[:12])

    @staticmethod
    def parse(text: str) -> Owner:
        """The owner of that text."""
        host, pid, born, token = text.split("/")
        return Owner(host=host, pid=int(pid), born=born, token=token)

    def __str__(self) -> str:
        """Text that parses back."""
        return f"{self.host}/{self.pid}/{self.born}/{self.token}"

    def lives(self) -> bool:
        """False only when its process is known to be gone; another host or container is presumed alive."""
        return self.host != _host_id() or _born(self.pid) == self.born


def _host_id() -> str:
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text().strip()
        return f"{boot}:{(_PROC / 'self/ns/pid').stat().st_ino}"
    except OSError:  # hardened containers hide these files; leases alone must do there
        return f"unknown:{uuid.uuid4().hex}"


def _born(pid: int) -> str | None:
    try:
        stat = (_PROC / str(pid) / "stat").read_text()
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()  # the name before it may hold blanks and brackets
    return None if state in "ZX" else rest[18]  # field 22 of proc(5); a zombie measures nothing


_NEW_SESSION = (
    "INSERT INTO session (id, seq, fingerprint, started, what) "
    "SELECT ?, (SELECT COALESCE(MAX(seq), 0) + 1 FROM session), ?, ?, ?"
)
_PAGE_ROWS = 500  # rows fetched under the lock at once: a millisecond or two of decoding
_BATCH_KEYS = 400  # bound parameters of one statement; SQLite guarantees 999


class SqliteStore:
    """``RecordStore`` in a file; ``write=False`` opens an existing one and never changes it."""

    def __init__(self, path: Path, *, write: bool = True, busy_s: float = BUSY_S, mounts: Path = opening.MOUNTS) -> None:
        self._path = path.resolve()
        self._busy_s = busy_s
        self._lock = threading.RLock()
        self._owner = str(Owner.mine())
        self._write = write
        self._claiming = False  # whether this object may hold claims that closing must drop
        if not opening.inspect(self._path, write=write, mounts=mounts):
            if not write:
                raise RecordsUnusable(f"records: {self._path} does not exist; check the --db URL")
            opening.create(self._path)
        self._db: sqlite3.Connection | None = connect(self._path, write=write, busy_s=busy_s)

    def start(self, fingerprint: str, *, resume: bool = False, what: str = "") -> Session:
        """See ``RecordStore.start``."""
        with self._transaction("start a session") as db:
            if resume:
                latest = "SELECT id, fingerprint, started, what FROM session WHERE fingerprint = ? ORDER BY seq DESC LIMIT 1"
                for row in db.execute(latest, (fingerprint,)):
                    return _session(row)
            session = Session(id=uuid.uuid4().hex[:16], fingerprint=fingerprint, started=time.time(), what=what)
            db.execute(_NEW_SESSION, (session.id, fingerprint, session.started, what))
            return session

    def sessions(self) -> tuple[Session, ...]:
        """See ``RecordStore.sessions``."""
        with self._reading("list the sessions") as db:
            return tuple(map(_session, db.execute("SELECT id, fingerprint, started, what FROM session ORDER BY seq")))

    def adopt(self, sessions: Iterable[Session]) -> int:
        """See ``RecordStore.adopt``."""
        rows = [(session.id, session.fingerprint, session.started, session.what) for session in sessions]
        with self._transaction("store sessions") as db:
            before = db.total_changes
            for row in rows:  # each number is one above the last, so one statement a row
                db.execute(f"{_NEW_SESSION} WHERE true ON CONFLICT (id) DO NOTHING", row)
            return db.total_changes - before

    def append(self, records: Iterable[Record]) -> int:
        """See ``RecordStore.append``."""
        batch = list(records)
        rows = [to_row(record) for record in batch]
        with self._transaction("store records") as db:
            before = db.total_changes
            db.executemany(INSERT, rows)
            new = db.total_changes - before
            db.executemany(
                "DELETE FROM claim WHERE session = ? AND trial_key = ?", [(r.session, r.trial.key()) for r in batch]
            )
            return new

    def records(
        self,
        *,
        fingerprint: str | None = None,
        op: str | None = None,
        session: str | None = None,
        device_id: str | None = None,
    ) -> Iterator[Record]:
        """See ``RecordStore.records``."""
        conditions = {"fingerprint": fingerprint, "op": op, "session": session, "device_id": device_id}
        conditions_set = {name: value for name, value in conditions.items() if value is not None}
        with self._reading("count the records") as db:
            last = db.execute("SELECT COALESCE(MAX(seq), 0) FROM record").fetchone()[0]
        return self._pages(conditions_set, last)

    def measured(self, fingerprint: str, *, session: str | None = None) -> dict[str, Record]:
        """See ``RecordStore.measured``."""
        return {record.trial.key(): record for record in self.records(fingerprint=fingerprint, session=session)}

    def claim(
        self, session: str, keys: Sequence[str], *, fingerprint: str | None = None, lease_s: float = LEASE_S
    ) -> tuple[str, ...]:
        """See ``RecordStore.claim``."""
        unique_keys = list(dict.fromkeys(keys))
        now = self.now()
        with self._transaction("claim trials") as db:
            recorded = _among(db, "SELECT trial_key, fingerprint FROM record", session, unique_keys)
            taken = {key for key, of in recorded if fingerprint in (None, of)}
            for key, owner, expires in _among(db, "SELECT trial_key, owner, expires FROM claim", session, unique_keys):
                if owner != self._owner and expires > now and Owner.parse(owner).lives():
                    taken.add(key)
            granted = tuple(key for key in unique_keys if key not in taken)
            db.executemany("DELETE FROM claim WHERE session = ? AND trial_key = ?", [(session, key) for key in granted])
            db.executemany(
                "INSERT INTO claim (session, trial_key, owner, expires) VALUES (?, ?, ?, ?)",
                [(session, key, self._owner, now + lease_s) for key in granted],
            )
            self._claiming = self._claiming or bool(granted)
            return granted

    def release(self, session: str, keys: Sequence[str]) -> None:
        """See ``RecordStore.release``."""
        with self._transaction("release claims") as db:
            db.executemany(
                "DELETE FROM claim WHERE session = ? AND trial_key = ? AND owner = ?",
                [(session, key, self._owner) for key in keys],
            )

    def select(self, statement: str, values: Mapping[str, str | int]) -> list[tuple[Any, ...]]:
        """Rows of an aggregate over the tables (``statistics.py``). Only of a store that was opened for reading."""
        if self._write:
            raise ValueError("statistics are read from a store that was opened with write=False")
        with self._reading("read the statistics") as db:
            return db.execute(statement, values).fetchall()

    def now(self) -> float:
        """See ``Queryable.now``: of this host, whose processes alone share the file."""
        return time.time()

    def check(self) -> tuple[str, ...]:
        """See ``RecordStore.check``."""
        with self._reading("check the file") as db:
            problems = [f"file: {text}" for (text,) in db.execute("PRAGMA integrity_check") if text != "ok"]
            last = db.execute("SELECT COALESCE(MAX(seq), 0) FROM record").fetchone()[0]
            below = db.execute("SELECT seq FROM record WHERE seq < 1 ORDER BY seq").fetchall()
        problems += [f"record in row {seq}: rows are numbered from 1 on, so that it is not read" for (seq,) in below]
        for row in self._rows({}, last):
            try:
                from_row(row, verify=True)
            except ValueError as error:
                problems.append(f"record in row {row[0]}: {error}")
        return tuple(problems)

    def sync(self) -> None:
        """See ``RecordStore.sync``."""
        with self._reading("sync"):
            if self._write:
                opening.flush(self._path)

    def close(self) -> None:
        """See ``RecordStore.close``."""
        with self._lock:
            if self._db is None:
                return
            try:
                if self._claiming:
                    with self._transaction("release claims") as db:
                        db.execute("DELETE FROM claim WHERE owner = ?", (self._owner,))
                self.sync()
            finally:
                self._db.close()  # the last one to close folds the log into the file
                self._db = None

    def _pages(self, conditions: dict[str, str], last: int) -> Iterator[Record]:
        for row in self._rows(conditions, last):
            try:
                yield from_row(row)
            except ValueError as error:
                raise RecordsUnusable(
                    f"records: {self._path}, row {row[0]}: {error}; "
                    f"`haotuner records check --db sqlite:///{self._path}` lists every such row"
                ) from error

    def _rows(self, conditions: dict[str, str], last: int) -> Iterator[tuple[Any, ...]]:
        filters = "".join(f" AND {name} = ?" for name in conditions)
        where = f"FROM record WHERE seq > ? AND seq <= ?{filters} ORDER BY seq LIMIT {_PAGE_ROWS}"
        seen = 0
        while True:
            with self._reading("read the records") as db:
                result = None
                while result != version(db):  # who upgrades the tables meanwhile may have written what these columns lack
                    result = version(db)
                    rows = db.execute(f"SELECT {columns(result)} {where}", (seen, last, *conditions.values())).fetchall()
            yield from rows
            if len(rows) < _PAGE_ROWS:
                return
            seen = rows[-1][0]

    @contextlib.contextmanager
    def _reading(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._lock, guarded(self._path, doing, self._busy_s):
            if self._db is None:
                raise RecordsUnusable(f"records: {self._path} was closed; open it again")
            yield self._db

    @contextlib.contextmanager
    def _transaction(self, doing: str) -> Iterator[sqlite3.Connection]:
        with self._reading(doing) as db:
            if not self._write:
                raise RecordsUnusable(f"records: cannot {doing}: {self._path} was opened for reading only")
            db.execute("BEGIN IMMEDIATE")
            try:
                yield db
                db.execute("COMMIT")
            except BaseException:
                if db.in_transaction:  # a full disk has already rolled it back
                    db.execute("ROLLBACK")
                raise


def _session(row: tuple[Any, ...]) -> Session:
    return Session(id=row[0], fingerprint=row[1], started=row[2], what=row[3])


def _among(db: sqlite3.Connection, select: str, session: str, keys: list[str]) -> Iterator[tuple[Any, ...]]:
    for start in range(0, len(keys), _BATCH_KEYS):
        part = keys[start : start + _BATCH_KEYS]
        yield from db.execute(
            f"{select} WHERE session = ? AND trial_key IN ({', '.join('?' * len(part))})", (session, *part)
        )
