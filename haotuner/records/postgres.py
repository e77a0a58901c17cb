"""The record store in PostgreSQL, for many writers on many hosts: SQLAlchemy Core over psycopg 3, tables by Alembic.

The tables lie in a namespace of their own, so that a database may serve others, too. Writers take turns by an advisory
lock: rows then get their numbers in the order in which they are committed, and readers that go by numbers miss none.
"""

from __future__ import annotations

import contextlib
import time
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from alembic import command
from alembic.config import Config

from haotuner.errors import RecordsUnreachable, RecordsUnusable, UsageError
from haotuner.records.address import without_password
from haotuner.records.schema import USER_VERSION, WRITTEN, columns, from_row, to_row
from haotuner.records.sqlite import Owner
from haotuner.records.store import LEASE_S, Session
from haotuner.spec.record import Record

SCHEMA = "haotuner"  # the namespace
WRITERS = 0x68616F74  # number of the advisory lock
PAGE_ROWS = 500
_MARK = "\x01"  # before a text that is escaped
CONNECT_S = 10  # a server that does not answer for so long is down
# A network that is cut says nothing: what is not acknowledged within ``CONNECT_S`` ends a connection, sent or waited for.
_NETWORK = {"tcp_user_timeout": CONNECT_S * 1000, "keepalives_idle": CONNECT_S // 2, "keepalives_interval": CONNECT_S // 2,
            "keepalives_count": 2}  # fmt: skip
_REFUSALS = ("authentication failed", "no pg_hba.conf entry", "does not exist")  # words of a server at a new connection
_TABLES = sa.MetaData(schema=SCHEMA)
_RECORD = sa.Table("record", _TABLES, sa.Column("seq"), *(sa.Column(name) for name in WRITTEN))
_DROP_CLAIM = "DELETE FROM claim WHERE session = %s AND trial_key = %s"
_SESSION = sa.Table("session", _TABLES, *map(sa.Column, ("id", "seq", "fingerprint", "started", "what")))
_CLAIM = sa.Table("claim", _TABLES, *map(sa.Column, ("session", "trial_key", "owner", "expires")))


