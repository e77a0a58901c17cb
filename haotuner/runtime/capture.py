"""Capture: the shapes a server really sees, as a trace that ``haotuner tune --shapes trace.csv`` takes."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import numpy as np

from haotuner.errors import UsageError
from haotuner.runtime.pack import Pack

SLOTS = 4096 + 20 * 64  # HT_SHAPE_SLOTS in native/ht_pack.h


class Capture:
    """Counts calls a shape from ``start`` (or ``with``) to ``stop``; read and written at any time, also in between.

    The counting is one relaxed add in the native call. Memory is bounded: m is exact up to 4096 rows, beyond it 64 steps
    an octave. Calls of every handle of the same pack in this process are counted.
    """

    def __init__(self, pack: Pack) -> None:
        self._names = pack.ops
        library = pack.library()
        self._capture, self._seen = library.function("ht_capture"), library.function("ht_seen")
        self._before: dict[str, dict[int, int]] = {}
        self._after: dict[str, dict[int, int]] | None = None
        self._running = False

    def start(self) -> Capture:
        """Begin; forgets what was counted before."""
        if not self._running:
            self._before, self._after, self._running = self._totals(), None, True
            self._capture(1)
        return self

    def stop(self) -> None:
        """End; twice is harmless."""
        if self._running:
            self._capture(-1)
            self._after, self._running = self._totals(), False

    def counts(self) -> dict[str, dict[int, int]]:
        """Calls of each op by rows since ``start``, ``{name: {m: calls}}``; ops and shapes without a call are left out."""
        if not self._running and self._after is None:
            return {}  # never started: what others counted is none of ours
        now = self._totals() if self._after is None else self._after
        found = {}
        for name, shapes in now.items():
            before = self._before.get(name, {})
            new = {m: count - before.get(m, 0) for m, count in shapes.items() if count > before.get(m, 0)}
            if new:
                found[name] = new
        return found

    def write(self, path: str | Path) -> Path:
        """Write the trace as CSV (op, m, weight), replaced in one step; UsageError if nothing was seen."""
        path, counts = Path(path), self.counts()
        if not counts:
            raise UsageError("no call was seen while capturing; capture around the calls, then write the trace")
        aside = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with aside.open("w", newline="", encoding="utf-8") as stream:
                rows = csv.writer(stream, lineterminator="\n")
                rows.writerow(("op", "m", "weight"))
                rows.writerows((name, m, count) for name, shapes in counts.items() for m, count in sorted(shapes.items()))
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return path

    def __enter__(self) -> Capture:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _totals(self) -> dict[str, dict[int, int]]:
        found = {}
        for index, name in enumerate(self._names):
            table = np.zeros((2, SLOTS), np.int64)
            self._seen(index, table)
            used = np.flatnonzero(table[1])
            found[name] = {int(m): int(count) for m, count in zip(table[0][used], table[1][used], strict=True)}
        return found


def capture(pack: Pack) -> Capture:
    """``with haotuner.capture(pack) as seen: …serve…`` then ``seen.write("trace.csv")``."""
    return Capture(pack)
