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
FAULTS_OF_A_KERNEL = 2  # after that its other tasks are left out
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
    faults: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overseer:
    """How workers are started, and how long one task may take."""

    root: Path
    arch: str
    device: int
    patience_s: float
    python_path: str

    def setup(self, tasks: Sequence[Task]) -> Setup:
        """What a worker of these tasks is told."""
        fields = [asdict(task) for task in tasks]
        return Setup(root=str(self.root), arch=self.arch, device=self.device, tasks=fields)

    def run(self, tasks: Sequence[Task], deadline: float) -> Iterator[Answer]:
        """Answers in the order of the tasks until they end or the clock (``time.monotonic``) passes the deadline.

        Raises WorkerLost when no worker can be kept alive up to its first task, or one cannot be killed.
        """
        left = list(tasks)
        faults: Counter[str] = Counter()
        empty_starts = 0
        while left and time.monotonic() < deadline:
            one = _Round()
            yield from self._round(left, deadline, one)
            if one.out_of_time:
                return
            faults += one.faults
            left = left[one.answered :]
            banned = {kernel for kernel, count in faults.items() if count >= FAULTS_OF_A_KERNEL}
            yield from (_left_out(task) for task in left if task.kernel in banned)
            left = [task for task in left if task.kernel not in banned]
            empty_starts = 0 if one.answered else empty_starts + 1
            if empty_starts == EMPTY_STARTS:
                raise WorkerLost(f"{EMPTY_STARTS} workers ended before their first task; the last one {one.ended}")

    def _round(self, tasks: Sequence[Task], deadline: float, one: _Round) -> Iterator[Answer]:
        with tempfile.TemporaryDirectory(prefix="haotuner-gpu-") as folder:
            path = Path(folder, "setup.json")
            path.write_text(json.dumps(asdict(self.setup(tasks))))
            child = Child("haotuner.bundle.worker", str(path), python_path=self.python_path)
            hung, running = False, False
            try:
                limit = time.monotonic() + START_SECONDS
                while (line := child.line(min(limit, deadline))) not in (None, OVER):
                    said = json.loads(line or "")
                    running = "start" in said
                    limit = time.monotonic() + self.patience_s
                    if "end" in said:
                        one.answered += 1
                        task = tasks[said.pop("end")]
                        one.faults[task.kernel] += bool(said.get("fault"))
                        yield Answer(task=task, fields=said)
                one.out_of_time = line is None and time.monotonic() >= deadline
                hung = line is None
                if not hung:
                    child.exit_code()
            finally:
                code = child.end()
            one.ended = f"gave no answer within {self.patience_s:.0f} s" if hung else died(code, child.words)
            if running and not one.out_of_time:
                task = tasks[one.answered]
                one.answered += 1
                one.faults[task.kernel] += 1
                yield _fault(task, "timeout" if hung else "crash", f"the worker {one.ended}")


def _fault(task: Task, reason: str, detail: str) -> Answer:
    stage = "verify" if task.stage == CHECK else "time"
    return Answer(task=task, fields={"failed": {"stage": stage, "reason": reason, "detail": detail}, "fault": True})


def _left_out(task: Task) -> Answer:
    detail = f"left out: the kernel brought a worker down {FAULTS_OF_A_KERNEL} times"
    return Answer(task=task, fields={"failed": {"stage": "run", "reason": "error", "detail": detail}, "left_out": True})