class PostgresStore:
    """``RecordStore`` in a database; ``write=False`` opens an existing one and never changes it."""

    def __init__(self, url: str, *, write: bool = True, busy_s: float = CONNECT_S) -> None:
        self.name, self._write, self._owner = without_password(url), write, str(Owner.mine())
        try:
            address = sa.make_url(url).set(drivername="postgresql+psycopg")
        except (sa.exc.ArgumentError, ValueError) as error:  # its text has the password
            raise UsageError(f"--db {self.name!r} is no URL; write postgresql://USER@HOST:5432/DATABASE") from error
        settings = {"search_path": SCHEMA, "lock_timeout": f"{busy_s * 1000:.0f}"}
        # A commit survives our death without waiting for the disk; ``sync`` adds the power cut.
        settings |= {"synchronous_commit": "off"} if write else {"default_transaction_read_only": "on"}
        options = " ".join(f"-c {name}={value}" for name, value in settings.items())
        try:
            engine = sa.create_engine(
                address, hide_parameters=True, pool_pre_ping=True,
                connect_args={"connect_timeout": CONNECT_S, "application_name": "haotuner", "options": options, **_NETWORK},
            )  # fmt: skip
        except ImportError as error:
            raise UsageError(f"--db {self.name!r}: psycopg cannot be loaded ({error})") from error
        self._engine: sa.Engine | None = engine
        try:
            self._version = self._opened()
        except BaseException:
            engine.dispose()
            raise

    def start(self, fingerprint: str, *, resume: bool = False, what: str = "") -> Session:
        """See ``RecordStore.start``."""
        with self._transaction("start a session") as db:
            if resume:
                own = sa.select(_SESSION).where(_SESSION.c.fingerprint == _put(fingerprint))
                for row in db.execute(own.order_by(_SESSION.c.seq.desc()).limit(1)):
                    return _session(row)
            session = Session(id=uuid.uuid4().hex[:16], fingerprint=fingerprint, started=time.time(), what=what)
            _insert_sessions(db, [session])
            return session

    def sessions(self) -> tuple[Session, ...]:
        """See ``RecordStore.sessions``."""
        with self._reading("list the sessions") as db:
            return tuple(map(_session, db.execute(sa.select(_SESSION).order_by(_SESSION.c.seq))))

    def adopt(self, sessions: Iterable[Session]) -> int:
        """See ``RecordStore.adopt``."""
        batch = list(sessions)
        with self._transaction("store sessions") as db:
            return _insert_sessions(db, batch)

    def append(self, records: Iterable[Record]) -> int:
        """See ``RecordStore.append``."""
        batch = list(records)
        rows = [tuple(map(_put, to_row(record))) for record in batch]
        claims = [(_put(record.session), _put(record.trial.key())) for record in batch]
        if not rows:
            return 0
        with self._reading("store records") as db:
            self._must_write("store records")
            connection: Any = db.connection.driver_connection
            # The whole transaction goes out at once: the lock is held while the server works, and waits for no client.
            with connection.pipeline():
                connection.execute("SELECT pg_advisory_xact_lock(%s)", (WRITERS,))
                inserted = [connection.execute(_insert(len(part)), sum(part, ())) for part in _parts(rows)]
                connection.cursor().executemany(_DROP_CLAIM, claims)
                connection.commit()
            return sum(int(cursor.rowcount) for cursor in inserted)

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
        with self._reading("count the records") as db:
            last = db.execute(sa.select(sa.func.coalesce(sa.func.max(_RECORD.c.seq), 0))).scalar_one()
        return self._pages({name: value for name, value in conditions.items() if value is not None}, last)

    def measured(self, fingerprint: str, *, session: str | None = None) -> dict[str, Record]:
        """See ``RecordStore.measured``."""
        return {record.trial.key(): record for record in self.records(fingerprint=fingerprint, session=session)}

    def claim(
        self, session: str, keys: Sequence[str], *, fingerprint: str | None = None, lease_s: float = LEASE_S
    ) -> tuple[str, ...]:
        """See ``RecordStore.claim``. An owner on another host is known to be gone by its lease alone."""
        by_text = {_put(key): key for key in keys}
        own = _put(session)
        with self._transaction("claim trials") as db:
            now = _now(db)
            recorded = sa.select(_RECORD.c.trial_key, _RECORD.c.fingerprint).where(_RECORD.c.session == own)
            claimed = sa.select(_CLAIM.c.trial_key, _CLAIM.c.owner, _CLAIM.c.expires).where(_CLAIM.c.session == own)
            busy = {key for key, of in db.execute(recorded.where(_RECORD.c.trial_key.in_(by_text)))
                    if fingerprint is None or of == _put(fingerprint)}  # fmt: skip
            for key, owner, expires in db.execute(claimed.where(_CLAIM.c.trial_key.in_(by_text))):
                if owner != self._owner and expires > now and Owner.parse(owner).lives():
                    busy.add(key)
            free = [text for text in by_text if text not in busy]
            db.execute(_CLAIM.delete().where(_CLAIM.c.session == own, _CLAIM.c.trial_key.in_(free)))
            rows = [{"session": own, "trial_key": key, "owner": self._owner, "expires": now + lease_s} for key in free]
            if rows:
                db.execute(_CLAIM.insert(), rows)
            return tuple(by_text[text] for text in free)

    def release(self, session: str, keys: Sequence[str]) -> None:
        """See ``RecordStore.release``."""
        own = (_CLAIM.c.session == _put(session), _CLAIM.c.owner == self._owner)
        with self._transaction("release claims") as db:
            db.execute(_CLAIM.delete().where(*own, _CLAIM.c.trial_key.in_(list(map(_put, keys)))))

    def select(self, statement: str, values: Mapping[str, str | int]) -> list[tuple[Any, ...]]:
        """Rows of an aggregate over the tables (``statistics.py``)."""
        with self._reading("read the statistics") as db:
            return [tuple(map(_got, row)) for row in db.execute(sa.text(statement), dict(values))]

    def now(self) -> float:
        """See ``Queryable.now``: of the server."""
        with self._reading("read the clock") as db:
            return _now(db)

    def check(self) -> tuple[str, ...]:
        """See ``RecordStore.check``."""
        with self._reading("check the records") as db:
            last = db.execute(sa.select(sa.func.coalesce(sa.func.max(_RECORD.c.seq), 0))).scalar_one()
        problems = []
        for row in self._rows({}, last):
            try:
                from_row(row, verify=True)
            except ValueError as error:
                problems.append(f"record in row {row[0]}: {error}")
        return tuple(problems)

    def sync(self) -> None:
        """See ``RecordStore.sync``: a small message is logged and waited for, and all that was logged before it."""
        with self._reading("sync") as db:
            if self._write:
                db.execute(sa.text("SET LOCAL synchronous_commit = on"))
                db.execute(sa.text("SELECT pg_logical_emit_message(true, 'haotuner', '')"))

    def close(self) -> None:
        """See ``RecordStore.close``."""
        if self._engine is None:
            return
        try:
            if self._write:
                with self._transaction("release claims") as db:
                    db.execute(_CLAIM.delete().where(_CLAIM.c.owner == self._owner))
                self.sync()
        finally:
            self._engine.dispose()
            self._engine = None

    def _opened(self) -> int:
        """Version of the tables, which are made or upgraded where this store writes."""
        with self._reading("open") as db:
            version = self._version_of(db)
            if self._write and version < USER_VERSION:
                db.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITERS)))
                db.execute(sa.text(f"CREATE SCHEMA IF NOT EXISTS {SCHEMA}"))
                config = Config()
                config.set_main_option("script_location", str(Path(__file__).parent / "migrations").replace("%", "%%"))
                config.attributes.update(connection=db, schema=SCHEMA)
                command.upgrade(config, str(USER_VERSION))
                return USER_VERSION
        if not version:
            raise RecordsUnusable(f"records: {self.name} holds no record store; check the --db URL")
        return version

    def _version_of(self, db: sa.Connection) -> int:
        """Version of the tables, 0 of none; RecordsUnusable for tables of others, and for newer ones."""
        if db.execute(sa.text("SELECT to_regclass('haotuner.alembic_version')")).scalar() is None:
            if db.execute(sa.text("SELECT to_regnamespace('haotuner')")).scalar() is not None:
                raise RecordsUnusable(
                    f"records: {self.name} has a schema {SCHEMA} of another program; name another database in --db"
                )
            return 0
        text = str(db.execute(sa.text("SELECT version_num FROM haotuner.alembic_version")).scalar())
        if not text.isdecimal() or not 1 <= int(text) <= USER_VERSION:
            raise RecordsUnusable(
                f"records: {self.name} has schema {text:.20}, this haotuner reads schema 1 to {USER_VERSION}; "
                "upgrade haotuner, or name another --db (nothing was changed)"
            )
        return int(text)

    def _pages(self, conditions: Mapping[str, str], last: int) -> Iterator[Record]:
        for row in self._rows(conditions, last):
            try:
                yield from_row(row)
            except ValueError as error:
                raise RecordsUnusable(
                    f"records: {self.name}, row {row[0]}: {error}; `haotuner records check --db` lists every such row"
                ) from error

    def _rows(self, conditions: Mapping[str, str], last: int) -> Iterator[tuple[Any, ...]]:
        filters = "".join(f" AND {name} = :{name}" for name in conditions)
        where = f"FROM record WHERE seq > :seen AND seq <= :last{filters} ORDER BY seq LIMIT {PAGE_ROWS}"
        statement = sa.text(f"SELECT {columns(self._version)} {where}")
        values = {name: _put(value) for name, value in conditions.items()}
        seen = 0
        while True:
            with self._reading("read the records") as db:
                rows = [tuple(map(_got, row)) for row in db.execute(statement, {**values, "seen": seen, "last": last})]
            yield from rows
            if len(rows) < PAGE_ROWS:
                return
            seen = rows[-1][0]

    def _must_write(self, doing: str) -> None:
        if not self._write:
            raise RecordsUnusable(f"records: cannot {doing}: {self.name} was opened for reading only")

    @contextlib.contextmanager
    def _reading(self, doing: str) -> Iterator[sa.Connection]:
        if self._engine is None:
            raise RecordsUnusable(f"records: {self.name} was closed; open it again")
        try:
            with self._engine.begin() as db:
                yield db
        except (sa.exc.DBAPIError, self._engine.dialect.loaded_dbapi.Error) as error:
            kind = RecordsUnreachable if _unreachable(error) else RecordsUnusable
            raise kind(f"records: cannot {doing}: {self.name}: {_words(error)}") from error

    @contextlib.contextmanager
    def _transaction(self, doing: str) -> Iterator[sa.Connection]:
        with self._reading(doing) as db:
            self._must_write(doing)
            db.execute(sa.select(sa.func.pg_advisory_xact_lock(WRITERS)))
            yield db


