"""Contents of a file, found before any store is opened, and what became of them in a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from haotuner.errors import UsageError
from haotuner.records.store import RecordStore
from haotuner.records.units import fits_store
from haotuner.spec.record import Record, Timed


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """Result of importing one file."""

    path: Path
    device_id: str
    mapping: str
    op: str
    rows: int
    timed: int
    failed: int
    new: int  # records the store did not hold before
    refused: Mapping[str, int]  # reason to number of rows left out
    dropped: Mapping[str, int]  # column to number of rows whose number in it no record can hold; the rows came in
    torn: str  # where reading stopped, empty for a whole file


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """The usable records of one file.

    Raises:
        UsageError: there is none, or rows were refused and not one timed row is left.
    """

    path: Path
    wanted: str  # what a usable row of such a file is called
    records: tuple[Record, ...]
    rows: int
    refused: Counter[str]
    dropped: Counter[str] = field(default_factory=Counter)
    mapping: str = ""  # of a foreign file
    torn: str = ""

    def __post_init__(self) -> None:
        timed = any(isinstance(record.outcome, Timed) for record in self.records)
        if timed or (self.records and not self.refused):
            return
        why = "; ".join(f"{reason} ({count})" for reason, count in self.refused.most_common(3))
        result = f", only {len(self.records)} failed" if self.records else ""
        raise UsageError(
            f"{self.path}: not one {self.wanted}{result}: {why or self.torn or 'it has no rows'}; nothing was stored"
        )

    def into(self, store: RecordStore) -> Imported:
        """Store the records in one transaction; those that the store already holds are left as they are.

        Raises:
            UsageError: what the store has of the same trials leaves not one timed row.
        """
        ready = self._agreeing(store) if self.mapping else self  # our own export is moved whole, whatever it says
        timed = sum(isinstance(record.outcome, Timed) for record in ready.records)
        return Imported(
            path=self.path,
            device_id=", ".join(sorted({record.device_id for record in ready.records})),
            mapping=self.mapping,
            op=", ".join(sorted({record.trial.op.name for record in ready.records})),
            rows=self.rows,
            timed=timed,
            failed=len(ready.records) - timed,
            new=store.append(ready.records),
            refused=dict(ready.refused),
            dropped=dict(self.dropped),
            torn=self.torn,
        )

    def _agreeing(self, store: RecordStore) -> Loaded:
        sound, odd = fits_store(self.records, store)
        if not odd:
            return self
        reason = "more than 100 times away from what the store has of the same configuration: mixed units?"
        return replace(self, records=tuple(sound), refused=self.refused + Counter({reason: odd}))
