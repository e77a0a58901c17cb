"""JSON Lines written by ``export``, read back into a store."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.record import Record, Timed
from haotuner.records.codec import decode
from haotuner.records.importing import Imported
from haotuner.records.store import RecordStore


def import_jsonl(path: Path, store: RecordStore) -> Imported:
    """Store the records of one file in one transaction; records the store already holds are left as they are.

    Lines that do not decode, or whose content hash does not fit, are counted under their reason. A last line without
    an end of line was cut and is reported as such.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: not one line is a record.
    """
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise EnvironmentMissing(
            f"cannot read {path}: {error.strerror}; name a file of `haotuner records export`"
        ) from error
    records: list[Record] = []
    refused: Counter[str] = Counter()
    lines = text.split("\n")
    torn = ""
    for number, content in enumerate(lines, start=1):
        if not content:
            continue
        try:
            records.append(decode(json.loads(content)))
        except (ValueError, TypeError, RecursionError) as error:
            if number == len(lines):
                torn = f"line {number} is cut short"
            else:
                refused[f"line {number}: {error}"[:160]] += 1
    if not records:
        why = next(iter(refused), torn or "it has no lines")
        raise UsageError(f"{path}: not one record of this schema: {why}; nothing was stored")
    timed = sum(isinstance(record.outcome, Timed) for record in records)
    return Imported(
        path=path,
        device_id=", ".join(sorted({record.device_id for record in records})),
        mapping="",
        op=", ".join(sorted({record.trial.op for record in records})),
        rows=len(records) + sum(refused.values()),
        timed=timed,
        failed=len(records) - timed,
        new=store.append(records),
        refused=dict(refused),
        torn=torn,
    )