def _now(db: sa.Connection) -> float:
    """The server's clock: hosts whose clocks disagree would take each other's claims for expired."""
    return float(db.execute(sa.text("SELECT extract(epoch FROM clock_timestamp())")).scalar_one())


def _parts(rows: Sequence[tuple[Any, ...]]) -> Iterator[Sequence[tuple[Any, ...]]]:
    return (rows[start : start + PAGE_ROWS] for start in range(0, len(rows), PAGE_ROWS))


def _insert(rows: int) -> str:
    """The statement that stores so many rows; the server takes 65,535 values in one statement."""
    row = f"({', '.join(['%s'] * len(WRITTEN))})"
    return f"INSERT INTO record ({', '.join(WRITTEN)}) VALUES {', '.join([row] * rows)} ON CONFLICT (id) DO NOTHING"


def _insert_sessions(db: sa.Connection, sessions: Sequence[Session]) -> int:
    """Stores sessions, numbered on from the last; the count of those that were new."""
    known = set(db.execute(sa.select(_SESSION.c.id)).scalars())
    last = db.execute(sa.select(sa.func.coalesce(sa.func.max(_SESSION.c.seq), 0))).scalar_one()
    new = list({session.id: session for session in sessions if session.id not in known}.values())
    for number, session in enumerate(new, last + 1):
        texts = {"id": session.id, "fingerprint": _put(session.fingerprint), "what": _put(session.what)}
        db.execute(_SESSION.insert(), {**texts, "seq": number, "started": session.started})
    return len(new)


