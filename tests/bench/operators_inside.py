"""Sections of operators.md that are timed inside one process, on one thread: ours and another call take turns, in pairs."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tests.bench.cpu_dense import haotuner, machine

clock = time.thread_time  # of the calling thread alone: other load that takes turns with it does not count
Call = Callable[[], Any]
ROUNDS = 31
LEAST_S = 0.004  # of one turn


def tuned_pack(ops: Sequence[str], shapes: Sequence[str], args: Any, folder: str) -> tuple[list[str], str]:
    """Packs of ops, those of one range together; where they lie, and a line about the machine."""
    packs, document = [], {}
    for index, shape_text in enumerate(dict.fromkeys(shapes)):
        path = str(Path(folder) / str(index))
        words = [word for op, range_ in zip(ops, shapes, strict=True) if range_ == shape_text for word in ("--op", op)]
        budget = f"{float(args.budget.rstrip('s')) * (len(words) // 2):.0f}s"
        more = ("--budget", budget, "--peers", "none", "-q", *(("--db", args.db) if args.db else ()))
        document = haotuner("tune", *words, "--shapes", shape_text, "--out", path, "--threads", args.threads, *more)
        packs.append(path)
    return packs, machine(document)


def paired(ours: Call, other: Call) -> tuple[float, float, float, float]:
    """Microseconds of a call of ours; the other's time over it, median and the quartiles of its rounds."""
    counts = []
    for call in (ours, other):
        call()
        begin = clock()
        call()
        counts.append(max(1, int(LEAST_S / max(clock() - begin, 1e-7))))
    times: list[list[float]] = [[], []]
    for _ in range(ROUNDS):
        for into, call, count in zip(times, (ours, other), counts, strict=True):
            begin = clock()
            for _ in range(count):
                call()
            into.append((clock() - begin) / count * 1e6)
    ratios = sorted(b / a for a, b in zip(*times, strict=True))
    low, middle, high = statistics.quantiles(ratios, n=4)
    return statistics.median(times[0]), middle, low, high


def text(title: str, command: str, head: str, rows: Sequence[str], where: str) -> str:
    """A section's Markdown."""
    rule = "|" + "---|" * head.count("|") + "---|"
    return "\n".join(
        [
            f"## {title}",
            "",
            f"`{command}`",
            "",
            f"{where} Times are processor time of the calling thread.",
            "",
            f"| {head} |",
            rule,
            *rows,
        ]
    )
