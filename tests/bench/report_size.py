"""Seconds, memory and bytes of a report of a large record store: ``python -m tests.bench.report_size``.

The store has invented times of 60 ops on 4 devices at 50 shapes, one in 50 of them failed. It is made by SQL, in a folder
that is removed at the end; the report is made by the command, in a process of its own.
"""

from __future__ import annotations

import argparse
import os
import sqlite3
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

from haotuner.records.schema import image

RECORDS = 1_000_000
MOST_S, MOST_BYTES, MOST_MEMORY = 30.0, 5 << 20, 2 << 30  # what issue and guide promise
_ROWS = """
WITH RECURSIVE number(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM number WHERE n < :count)
INSERT INTO record SELECT n, printf('%032x', n), '', 1, 's', 'f', 'device-' || (n / 60 % 4),
    'dense_n' || (8 + n % 60) || '_k64',
    'cpu_dense_fp32__mr' || (1 + n % 6) || '_nr' || (16 * (1 + n % 4)) || '_pw16_ku1_vl16_pf0',
    '{"m":' || (1 + (n / 240) % 50) || '}', 1, 'cold', 'n', 'k' || n, CASE WHEN n % 50 THEN 'timed' ELSE 'failed' END,
    CASE WHEN n % 50 THEN 10.0 + (n * 7919 % 1000003) / 1e4 END,
    CASE WHEN n % 50 THEN '{"max_error":0.0,"samples_us":[1.0]}'
        ELSE '{"detail":"what the compiler said of ' || n || '","reason":"compile_error","stage":"build"}' END,
    1.7e9 + n, 0, '{}', 0 FROM number"""


class Figures(NamedTuple):
    """Cost of one report."""

    seconds: float
    peak_bytes: int
    file_bytes: int

    @property
    def within(self) -> bool:
        """True if size and memory are what is promised; time is for a quiet machine."""
        return self.file_bytes <= MOST_BYTES and self.peak_bytes <= MOST_MEMORY


def fill(path: Path, count: int) -> None:
    """A store of so many invented records."""
    path.write_bytes(image())
    with closing(sqlite3.connect(path)) as db, db:
        db.execute(_ROWS, {"count": count})


def measured(store: Path, out: Path) -> Figures:
    """Figures of `haotuner report` of a store."""
    begin = time.perf_counter()
    words = [sys.executable, "-m", "haotuner", "report", str(store), "--out", str(out)]
    child = os.spawnv(os.P_NOWAIT, sys.executable, words)
    _, status, usage = os.wait4(child, 0)
    if status:
        raise SystemExit("the report was not made")
    return Figures(time.perf_counter() - begin, usage.ru_maxrss * 1024, out.stat().st_size)


def main() -> int:
    """Print the figures; 1 if one is over what is promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=RECORDS)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        fill(Path(folder) / "r.db", arguments.records)
        own = measured(Path(folder) / "r.db", Path(folder) / "report.html")
    print(f"{arguments.records:,} records: {own.seconds:.1f} s (at most {MOST_S:.0f})")
    print(f"memory: {own.peak_bytes / 1e6:,.0f} MB (at most {MOST_MEMORY / 1e6:,.0f})")
    print(f"file: {own.file_bytes / 1e6:.2f} MB (at most {MOST_BYTES / 1e6:.2f})")
    return int(not own.within or own.seconds > MOST_S)


if __name__ == "__main__":
    sys.exit(main())
