"""Merge of record stores: what several machines measured, in one store."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from haotuner.records.store import RecordStore

BATCH_RECORDS = 1_000  # of one transaction: a batch takes a few tens of milliseconds, so that other writers wait no longer


@dataclass(frozen=True, slots=True, kw_only=True)
class Merged:
    """Counts of what one source gave to a store."""

    source: str  # its URL without a password
    sessions: int  # new ones
    records: int  # all that the source holds
    new: int  # records that the store did not hold


def merge(source: RecordStore, target: RecordStore, name: str) -> Merged:
    """Bring the sessions and records of ``source`` into ``target``, each once, under their own ids.

    Records go in by batches: what a failure leaves behind is sound, and merging again completes it. Claims stay behind.

    Raises:
        RecordsUnusable: a row of the source is damaged, or the target cannot be written.
    """
    sessions = target.adopt(source.sessions())
    records = new = 0
    rest = source.records()
    while batch := list(itertools.islice(rest, BATCH_RECORDS)):
        records += len(batch)
        new += target.append(batch)
    target.sync()
    return Merged(source=name, sessions=sessions, records=records, new=new)
