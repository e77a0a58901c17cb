"""Runs tasks in worker processes: a fault answers the task it happened in, and the rest goes on in a fresh process."""

from __future__ import annotations

import json
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from haotuner.bundle.child_process import OVER, Child, died
from haotuner.bundle.trials import CHECK, Task
from haotuner.bundle.worker import Setup
from haotuner.errors import WorkerLost

START_SECONDS = 90.0  # a first context on a cold driver took over 30 s elsewhere
CHECK_SECONDS = 10.0  # most that a check may take: it needs 0.1 s, and its first launch loads a library
FAULTS_OF_A_KERNEL = 2  # after that its other tasks are left out; one hang weighs as much, for it costs its whole patience
# A family of which so many kernels brought a worker down and none came through is left out too: each costs a hang's patience
# and a new process, and GPU time is short.
HOPELESS_FAMILY = 3
EMPTY_STARTS = 3  # workers in a row that end before their first task


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A task and what came of it: the worker's fields, or a failure seen from outside (``fault``)."""

    task: Task
    fields: Mapping[str, Any]


@dataclass(slots=True, kw_only=True)
class _Round:
    """One worker's share of a run."""

    answered: int = 0
    out_of_time: bool = False
    ended: str = ""
    faults: Counter[str] = field(default_factory=Counter)  # by kernel
    well: set[str] = field(default_factory=set)  # families of kernels that came through a task


@dataclass(frozen=True, slots=True, kw_only=True)
class Overseer:
    """How workers are started, and how long one task may take."""

    root: Path
    arch: str
    patience_s: float
    python_path: str

    def setup(self, tasks: Sequence[Task]) -> Setup:
        """Setup of a worker for these tasks."""
        fields = [asdict(task) for task in tasks]
        return Setup(root=str(self.root), arch=self.arch, tasks=fields)

    def run(self, tasks: Sequence[Task], deadline: float) -> Iterator[Answer]:
        """Answers in the order of the tasks until they end or the clock (``time.monotonic``) passes the deadline.

        Raises WorkerLost when no worker can be kept alive up to its first task, or one cannot be killed.
        """
        left = list(tasks)
        faults: Counter[str] = Counter()
        well: set[str] = set()
        empty_starts = 0
        while left and time.monotonic() < deadline:
            one = _Round()
            yield from self._round(left, deadline, one)
            if one.out_of_time:
                return
            faults += one.faults
            well |= one.well
            left = left[one.answered :]
            reasons = [_hopeless(task, faults, well) for task in left]
            yield from (_left_out(task, why) for task, why in zip(left, reasons, strict=True) if why)
            left = [task for task, why in zip(left, reasons, strict=True) if not why]
            empty_starts = 0 if one.answered else empty_starts + 1
            if empty_starts == EMPTY_STARTS:
                raise WorkerLost(f"{EMPTY_STARTS} workers ended before their first task; the last one {one.ended}")

    def _patience(self, task: Task) -> float:
        return min(self.patience_s, CHECK_SECONDS) if task.stage == CHECK else self.patience_s

    def _round(self, tasks: Sequence[Task], deadline: float, one: _Round) -> Iterator[Answer]:
        with tempfile.TemporaryDirectory(prefix="haotuner-gpu-") as folder:
            path = Path(folder, "setup.json")
            path.write_text(json.dumps(asdict(self.setup(tasks))))
            child = Child("haotuner.bundle.worker", str(path), python_path=self.python_path)
            hung, running, patience = False, False, self.patience_s
            try:
                limit = time.monotonic() + START_SECONDS
                while (line := child.line(min(limit, deadline))) not in (None, OVER):
                    said = json.loads(line or "")
                    running = "start" in said
                    if "start" in said:
                        patience = self._patience(tasks[said["start"]])
                    limit = time.monotonic() + patience
                    if "end" in said:
                        one.answered += 1
                        task = tasks[said.pop("end")]
                        if said.get("fault"):
                            one.faults[task.kernel] += 1
                        elif "failed" not in said:
                            one.well.add(_family(task))
                        yield Answer(task=task, fields=said)
                one.out_of_time = line is None and time.monotonic() >= deadline
                hung = line is None
                if not hung:
                    child.exit_code()
            finally:
                code = child.end()
            one.ended = f"gave no answer within {patience:.0f} s" if hung else died(code, child.words)
            if running and not one.out_of_time:
                task = tasks[one.answered]
                one.answered += 1
                one.faults[task.kernel] += FAULTS_OF_A_KERNEL if hung else 1
                yield _fault(task, "timeout" if hung else "crash", f"the worker {one.ended}")


def _fault(task: Task, reason: str, detail: str) -> Answer:
    stage = "verify" if task.stage == CHECK else "time"
    return Answer(task=task, fields={"failed": {"stage": stage, "reason": reason, "detail": detail}, "fault": True})


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
