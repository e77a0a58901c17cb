"""JSON Lines written by ``export``, read back into a store."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from haotuner.records.codec import decode
from haotuner.records.loaded import Imported, Loaded
from haotuner.records.store import RecordStore
from haotuner.records.text import read_text
from haotuner.words.record import Record


def load_jsonl(path: Path) -> Loaded:
    """The records of one file, gzipped or not.

    Lines that do not decode, or whose content hash does not fit, are counted under their reason. A last line without
    an end of line was cut and is reported as such.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: not one line is a record, or lines were refused and not one is of a timed record.
    """
    text, stopped = read_text(path, "a file of `haotuner records export`")
    records: list[Record] = []
    refused: Counter[str] = Counter()
    lines = text.split("\n")
    torn = stopped
    for number, content in enumerate(lines, start=1):
        if not content:
            continue
        try:
            records.append(decode(json.loads(content)))
        except (ValueError, TypeError, OverflowError, RecursionError) as error:
            if number == len(lines):
                torn = f"{stopped}{': ' if stopped else ''}line {number} is cut short"
            else:
                refused[f"line {number}: {error}"[:160]] += 1
    return Loaded(
        path=path,
        wanted="timed record" if records else "record of this schema",
        records=tuple(records),
        rows=len(records) + sum(refused.values()),
        refused=refused,
        torn=torn,
    )


def import_jsonl(path: Path, store: RecordStore) -> Imported:
    """Store the records of one file in one transaction; records the store already holds are left as they are.

    Raises what ``load_jsonl`` does.
    """
    return load_jsonl(path).into(store)
