"""Progress of a tuning run: a bar on a terminal, plain lines elsewhere, and a first table early on. All on stderr."""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from haotuner.bench.compare import Watch
from haotuner.bench.result import Json as Document
from haotuner.bench.table import line
from haotuner.cli.devices import columns
from haotuner.cli.output import counted, safe, tell
from haotuner.cli.run_status import StatusWriter
from haotuner.spec.op import Op
from haotuner.spec.record import Record, Timed

PREDICTING = "predict"
PHASES = {"search": "searching kernels", "plan": "timing plans", PREDICTING: "choosing kernels from predictions"}

LINE_EVERY_S = 5.0  # without a terminal: often enough to see life, seldom enough for a log
FIRST_TABLE_S = 12.0  # a first usable answer comes within 20 s of the start


class Watcher:
    """Told every record; keeps what people want to see. ``stop`` set: tells the tuner to finish."""

    def __init__(self, ops: tuple[Op, ...], budget_s: float, *, quiet: bool, status: StatusWriter | None = None) -> None:
        self._ops, self._status = {op.name: op for op in ops}, status
        self._budget_s, self._quiet = budget_s, quiet
        self._begun_at = self._line = time.monotonic()
        self._begin = self._begun_at  # of the budget: set anew when the first op is begun, later where nothing is measured
        self._idle: float | None = None  # since when nothing is measured: packs are not charged to the budget
        self.begun = False
        self._best: dict[tuple[str, str, int], tuple[float, str]] = {}  # of an op, its axes, a bound of their product
        self._failures: Counter[str] = Counter()
        self._trials = 0
        self._tabled = quiet
        self.stop, self._stage = False, ""
        self._bar: Progress | None = None
        if sys.stderr.isatty() and not quiet:
            self._bar = Progress(
                TextColumn("{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[seen]}"),
                TimeElapsedColumn(),
                TextColumn("{task.fields[left]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task("starting the compiler", total=max(budget_s, 1e-9), seen="", left="")

    def __enter__(self) -> Watcher:
        if self._bar is not None:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._bar is not None:
            if kind is None:
                self._bar.update(self._task, completed=max(self._budget_s, 1e-9), description="tuned", left="")
            self._bar.stop()
        if self._status is not None:
            self._status.close()

    def __call__(self, op: str, phase: str, record: Record | None) -> bool:
        """One record, or a look at the clock (None); False once a stop was asked for. Without an op the phase is all."""
        if op and not self.begun:
            self.begun, self._begin = True, time.monotonic()
        if record is not None:
            self._note(op, record)
        now = time.monotonic()
        measures = bool(op) and phase != PREDICTING
        if measures and self._idle is not None:
            self._begin, self._idle = self._begin + (now - self._idle), None
        elif not measures and self._idle is None:
            self._idle = now
        counter = f" ({list(self._ops).index(op) + 1}/{len(self._ops)})" if op in self._ops else ""
        where = f"{op}{counter} {PHASES.get(phase, phase)}" if op else phase
        self._stage = self._stage if op else phase  # what was said of the whole run stands beside each op
        where = f"{self._stage}; {where}" if op and self._stage else where
        left = max(0.0, self._budget_s - ((now if self._idle is None else self._idle) - self._begin))
        time_left = f"at most {left:.0f} s left" if measures else ""
        if self._bar is not None:
            done = self._budget_s - left if self.begun else 0.0
            seen = self._seen() if measures or self._trials else ""
            self._bar.update(self._task, completed=done, description=where, seen=seen, left=time_left)
        elif not self._quiet and (not op or now - self._line >= LINE_EVERY_S):
            self._line = now
            self._say(f"{now - self._begun_at:5.0f} s  {where}" + (f": {self._seen()}, {time_left}" if measures else ""))
        if self._status is not None:
            self._status.write(stage=safe(where), seen=self._seen(), budget_s=self._budget_s, left_s=left, measures=measures)
        if not self._tabled and now - self._begin >= FIRST_TABLE_S and self._best:
            self._tabled = True
            self._say("first look, best single micro-kernel so far:\n" + self._table())
        return not self.stop

    def _note(self, op: str, record: Record) -> None:
        self._trials += 1
        if not isinstance(record.outcome, Timed):
            self._failures[record.outcome.reason] += 1
            return
        if record.trial.op.name != op or record.trial.threads != 1:
            return  # a column block, or several threads: not comparable
        us = record.outcome.median_us
        rows = math.prod(extent for _, extent in record.trial.shape.axes)
        gflops = self._ops[op].flops(record.trial.shape) / us / 1e3
        bucket = 1 << max(rows - 1, 0).bit_length()  # shapes up to the same power of two
        key = op, " * ".join(axis for axis, _ in record.trial.shape.axes), bucket
        if gflops > self._best.get(key, (0.0, ""))[0]:
            self._best[key] = gflops, record.trial.kernel

    def _seen(self) -> str:
        if not self._trials:
            return "nothing timed yet"
        best = f"best {max(g for g, _ in self._best.values()):.0f} GFLOP/s, " if self._best else ""
        failed = ", ".join(f"{count} {reason}" for reason, count in sorted(self._failures.items()))
        return f"{counted(self._trials, 'trial')}, {best}{failed or 'no failures'}"

    def _table(self) -> str:
        rows = [
            (op, f"{axes} <= {bucket}", f"{gflops:.1f}", kernel)
            for (op, axes, bucket), (gflops, kernel) in sorted(self._best.items())
        ]
        return columns([("op", "shapes", "GFLOP/s", "kernel"), *rows])

    def _say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.console.print(safe(text), markup=False, highlight=False)
        else:
            tell(text)


@contextlib.contextmanager
def race_progress(rows: int, *, quiet: bool, verbose: bool = False) -> Iterator[Watch | None]:
    """Progress of a race: a bar on a terminal, a line now and then elsewhere, a line a row with ``verbose``; on stderr."""
    if quiet:
        yield None
        return
    if not sys.stderr.isatty() or verbose:
        last = [time.monotonic()]

        def line_told(row: Document, done: int, all_rows: int) -> None:
            if verbose or done == all_rows or time.monotonic() - last[0] >= LINE_EVERY_S:
                last[0] = time.monotonic()
                tell(f"{done}/{all_rows} {line(row)}")

        yield line_told
        return
    shown = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), TextColumn("left"))
    with Progress(*shown, TimeRemainingColumn(), console=Console(stderr=True)) as bar:
        task = bar.add_task("starting the contenders", total=rows)

        def told(row: Document, done: int, all_rows: int) -> None:
            where = safe(f"{row['op']} {row['weights']}, {row['threads']} threads")
            bar.update(task, completed=done, total=all_rows, description=where)

        yield told
        bar.update(task, completed=bar.tasks[0].total, description="raced")
