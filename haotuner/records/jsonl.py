"""JSON Lines written by ``export``, read back into a store."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.records.codec import decode
from haotuner.records.loaded import Loaded
from haotuner.records.text import read_text
from haotuner.spec.record import Record


def is_export(path: Path) -> bool:
    """True if the first line of a file, gzipped or not, is one that ``export`` writes."""
    try:
        first = json.loads(read_text(path, "a file of measurements")[0].partition("\n")[0])
    except (UsageError, EnvironmentMissing, ValueError, RecursionError):  # whoever reads it says what is wrong
        return False
    return isinstance(first, dict) and {"schema", "trial"} <= first.keys()


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
