"""Records from before fingerprints were of generated code, under those of today: once, by a table.

The table (``rekeyed.json``) has the fingerprints of sessions of the last version that hashed sources, each with today's of
the same device, toolchain and policy; and of each family some kernels with the code that this version timed. Records of a
family count on where its kernels still have that code.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files

from haotuner.backends.fingerprint import fingerprint_with
from haotuner.records import RecordStore, Session
from haotuner.spec.record import Record, Trial

Learn = Callable[[Sequence[str]], Mapping[str, str]]  # hashes of kernels' code by name; empty where nobody could say


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """Old fingerprints of sessions to new ones, and by family kernels with the hash of their code."""

    sessions: Mapping[str, str]
    code: Mapping[str, Mapping[str, str]]


@lru_cache(maxsize=1)
def shipped_table() -> Table:
    """The table of this package."""
    data = json.loads(files("haotuner.measure").joinpath("rekeyed.json").read_text(encoding="utf-8"))
    return Table(sessions=data["sessions"], code=data["code"])


def rekeyed(
    store: RecordStore, session: Session, fingerprint: str, learn: Learn, table: Table | None = None
) -> list[Record]:
    """Copies, in a session that has no records yet, of an old session's that still count; the old ones stay.

    Args:
        store: of both sessions.
        session: of today.
        fingerprint: its fingerprint.
        learn: the code of kernels.
        table: None: the one that ships.
    """
    table = table or shipped_table()
    stored = _old_records(store, fingerprint, table)
    families = {_family(part.kernel) for record in stored for part in record.trial.composition.parts}
    tried = {family: table.code.get(family, {}) for family in families}
    now = learn(sorted({name for kernels in tried.values() for name in kernels}))
    same = {family for family, was in tried.items() if was and all(now[name] == code for name, code in was.items())}
    usable = [r for r in stored if all(_family(part.kernel) in same for part in r.trial.composition.parts)]
    code = learn(sorted({part.kernel for record in usable for part in record.trial.composition.parts}))

    def of_today(trial: Trial) -> str:
        return fingerprint_with(fingerprint, [code[part.kernel] for part in trial.composition.parts])

    return _copied(store, [r for r in usable if all(code[p.kernel] for p in r.trial.composition.parts)], session, of_today)


def rekeyed_whole(store: RecordStore, session: Session, fingerprint: str, table: Table | None = None) -> list[Record]:
    """As ``rekeyed``, of records whose trials name all their code themselves: the session's fingerprint is theirs."""
    return _copied(store, _old_records(store, fingerprint, table or shipped_table()), session, lambda _: fingerprint)


def _old_records(store: RecordStore, fingerprint: str, table: Table) -> list[Record]:
    old = {was for was, new in table.sessions.items() if new == fingerprint}
    sessions = [session for session in store.sessions() if session.fingerprint in old] if old else []
    return list(store.records(session=sessions[-1].id, fingerprint=sessions[-1].fingerprint)) if sessions else []


def _copied(
    store: RecordStore, records: Sequence[Record], session: Session, fingerprint_of: Callable[[Trial], str]
) -> list[Record]:
    copies = [replace(record, fingerprint=fingerprint_of(record.trial), session=session.id) for record in records]
    store.append(copies)
    return copies


def _family(kernel: str) -> str:
    return kernel.partition("__")[0]
