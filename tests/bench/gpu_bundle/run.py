"""The run on a GPU machine: stage by stage, task by task, each once; what a killed run left is gone on from."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from haotuner.errors import HaotunerError, UsageError
from tests.bench.gpu_bundle import report, running
from tests.bench.gpu_bundle.stages import LIMIT_MINUTES, SHARES, STAGES, RunContext, Task, commanded, folders, tasks_of
from tests.bench.gpu_bundle.state import BEGUN, DONE, FAILED, SKIPPED, State
from tests.bench.gpu_bundle.suites import SUITES, Suite

DONE_CODE, FAILED_CODE, MORE_CODE, NO_DEVICE_CODE = 0, 1, 3, 4


class Run:
    """One run of ``gpu_run.py``."""

    def __init__(self, context: RunContext, suite: Suite, *, minutes: float, limits: dict[str, float]) -> None:
        self._place, self._suite, self._limits = context, suite, limits
        self._end = time.monotonic() + 60 * minutes
        self._state = State(context.out)
        self._stopped = False
        cache = str(context.root / "cache")
        self._environment = {**os.environ, "XDG_CACHE_HOME": cache, "PYTHONUNBUFFERED": "1"}

    def stop(self, number: int, frame: FrameType | None) -> None:
        """A signal: what runs is asked to end, the report is written."""
        self._stopped = True

    def go(self, stages: Sequence[str]) -> int:
        """Do what is left of these stages; the exit code."""
        for stage in stages:
            self._stage(stage)
            self._write()
            if self._stopped or (stage == "inventory" and "error" in self._inventory()["device"]):
                break
        self._write()
        problem = self._inventory()["device"].get("error")
        if problem:
            print(f"gpu_run: {self._place.device}: {problem}", file=sys.stderr)
            return NO_DEVICE_CODE
        statuses = [entry.status for key, entry in self._state.items() if key.partition("/")[0] in stages]
        if self._stopped or any(not self._state.over(task.key) for stage in stages for task in self._tasks(stage)):
            print("gpu_run: more to do; run the same command again", file=sys.stderr)
            return MORE_CODE
        return FAILED_CODE if {FAILED, BEGUN} & set(statuses) else DONE_CODE

    def _stage(self, stage: str) -> None:
        now = time.monotonic()
        minutes = self._limits.get(stage, LIMIT_MINUTES.get(stage))
        seconds = (self._end - now) * SHARES[stage] if minutes is None else 60 * minutes
        end = min(self._end, now + seconds)
        tasks = [task for task in self._tasks(stage) if not self._state.over(task.key)]
        for index, task in enumerate(tasks):
            left = end - time.monotonic()
            if self._stopped:
                return
            if task.why_not:
                self._state.end(task.key, SKIPPED, 0.0, task.why_not)
            elif left >= task.least_s:
                self._do(task, left, len(tasks) - index)
                self._write()

    def _do(self, task: Task, left_s: float, tasks_left: int) -> None:
        command, limit_s = commanded(task, self._suite, self._place, left_s, tasks_left)
        print(f"gpu_run: {task.key}, at most {limit_s:.0f} s", file=sys.stderr, flush=True)
        self._state.begin(task.key)
        out = self._place.out / (task.out or f"{task.stage}-{task.name}.txt")
        ended = running.run(command, out, self._environment, limit_s=limit_s, stopped=lambda: self._stopped)
        there = not task.makes or (self._place.out / task.makes).exists()
        if ended.code in task.right and there:
            self._state.end(task.key, DONE, ended.seconds)
        elif not ended.late:
            self._state.end(task.key, FAILED, ended.seconds, f"exit code {ended.code}: {ended.said}")
        # else it stays begun: the next run goes on with it

    def _tasks(self, stage: str) -> list[Task]:
        return tasks_of(stage, self._suite, self._place, self._inventory())

    def _inventory(self) -> dict[str, Any]:
        path = self._place.out / "inventory.json"
        result: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"device": {}}
        return result

    def _write(self) -> None:
        report.write(self._place.out, self._state, self._inventory())


def main(root: Path, arguments: Sequence[str]) -> int:
    """Run the bundle at ``root``; an exit code."""
    parser = argparse.ArgumentParser(prog="gpu_run.py", description="Run this bundle; again until it says that all is done.")
    parser.add_argument("--out", type=Path, default=Path("results"), help="results; a later run goes on from them")
    parser.add_argument("--minutes", type=float, default=60.0, help="of this run in all")
    parser.add_argument("--stages", default=",".join(STAGES), help="some of them")
    parser.add_argument("--limit", action="append", default=[], metavar="STAGE=MINUTES", help="of one stage; repeatable")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--against", default="", help="GPU peers, e.g. torch,cublaslt [default: all that are there]")
    parser.add_argument("--suite", choices=sorted(SUITES), default="full")
    parser.add_argument(
        "--driver", choices=("real", "late", "early"), default="real", help="late, early: a stand-in for tests"
    )
    options = parser.parse_args(arguments)
    try:
        stages = _known(options.stages.split(","))
        limits = {_known([name])[0]: float(minutes) for name, _, minutes in (text.partition("=") for text in options.limit)}
        out = options.out.resolve()
        for name in folders(SUITES[options.suite]):
            (out / name).mkdir(parents=True, exist_ok=True)
        position = RunContext(root=root, out=out, device=options.device, driver=options.driver, against=options.against)
        run = Run(position, SUITES[options.suite], minutes=options.minutes, limits=limits)
    except HaotunerError as error:
        print(f"gpu_run: {error}", file=sys.stderr)
        return error.exit_code
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, run.stop)
    return run.go(stages)


def _known(names: Sequence[str]) -> list[str]:
    unknown = sorted(set(names) - set(STAGES))
    if unknown:
        raise UsageError(f"no stage {', '.join(unknown)}; they are {', '.join(STAGES)}")
    return [name for name in STAGES if name in names]
