"""RecordStore: what every record store promises, whatever it is kept in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from haotuner.spec.record import Record

LEASE_S = 600.0  # a claimed batch is tens of trials of at most seconds each; ten minutes means its owner is stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Session:
    """One tuning run, or several that continued each other with ``--resume``."""

    id: str
    fingerprint: str
    started: float  # seconds since the epoch
    what: str = ""  # for people: the ops and shapes asked for


class RecordStore(Protocol):
    """Append-only rows of measurements, failures included.

    Every implementation keeps these promises, and ``tests/contract`` runs the same tests over all of them:

    - *Records never change.* A record is stored once under its content hash (``Record.id``) and is never updated or
      deleted; delivering it again changes nothing.
    - *Atomic.* ``append`` stores all of its records or none. After it returned, they survive the death of the process;
      after ``sync`` or ``close`` also a power cut.
    - *Ordered.* ``records`` yields in the order of arrival what was stored when it was called.
    - *Concurrent.* One store object may be used by many threads; a store that lives in a file may be open in many
      processes of one host at once. It must not be carried across ``fork``: open it in the child.
    - *Nothing is swallowed.* A row that cannot be decoded, or whose hash does not fit its content, raises
      ``RecordsUnusable`` with its place; ``check`` lists all of them.
    """

    def start(self, fingerprint: str, *, resume: bool = False, what: str = "") -> Session:
        """Open a session: a new one, or with ``resume`` the latest of the same fingerprint if there is one."""
        ...

    def sessions(self) -> tuple[Session, ...]:
        """Every session, oldest first."""
        ...

    def adopt(self, sessions: Iterable[Session]) -> int:
        """Store sessions of another store under their own ids, behind those of this store; how many were new."""
        ...

    def append(self, records: Iterable[Record]) -> int:
        """Store records and drop the claims on their trials; how many were new."""
        ...

    def records(
        self,
        *,
        fingerprint: str | None = None,
        op: str | None = None,
        session: str | None = None,
        device_id: str | None = None,
    ) -> Iterator[Record]:
        """The stored records that match every given field, in order of arrival."""
        ...

    def measured(self, fingerprint: str, *, session: str | None = None) -> dict[str, Record]:
        """``Trial.key()`` to the latest record of that trial, failures included."""
        ...

    def claim(
        self, session: str, keys: Sequence[str], *, fingerprint: str | None = None, lease_s: float = LEASE_S
    ) -> tuple[str, ...]:
        """The trial keys, in the order given, that this store object alone may now measure in the session.

        Left out: trials that the session has recorded (under ``fingerprint``, where one is named), and those claimed by
        another living owner. A claim ends when its trial is recorded, with ``release`` or ``close``, when its process is
        gone, or after ``lease_s`` seconds.
        """
        ...

    def release(self, session: str, keys: Sequence[str]) -> None:
        """Give up claims of this store object that will not be measured."""
        ...

    def check(self) -> tuple[str, ...]:
        """Every problem found by reading the whole store; empty when it is sound."""
        ...

    def sync(self) -> None:
        """Make everything stored so far survive a power cut."""
        ...

    def close(self) -> None:
        """Sync, drop the claims of this object and let go of the files; calling it twice is harmless."""
        ...
