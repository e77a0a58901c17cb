"""A record store in memory: for tests, and for tuning without a file."""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence

from haotuner.errors import RecordsUnusable
from haotuner.records.codec import decode, encode
from haotuner.records.store import LEASE_S, Session
from haotuner.spec.record import Record


class MemoryStore:
    """``RecordStore`` whose records end with the process."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._records: dict[str, Record] = {}
        self._sessions: list[Session] = []
        self._closed = False

    def start(self, fingerprint: str, *, resume: bool = False, what: str = "") -> Session:
        """See ``RecordStore.start``."""
        with self._open():
            if resume:
                for session in reversed(self._sessions):
                    if session.fingerprint == fingerprint:
                        return session
            session = Session(id=uuid.uuid4().hex[:16], fingerprint=fingerprint, started=time.time(), what=what)
            self._sessions.append(session)
            return session

    def sessions(self) -> tuple[Session, ...]:
        """See ``RecordStore.sessions``."""
        with self._open():
            return tuple(self._sessions)

    def adopt(self, sessions: Iterable[Session]) -> int:
        """See ``RecordStore.adopt``."""
        with self._open():
            known = {session.id for session in self._sessions}
            new = {session.id: session for session in sessions if session.id not in known}
            self._sessions += new.values()
            return len(new)

    def append(self, records: Iterable[Record]) -> int:
        """See ``RecordStore.append``."""
        batch = [decode(encode(record), verify=False) for record in records]  # what a file would refuse is refused here too
        with self._open():
            before = len(self._records)
            for record in batch:
                self._records.setdefault(record.id, record)  # the first to arrive stays
            return len(self._records) - before

    def records(
        self,
        *,
        fingerprint: str | None = None,
        op: str | None = None,
        session: str | None = None,
        device_id: str | None = None,
    ) -> Iterator[Record]:
        """See ``RecordStore.records``."""
        with self._open():
            result = list(self._records.values())
        return (
            r
            for r in result
            if (fingerprint is None or r.fingerprint == fingerprint)
            and (op is None or r.trial.op.name == op)
            and (session is None or r.session == session)
            and (device_id is None or r.device_id == device_id)
        )

    def measured(self, fingerprint: str, *, session: str | None = None) -> dict[str, Record]:
        """See ``RecordStore.measured``."""
        return {r.trial.key(): r for r in self.records(fingerprint=fingerprint, session=session)}

    def claim(
        self, session: str, keys: Sequence[str], *, fingerprint: str | None = None, lease_s: float = LEASE_S
    ) -> tuple[str, ...]:
        """See ``RecordStore.claim``; there is no second owner, so only recorded trials are left out."""
        with self._open():
            done = {r.trial.key() for r in self.records(session=session, fingerprint=fingerprint)}
            return tuple(key for key in dict.fromkeys(keys) if key not in done)

    def release(self, session: str, keys: Sequence[str]) -> None:
        """Nothing to do: nobody else can see this store."""

    def check(self) -> tuple[str, ...]:
        """See ``RecordStore.check``."""
        with self._open():
            return tuple(f"record {at} holds {r.id}" for at, r in self._records.items() if at != r.id)

    def sync(self) -> None:
        """Nothing to do: there is no file."""

    def close(self) -> None:
        """See ``RecordStore.close``."""
        self._closed = True

    def _open(self) -> threading.RLock:
        if self._closed:
            raise RecordsUnusable("records: this store was closed; open it again")
        return self._lock