def _unreachable(error: Any) -> bool:
    """True if the server went away, shuts down or starts: states 08 and 57P0, or no state beside a connection that broke."""
    original = getattr(error, "orig", error)  # the driver's own errors arrive as they are where its pipeline is used
    state = str(getattr(original, "sqlstate", None) or "")
    broke = not state and type(original).__name__ == "OperationalError" and not _refused(str(original))
    return broke or state.startswith(("08", "57P0"))


def _untrusted(words: str) -> bool:
    """True of the client's words on a server that it does not trust, and not on an encrypted connection that broke."""
    return "certificate" in words or "does not support SSL" in words


def _refused(words: str) -> bool:
    """True of a connection that no patience makes: the driver knows no state of it, and the words alone tell."""
    return _untrusted(words) or ("FATAL: " in words and any(part in words for part in _REFUSALS))


def _words(error: Exception) -> str:
    """The server's words, which hold no password, and what to do."""
    original = getattr(error, "orig", error)
    state = str(getattr(original, "sqlstate", None) or "")
    words = " ".join(str(original).split())[:300]
    if not state and "FATAL: " in words:
        full = any(part in words.partition("FATAL: ")[2] for part in ("too many", "connection slots"))
        state = "53" if full else "28" if _refused(words) else ""
    if state == "55P03":
        return f"{words}; another process has it locked: wait for it, or end it"
    if state.startswith("53"):
        return f"{words}; the server is out of space or connections: free some, and run again with --resume"
    if state in ("25006", "42501") or state.startswith("28"):
        return f"{words}; this user may not: name another one, or grant it the right"
    if not state and _untrusted(words):
        return f"{words}; name the certificate of the server's authority, &sslrootcert=FILE, or correct host and sslmode"
    return f"{words}; check the server, and the host, port, user and database of --db"


def _put(value: Any) -> Any:
    """A text without NUL, which PostgreSQL has none of: the few that hold one are marked and escaped."""
    if not isinstance(value, str) or ("\0" not in value and not value.startswith(_MARK)):
        return value
    return _MARK + value.replace("\\", "\\\\").replace("\0", "\\0")


def _got(value: Any) -> Any:
    if not isinstance(value, str) or not value.startswith(_MARK):
        return value
    return "\\".join(part.replace("\\0", "\0") for part in value[1:].split("\\\\"))


def _session(row: Any) -> Session:
    return Session(id=row.id, fingerprint=_got(row.fingerprint), started=row.started, what=_got(row.what))
