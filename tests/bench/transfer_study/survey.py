"""Survey: what ``haotuner transfer report`` finds, and ablation, permutation test and funnel of every family beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from haotuner.transfer.reading import DeviceTables
from tests.bench.transfer_study.ablation import ablate
from tests.bench.transfer_study.permutation import permute
from tests.bench.transfer_study.report import report
from tests.bench.transfer_study.survivors import survivors
from tests.bench.transfer_study.workers import Answer, answers_of


def survey(
    read: DeviceTables,
    *,
    families: Sequence[str] = (),
    counts: Sequence[int] = (0, 16, 32, 64, 128),
    seeds: int = 20,
    processes: int = 1,
    tell: Callable[[str], None] = lambda _: None,
    earlier: Mapping[str, Answer] = MappingProxyType({}),
    keep: Callable[[str, Answer], None] = lambda _key, _answer: None,
) -> dict[str, Any]:
    """The document of ``report``, its arguments and errors; each family has "funnel", "ablate" and "permute", too."""
    document = report(
        read, families=families, counts=counts, seeds=seeds, processes=processes, tell=tell, earlier=earlier, keep=keep
    )
    jobs = {f"{test} {family}": (test, family) for family in document["families"] for test in ("permute", "ablate")}
    answers = answers_of(_tested, read, jobs, processes=processes, tell=tell, earlier=earlier, keep=keep)
    for family, facts in document["families"].items():
        facts["funnel"] = [asdict(survivor) for table in read.of(family) for survivor in survivors(table)]
        facts |= {test: answers[f"{test} {family}"]["found"] for test in ("permute", "ablate")}
    document["work_s"] += sum(answer["seconds"] for answer in answers.values())
    return document


def _tested(read: DeviceTables, job: tuple[str, str]) -> dict[str, Any]:
    test, family = job
    return ablate(read, family) if test == "ablate" else permute(read, family)
