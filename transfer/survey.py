"""Survey: every table and curve of the transfer page from the records of one store, as one document that JSON can hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

from haotuner.errors import UsageError
from haotuner.transfer.ablation import ablate
from haotuner.transfer.evaluate import SPLITS, Question, runs_of, why_unscorable
from haotuner.transfer.parallel import spread
from haotuner.transfer.permutation import permute
from haotuner.transfer.reading import Read
from haotuner.transfer.report import report_of
from haotuner.transfer.runs import plain, run_of
from haotuner.transfer.search import Run
from haotuner.transfer.survivors import survivors
from haotuner.transfer.table import Table

SEEDS_A_JOB = 5  # half a minute of work at most, which is what an interruption costs
Answer: TypeAlias = dict[str, Any]  # found, and the seconds it took


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One target of one family under one split; or, without a question, what is asked of a family once."""

    kind: str  # "evaluate", "ablate", "permute"
    family: str
    question: Question | None = None
    seeds: tuple[int, ...] = ()  # of the question, those that this job runs

    @property
    def key(self) -> str:
        """Text that tells the job from every other, with all that its answer depends on but the records and the code."""
        q = self.question
        asked = "" if q is None else f" {q.target} {q.split} counts {_words(q.counts)} seeds {_words(self.seeds)}"
        return f"{self.kind} {self.family}{asked}"


def _words(numbers: Iterable[int]) -> str:
    return ",".join(map(str, numbers))


def survey(
    read: Read,
    *,
    families: Sequence[str] = (),
    counts: Sequence[int] = (0, 16, 32, 64, 128),
    seeds: int = 20,
    jobs: int = 1,
    tell: Callable[[str], None] = lambda _: None,
    kept: Mapping[str, Answer] = MappingProxyType({}),
    keep: Callable[[str, Answer], None] = lambda _key, _answer: None,
) -> dict[str, Any]:
    """Both splits on every target, ablation, permutation test and funnel of every family that two devices measured.

    Args:
        read: the records.
        families: only these; empty means all that at least two devices measured.
        counts: target sample counts.
        seeds: seeds of every evaluation.
        jobs: processes.
        tell: told after each part.
        kept: answers of an earlier, interrupted survey of the same records, by key.
        keep: given each new answer with its key.

    Raises:
        UsageError: no family that two devices measured.
    """
    named = families or read.families()
    shared = [name for name in named if len(read.of(name)) > 1 and any(table.groups() for table in read.of(name))]
    if not shared:
        found, left = ", ".join(read.families()), "; ".join(read.left_out)
        raise UsageError(
            f"no family was measured on two devices, with two kernels of one task on one; the store has {found}"
            + (f"; left out: {left}" if left else "")
        )
    wanted = list(_jobs(read, shared, tuple(counts), seeds, tell))
    document: dict[str, Any] = {"families": {}, "seeds": seeds, "counts": list(counts)}
    for family in shared:
        tables = read.of(family)
        document["families"][family] = {
            "devices": {table.device.id: _facts(table) for table in tables},
            "splits": {split: {} for split in SPLITS},
            "funnel": [asdict(found) for table in tables for found in survivors(table)],
        }
    answers = {job.key: kept[job.key] for job in wanted if job.key in kept}
    for job, answer in spread(_answer, read, [job for job in wanted if job.key not in kept], processes=jobs):
        keep(job.key, answer)
        answers[job.key] = answer
        tell(f"{job.key}: {answer['seconds']:.0f} s")
    runs: dict[tuple[str, str, str], list[Run]] = {}
    for job in wanted:
        found = answers[job.key]["found"]
        if job.question is None:
            document["families"][job.family][job.kind] = found
        else:
            runs.setdefault((job.family, job.question.split, job.question.target), []).extend(map(run_of, found))
    for (family, split, target), of_seeds in sorted(runs.items()):
        document["families"][family]["splits"][split][target] = report_of(of_seeds)
    for facts in document["families"].values():
        facts["splits"] = {split: reports for split, reports in facts["splits"].items() if reports}
    document["work_s"] = sum(answer["seconds"] for answer in answers.values())
    document["jobs"] = jobs
    return document


def _jobs(
    read: Read, families: Iterable[str], counts: tuple[int, ...], seeds: int, tell: Callable[[str], None]
) -> Iterable[Job]:
    for family in families:  # the long ones first, so that the processes end together
        for split in SPLITS:
            for table in sorted(read.of(family), key=len, reverse=True):
                question = Question(target=table.device.id, counts=counts, split=split, seeds=seeds)
                others = [other for other in read.of(family) if other is not table]
                lacking = why_unscorable(table, others, split, range(seeds))
                if lacking:
                    tell(f"left out: {family} on {table.device.id}, {split}: {lacking}")
                    continue
                for first in range(0, seeds, SEEDS_A_JOB):
                    part = tuple(range(first, min(first + SEEDS_A_JOB, seeds)))
                    yield Job(kind="evaluate", family=family, question=question, seeds=part)
        yield Job(kind="permute", family=family)
        yield Job(kind="ablate", family=family)


def _answer(read: Read, job: Job) -> Answer:
    started = time.monotonic()
    found: Any
    if job.question is not None:
        found = [plain(run) for run in runs_of(read, job.family, job.question, seeds=job.seeds)]
    else:
        found = ablate(read, job.family) if job.kind == "ablate" else permute(read, job.family)
    return {"found": found, "seconds": time.monotonic() - started}


def _facts(table: Table) -> dict[str, Any]:
    efficiency = table.efficiency()
    return {
        "rows": len(table),
        "tasks": list(table.task_names),
        "best_share_of_roofline": float(efficiency.max()),
    }
