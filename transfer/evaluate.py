"""Evaluate: how well each mode ranks a target's kernels, over many seeds: the report of ``haotuner transfer evaluate``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.transfer.reading import Read, table_of
from haotuner.transfer.report import joined, report_of
from haotuner.transfer.search import Run, run
from haotuner.transfer.table import Table, half_of_kernels, rows_within

SPLITS = ("device", "device-and-configs")


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What to evaluate."""

    target: str
    counts: tuple[int, ...] = (0, 16, 32, 64, 128)
    split: str = "device"
    seeds: int = 20
    families: tuple[str, ...] = ()  # empty: all that the target and at least one other device measured

    def __post_init__(self) -> None:
        if self.split not in SPLITS:
            raise UsageError(f"unknown split {self.split!r}; known: {', '.join(SPLITS)}")
        if self.seeds < 1:
            raise UsageError(f"--seeds {self.seeds}: at least one is needed")
        if not self.counts or min(self.counts) < 0:
            raise UsageError("--samples must name at least one count from 0 up, such as 0,16,32")


def evaluate(read: Read, question: Question, tell: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """The report: keys of the contract, and per family the same, with intervals over seeds and what the gauge saw.

    Raises:
        UsageError: no family that both the target and another device measured.
    """
    families = question.families or read.families()
    reports: dict[str, dict[str, Any]] = {}
    for family in families:
        tables = read.of(family)
        ids = [table.device.id for table in tables]
        if question.target not in ids or len(ids) < 2:
            tell(f"{family}: measured on {', '.join(ids) or 'no device'}; transfer needs {question.target} and another")
            continue
        reports[family] = evaluate_family(read, family, question, tell)
    if not reports:
        found = sorted({table.device.id for table in read.tables})
        raise UsageError(
            f"transfer to {question.target} needs records of it and of another device for the same family; "
            f"the store has {', '.join(found)}{read.why_not(question.target)}; import more with: haotuner records import "
            f"FILE --db URL"
        )
    return {"target": question.target, "split": question.split, **joined(list(reports.values())), "families": reports}


def evaluate_family(
    read: Read, family: str, question: Question, tell: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """The report of one family; the question's own families are not looked at."""
    return report_of(runs_of(read, family, question, tell=tell))


def runs_of(
    read: Read,
    family: str,
    question: Question,
    *,
    seeds: Sequence[int] | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Run]:
    """One run a seed, of the question's seeds or of some of them."""
    target, sources = table_of(read, family, question.target)
    wanted = range(question.seeds) if seeds is None else seeds
    lacking = why_unscorable(target, sources, question.split, wanted)
    if lacking:
        raise UsageError(f"{family} on {question.target}: {lacking}")
    runs: list[Run] = []
    for seed in wanted:
        runs.append(_one(target, sources, question, seed))
        tell(f"{family} on {question.target}: seed {seed + 1} of {question.seeds}")
    return runs


def why_unscorable(target: Table, sources: Sequence[Table], split: str, seeds: Sequence[int]) -> str:
    """What a target lacks to be scored under a split, and what to do; empty if nothing."""
    if not target.groups():
        return "no task has two measured kernels to rank; import or measure more"
    for seed in seeds if split != "device" else ():
        seen = half_of_kernels([target, *sources], seed)
        scored = np.bincount(target.tasks[rows_within(target, seen, inside=False)], minlength=1).max() > 1
        shown = any(len(rows_within(table, seen, inside=True)) for table in sources)
        if not scored or not shown:
            whose = "the target's half has no task of two kernels" if shown else "the sources measured none of their half"
            rows = ", ".join(str(len(table)) for table in sources)
            return (
                f"too few records to be cut into halves of kernels: with seed {seed} {whose}, of {len(target)} rows of the "
                f"target and {rows} of sources; import more, or use --split device"
            )
    return ""


def _one(target: Table, tables: Sequence[Table], question: Question, seed: int) -> Run:
    if question.split == "device":
        return run(target, tables, question.counts, seed)
    return run(*_halves(target, tables, seed), question.counts, seed)


def _halves(target: Table, tables: Sequence[Table], seed: int) -> tuple[Table, list[Table]]:
    """The target's rows that are scored, and those of other configurations that the sources may show."""
    seen = half_of_kernels([target, *tables], seed)
    shown = [table.take(rows_within(table, seen, inside=True)) for table in tables]
    return target.take(rows_within(target, seen, inside=False)), [table for table in shown if len(table)]
