"""Capture: the shapes a server really sees, as a trace that ``haotuner tune --shapes trace.csv`` takes."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.runtime.pack import Pack
from haotuner.spec.limits import SHAPE_SLOTS

Counts = dict[str, dict[Any, int]]


class Capture:
    """A count of calls for each shape, from ``start`` (or ``with``) to ``stop``; read and written at any time.

    The counting is one relaxed add in the native call. Memory is bounded: an extent is exact up to 4096, beyond it in 64
    steps an octave; of an op with several dynamic axes some 5,000 different shapes are counted. Calls of every handle of
    the same pack in this process are counted.
    """

    def __init__(self, pack: Pack) -> None:
        self._axes = {op.name: tuple(axis.name for axis in op.dynamic) for op in pack.manifest.ops}
        library = pack.library()
        self._capture, self._seen = library.function("ht_capture"), library.function("ht_seen")
        self._before: Counts = {}
        self._after: Counts | None = None
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

    def counts(self) -> Counts:
        """Calls of each op by shape since ``start``; ops and shapes without a call are left out.

        ``{name: {m: calls}}``, or ``{name: {(b, m): calls}}`` of an op with several dynamic axes, in its order.
        """
        if not self._running and self._after is None:
            return {}  # never started: what others counted is none of ours
        now = self._totals() if self._after is None else self._after
        result: Counts = {}
        for name, shapes in now.items():
            before = self._before.get(name, {})
            new = {m: count - before.get(m, 0) for m, count in shapes.items() if count > before.get(m, 0)}
            if new:
                result[name] = new
        return result

    def write(self, path: str | Path) -> Path:
        """Write the trace, replaced in one step: CSV, or JSON Lines if the name ends in .jsonl.

        UsageError if nothing was seen, or if ops of different axes should share one CSV table.
        """
        path, counts = Path(path), self.counts()
        if not counts:
            raise UsageError("no call was seen while capturing; capture around the calls, then write the trace")
        lines = path.suffix.lower() == ".jsonl"
        if not lines and len({self._axes[name] for name in counts}) > 1:
            raise UsageError(f"{path}: the ops that were called have different axes; name a file that ends in .jsonl")
        aside = path.with_name(f".{path.name}.{os.getpid()}.new")
        try:
            with aside.open("w", newline="", encoding="utf-8") as stream:
                if lines:
                    stream.writelines(json.dumps(row) + "\n" for row in self._rows(counts))
                else:
                    rows = list(self._rows(counts))
                    table = csv.DictWriter(stream, list(rows[0]), lineterminator="\n")
                    table.writeheader()
                    table.writerows(rows)
            aside.replace(path)
        finally:
            aside.unlink(missing_ok=True)
        return path

    def _rows(self, counts: Counts) -> Iterator[dict[str, Any]]:
        for name, shapes in counts.items():
            for shape, count in sorted(shapes.items()):
                extents = shape if isinstance(shape, tuple) else (shape,)
                yield {"op": name, **dict(zip(self._axes[name], extents, strict=True)), "weight": count}

    def __enter__(self) -> Capture:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _totals(self) -> Counts:
        result: Counts = {}
        for index, (name, axes) in enumerate(self._axes.items()):
            table = np.zeros((len(axes) + 1, SHAPE_SLOTS), np.int64)
            self._seen(index, table)
            used = np.flatnonzero(table[-1])
            shapes = [tuple(int(extent) for extent in shape) for shape in table[:-1, used].T]
            keys = [shape[0] if len(axes) == 1 else shape for shape in shapes]
            result[name] = dict(zip(keys, (int(count) for count in table[-1, used]), strict=True))
        return result


def capture(pack: Pack) -> Capture:
    """A recorder of the shapes that a pack serves.

    ``with haotuner.capture(pack) as seen: …serve…``, then ``seen.write("trace.csv")``.
    """
    return Capture(pack)
