"""Report: every target of every family under both splits as one document that JSON can hold, worked out in processes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any, TypeAlias

import numpy as np

from haotuner.errors import UsageError
from haotuner.transfer.device_table import DeviceTable
from haotuner.transfer.experts import SHARES, Shares
from haotuner.transfer.reading import DeviceTables
from tests.bench.transfer_study.across_devices import across_devices
from tests.bench.transfer_study.calibrate import Calibration, chosen, folds_for, scores_of
from tests.bench.transfer_study.evaluate import (
    CURVE_AT,
    SPLITS,
    Evaluation,
    report_of,
    runs_of,
    settings_document,
    why_unscorable,
    without_relatives,
)
from tests.bench.transfer_study.learning_curve import learning_curve
from tests.bench.transfer_study.modes import ModeChoice
from tests.bench.transfer_study.simulate import LONGEST_WALK, SimulatedRun
from tests.bench.transfer_study.splits import architecture, table_of
from tests.bench.transfer_study.workers import Answer, answers_of

# A few seconds of work, which is what an interruption costs. First seeds come first on every target, so what a long report
# has kept when it is interrupted is the whole of a report of fewer seeds.
SEEDS_A_JOB = 2
Settings: TypeAlias = dict[tuple[str, str], Calibration]  # by target and split


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedsOfTarget:
    """Some seeds of one target of one family under one split: what one process works on at a time."""

    family: str
    evaluation: Evaluation
    seeds: tuple[int, ...]

    @property
    def key(self) -> str:
        """Text that tells the job from every other, with all that its answer depends on but the records and the code."""
        requested = self.evaluation
        counts, seeds = (",".join(map(str, numbers)) for numbers in (requested.counts, self.seeds))
        shares = _share_text(requested.shares or SHARES)
        return f"simulate {self.family} {requested.target} {requested.split} counts {counts} seeds {seeds} shares {shares}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CurveOfTarget:
    """The learning curve of one target of one family."""

    family: str
    target: str
    shares: Shares

    @property
    def key(self) -> str:
        """As of ``SeedsOfTarget``."""
        return f"learning curve {self.family} {self.target} shares {_share_text(self.shares)}"


def _share_text(shares: Shares) -> str:
    return ",".join(f"{value:g}" for value in asdict(shares).values())


def report(
    read: DeviceTables,
    *,
    families: Sequence[str] = (),
    splits: Sequence[str] = SPLITS,
    counts: Sequence[int] = (0, 16, 32, 64, 128),
    seeds: int = 20,
    processes: int = 1,
    tell: Callable[[str], None] = lambda _: None,
    earlier: Mapping[str, Answer] = MappingProxyType({}),
    keep: Callable[[str, Answer], None] = lambda _key, _answer: None,
) -> dict[str, Any]:
    """Every split on every target of every family that two devices measured.

    Args:
        read: the device tables.
        families: only these; empty means all that at least two devices measured.
        splits: of ``SPLITS``.
        counts: target sample counts.
        seeds: seeds of every evaluation.
        processes: how many work at the same time.
        tell: told after each part.
        earlier: answers of an earlier, interrupted report on the same records, by key.
        keep: given each new answer with its key.

    Raises:
        UsageError: no family that two devices measured.
        HaotunerError: a process died.
    """
    named = families or read.families()
    shared = [name for name in named if len(read.of(name)) > 1 and any(table.groups() for table in read.of(name))]
    if not shared:
        result, left = ", ".join(read.families()), "; ".join(read.left_out)
        raise UsageError(
            f"no family was measured on two devices, with two kernels of one task on one; the store has {result}"
            + (f"; left out: {left}" if left else "")
        )
    settings = _settings(read, shared, splits, processes=processes, tell=tell, earlier=earlier, keep=keep)
    todo = sorted(_jobs(read, shared, splits, tuple(counts), seeds, settings, tell), key=lambda job: job.seeds)
    jobs = {job.key: job for job in todo}
    answers = answers_of(_runs, read, jobs, processes=processes, tell=tell, earlier=earlier, keep=keep)
    curves = {
        job.key: job for name in shared for job in _curves(read, name, next(s for s in SPLITS if s in splits), settings)
    }
    learnt = answers_of(_curve, read, curves, processes=processes, tell=tell, earlier=earlier, keep=keep)
    runs: dict[tuple[str, str, str], list[SimulatedRun]] = {}
    for key, job in jobs.items():
        requested = job.evaluation
        runs.setdefault((job.family, requested.split, requested.target), []).extend(map(run_of, answers[key]["found"]))
    document: dict[str, Any] = {"families": {}, "seeds": seeds, "counts": list(counts)}
    for family in shared:
        devices = {table.device.id: _facts(table) for table in read.of(family)}
        document["families"][family] = {"devices": devices, "splits": {}}
    if "architecture" in splits:
        for family, split, target in [key for key in runs if key[1] == "device"]:
            if _nothing_more_out(read, family, target, settings):
                runs[family, "architecture", target] = runs[family, split, target]
    for (family, split, target), of_seeds in sorted(runs.items()):
        of_target = report_of(of_seeds) | {"settings": settings_document(settings[target, split])}
        document["families"][family]["splits"].setdefault(split, {})[target] = of_target
    for family in shared:
        facts = document["families"][family]
        facts["across"] = {
            split: across_devices({target: runs[family, split, target] for target in reports}, reports)
            for split, reports in facts["splits"].items()
        }
    for key, curve in curves.items():
        document["families"][curve.family].setdefault("learning_curves", {})[curve.target] = learnt[key]["found"]
    work = sum(answer["seconds"] for answer in (*answers.values(), *learnt.values()))
    return document | {"work_s": work, "jobs": processes}


def _ranked(read: DeviceTables, family: str) -> list[DeviceTable]:
    """The tables of a family that can be targets, the longest first."""
    return sorted((table for table in read.of(family) if table.groups()), key=len, reverse=True)


def _curves(read: DeviceTables, family: str, split: str, settings: Settings) -> Iterator[CurveOfTarget]:
    """By the settings that folds chose for the target under that split."""
    for target in (table.device.id for table in _ranked(read, family)):
        yield CurveOfTarget(family=family, target=target, shares=settings[target, split].shares)


def _curve(read: DeviceTables, job: CurveOfTarget) -> dict[str, list[float]]:
    return learning_curve(*table_of(read, job.family, job.target), shares=job.shares)


def _settings(read: DeviceTables, families: Sequence[str], splits: Sequence[str], **working: Any) -> Settings:
    """What the folds inside choose for every target and split. Of new configurations there is no fold: as for the device."""
    folds = {split: "architecture" if split == "architecture" else "device" for split in splits}
    targets = sorted({table.device.id for name in families for table in _ranked(read, name)})
    inside = {(target, split): folds_for(read, target, folds[split]) for target in targets for split in splits}
    jobs = {fold.key: fold for folds in inside.values() for fold in folds}
    answers = answers_of(scores_of, read, jobs, **working)
    return {key: chosen({fold: answers[fold.key]["found"] for fold in folds}) for key, folds in inside.items()}


def _nothing_more_out(read: DeviceTables, family: str, target: str, settings: Settings) -> bool:
    """Whether leaving the architecture out is what leaving the device out is: the same sources and the same settings."""
    own = architecture(table_of(read, family, target)[0].device)
    alone = sum(architecture(table.device) == own for table in read.of(family)) == 1
    first, other = (settings.get((target, split)) for split in ("architecture", "device"))
    return alone and first is not None and other is not None and first.shares == other.shares


def _jobs(
    read: DeviceTables,
    families: Iterable[str],
    splits: Sequence[str],
    counts: tuple[int, ...],
    seeds: int,
    settings: Settings,
    tell: Callable[[str], None],
) -> Iterator[SeedsOfTarget]:
    for family in families:
        for split in [split for split in SPLITS if split in splits]:
            for table in sorted(read.of(family), key=len, reverse=True):  # the long ones first
                if not table.groups():
                    tell(f"left out: {family} on {table.device.id}: no task has two measured kernels to rank")
                    continue
                shares = settings[table.device.id, split].shares
                requested = Evaluation(target=table.device.id, counts=counts, split=split, seeds=seeds, shares=shares)
                others = [other for other in read.of(family) if other is not table]
                if split == "architecture" and _nothing_more_out(read, family, table.device.id, settings):
                    continue
                lacking = why_unscorable(*without_relatives(table, others, split), split, range(seeds))
                if lacking:
                    tell(f"left out: {family} on {table.device.id}, {split}: {lacking}")
                    continue
                for first in range(0, seeds, SEEDS_A_JOB):
                    part = tuple(range(first, min(first + SEEDS_A_JOB, seeds)))
                    yield SeedsOfTarget(family=family, evaluation=requested, seeds=part)


def _runs(read: DeviceTables, job: SeedsOfTarget) -> list[dict[str, Any]]:
    return [plain(run) for run in runs_of(read, job.family, job.evaluation, seeds=job.seeds)]


def _facts(table: DeviceTable) -> dict[str, Any]:
    best = float(np.exp(table.labels).max())
    return {"rows": len(table), "tasks": list(table.task_names), "best_share_of_roofline": best}


def plain(run: SimulatedRun) -> dict[str, Any]:
    """Everything of a run that a report tells, as values that JSON can hold; curves at ``CURVE_AT`` only."""
    return {
        "modes": {mode: {str(count): point for count, point in by.items()} for mode, by in run.modes.items()},
        "chosen": {str(count): point for count, point in run.chosen.items()},
        "choices": {str(count): asdict(choice) for count, choice in run.choices.items()},
        "baselines": run.baselines,
        "measurements": {mode: {str(share): n for share, n in to.items()} for mode, to in run.measurements.items()},
        "curves": {mode: [float(curve[n - 1]) for n in CURVE_AT] for mode, curve in run.curves.items()},
    }


def run_of(facts: Mapping[str, Any]) -> SimulatedRun:
    """The run of what ``plain`` gave; its curves are NaN where they were not told."""
    run = SimulatedRun(baselines=dict(facts["baselines"]))
    run.modes = {mode: {int(count): dict(point) for count, point in by.items()} for mode, by in facts["modes"].items()}
    run.chosen = {int(count): dict(point) for count, point in facts["chosen"].items()}
    run.choices = {int(count): ModeChoice(**choice) for count, choice in facts["choices"].items()}
    run.measurements = {mode: {float(share): n for share, n in to.items()} for mode, to in facts["measurements"].items()}
    for mode, values in facts["curves"].items():
        run.curves[mode] = np.full(LONGEST_WALK, np.nan)
        run.curves[mode][np.array(CURVE_AT) - 1] = values
    return run
