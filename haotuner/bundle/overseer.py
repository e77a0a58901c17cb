"""Runs tasks in a worker process: a fault answers the task it happened in, and the rest goes on in a fresh process."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from haotuner.bundle.trials import CHECK, Task
from haotuner.bundle.worker import PROGRAM, request_of, stage_of
from haotuner.errors import WorkerLost
from haotuner.isolate.answers import Job, TimedOut, Unanswered
from haotuner.isolate.child import Child

START_SECONDS = 90.0  # a first context on a cold driver took over 30 s elsewhere
CHECK_SECONDS = 10.0  # most that a check may take: it needs 0.1 s, and its first launch loads a library
FAULTS_OF_A_KERNEL = 2  # after that its other tasks are left out; one hang weighs as much, for it costs its whole patience
# A family of which so many kernels brought a worker down and none came through is left out too: each costs a hang's patience
# and a new process, and GPU time is short.
HOPELESS_FAMILY = 3
EMPTY_STARTS = 3  # workers in a row that do not get ready


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A task and what came of it: the worker's fields, or a failure (``fault`` if the worker went down with it)."""

    task: Task
    fields: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Overseer:
    """How workers are started, and how long one task may take."""

    root: Path
    arch: str
    patience_s: float
    program: str = PROGRAM

    @property
    def told(self) -> dict[str, str]:
        """What a worker is told."""
        return {"root": str(self.root), "arch": self.arch}

    def run(self, tasks: Sequence[Task], deadline: float) -> Iterator[Answer]:
        """Answers in the order of the tasks until they end or the clock (``time.monotonic``) passes the deadline.

        Raises WorkerLost when no worker gets ready, or one cannot be killed.
        """
        left = list(tasks)
        faults: Counter[str] = Counter()  # by kernel
        well: set[str] = set()  # families of kernels that came through a task
        child = Child(self.program, self.told)
        try:
            while left and time.monotonic() < deadline:
                if child.pid is None and not _started(child, deadline):
                    return
                task = left.pop(0)
                fields = answer_to(child, request_of(task), stage_of(task), self._patience(task), deadline)
                if fields is None:
                    return
                fault = child.pid is None
                yield Answer(task=task, fields={**fields, "fault": True} if fault else fields)
                if "failed" not in fields:
                    well.add(_family(task))
                if not fault:
                    continue
                faults[task.kernel] += FAULTS_OF_A_KERNEL if fields["failed"]["reason"] == TimedOut.reason else 1
                reasons = [_hopeless(task, faults, well) for task in left]
                yield from (_left_out(task, why) for task, why in zip(left, reasons, strict=True) if why)
                left = [task for task, why in zip(left, reasons, strict=True) if not why]
        finally:
            child.close()

    def _patience(self, task: Task) -> float:
        return min(self.patience_s, CHECK_SECONDS) if task.stage == CHECK else self.patience_s


def answer_to(child: Child, request: Job, stage: str, patience_s: float, deadline: float) -> Mapping[str, Any] | None:
    """The fields that a started process answers, or its failure at ``stage``; None if the deadline came first."""
    try:
        child.begin(request)
        return child.finish(min(patience_s, deadline - time.monotonic()))
    except Unanswered as error:
        if isinstance(error, TimedOut) and time.monotonic() >= deadline:
            return None
        return {"failed": asdict(error.failed(stage))}


def _started(child: Child, deadline: float) -> bool:
    """Have a worker ready; False if the deadline came first."""
    ended = ""
    for _ in range(EMPTY_STARTS):
        child.launch()
        try:
            child.greeting(min(START_SECONDS, deadline - time.monotonic()))
            return True
        except Unanswered as error:
            if time.monotonic() >= deadline:
                return False
            ended = str(error)
    raise WorkerLost(f"{EMPTY_STARTS} workers ended before their first task; the last one: {ended}")


def _family(task: Task) -> str:
    return task.kernel.partition("__")[0]


def _hopeless(task: Task, faults: Counter[str], well: set[str]) -> str:
    """Why a task is not worth a process, or nothing."""
    if faults[task.kernel] >= FAULTS_OF_A_KERNEL:
        return f"the kernel hung, or brought {FAULTS_OF_A_KERNEL} workers down"
    family = _family(task)
    kin = sum(kernel.partition("__")[0] == family for kernel in faults)
    if family not in well and kin >= HOPELESS_FAMILY:
        return f"{kin} kernels of {family} brought a worker down and none came through"
    return ""


def _left_out(task: Task, why: str) -> Answer:
    failed = {"stage": "run", "reason": "error", "detail": f"left out: {why}"}
    return Answer(task=task, fields={"failed": failed, "left_out": True})
