"""Record store that waits for its server: a call that finds it unreachable is repeated for a while."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from haotuner.errors import RecordsUnreachable
from haotuner.records.store import LEASE_S, RecordStore, Session
from haotuner.spec.record import Record

PATIENCE_S = 30.0  # a server that was killed is back within seconds where somebody watches over it
PAUSE_S = 0.5
# Stored once more at the end: a server that is killed loses what it confirmed last and had not yet written to its disk.
RECENT = 1000
Answer = TypeVar("Answer")


class PatientStore:
    """``RecordStore`` over another one. Calls may be repeated: a record is stored once, a claim is its owner's."""

    def __init__(self, store: RecordStore, patience_s: float = PATIENCE_S) -> None:
        self._store, self._patience_s = store, patience_s
        self._recent: deque[Record] = deque(maxlen=RECENT)

    def start(self, fingerprint: str, *, resume: bool = False, what: str = "") -> Session:
        """See ``RecordStore.start``."""
        return self._answered(lambda: self._store.start(fingerprint, resume=resume, what=what))

    def sessions(self) -> tuple[Session, ...]:
        """See ``RecordStore.sessions``."""
        return self._answered(self._store.sessions)

    def adopt(self, sessions: Iterable[Session]) -> int:
        """See ``RecordStore.adopt``; of a call that was repeated, 0 of sessions that the first had stored."""
        batch = list(sessions)
        return self._answered(lambda: self._store.adopt(batch))

    def append(self, records: Iterable[Record]) -> int:
        """See ``RecordStore.append``; of a call that was repeated, 0 of records that the first had stored."""
        batch = list(records)
        count = self._answered(lambda: self._store.append(batch))
        self._recent.extend(batch)
        return count

    def records(
        self,
        *,
        fingerprint: str | None = None,
        op: str | None = None,
        session: str | None = None,
        device_id: str | None = None,
    ) -> Iterator[Record]:
        """See ``RecordStore.records``: read whole, so that nothing is delivered twice."""
        return iter(
            self._answered(
                lambda: list(self._store.records(fingerprint=fingerprint, op=op, session=session, device_id=device_id))
            )
        )

    def measured(self, fingerprint: str, *, session: str | None = None) -> dict[str, Record]:
        """See ``RecordStore.measured``."""
        return self._answered(lambda: self._store.measured(fingerprint, session=session))

    def claim(
        self, session: str, keys: Sequence[str], *, fingerprint: str | None = None, lease_s: float = LEASE_S
    ) -> tuple[str, ...]:
        """See ``RecordStore.claim``."""
        return self._answered(lambda: self._store.claim(session, keys, fingerprint=fingerprint, lease_s=lease_s))

    def release(self, session: str, keys: Sequence[str]) -> None:
        """See ``RecordStore.release``."""
        self._answered(lambda: self._store.release(session, keys))

    def check(self) -> tuple[str, ...]:
        """See ``RecordStore.check``."""
        return self._answered(self._store.check)

    def sync(self) -> None:
        """See ``RecordStore.sync``."""
        self._answered(self._store.sync)

    def close(self) -> None:
        """See ``RecordStore.close``. Claims that an unreachable server keeps end with this process."""
        try:
            if self._recent:
                self._store.append(self._recent)
            self._store.close()
        except RecordsUnreachable:
            return

    def _answered(self, call: Callable[[], Answer]) -> Answer:
        until = time.monotonic() + self._patience_s
        while True:
            try:
                return call()
            except RecordsUnreachable:
                if time.monotonic() > until:
                    raise
                time.sleep(PAUSE_S)
