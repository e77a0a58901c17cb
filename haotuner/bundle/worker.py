"""The process that touches the GPU: ``python -m haotuner.bundle.worker SETUP.json``, one JSON line a start and an answer.

It does its tasks in order and ends at the first fault that a CUDA context does not survive; the overseer starts another.
"""

from __future__ import annotations

import ctypes
import json
import signal
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from haotuner.bundle import manifest, suites
from haotuner.bundle.ceilings import measure_peak
from haotuner.bundle.checking import check
from haotuner.bundle.child_process import answer_stream
from haotuner.bundle.kernels import Kernels
from haotuner.bundle.probe import OUT_OF_MEMORY, GpuError, Probe
from haotuner.bundle.suites import Suite
from haotuner.bundle.timing import Stopwatch
from haotuner.bundle.trials import CHECK, PEAK, SUBSET, Task, decode

PR_SET_PDEATHSIG = 1  # linux/prctl.h
FREE = "free"  # second argument: the parent is a tool whose launching thread may end first, so do not follow it
LOST = 75  # exit code: the context is gone, start again (EX_TEMPFAIL)
MISPLACED = (
    "cudaErrorIllegalAddress",
    "cudaErrorMisalignedAddress",
    "cudaErrorInvalidAddressSpace",
    "cudaErrorIllegalInstruction",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """Setup of a worker: where the bundle lies, which code to run, and its tasks."""

    root: str
    arch: str
    tasks: list[dict[str, Any]]


def serve(setup: Setup, answers: TextIO) -> int:
    """Do every task, one JSON line a start and an answer; an exit code."""

    def say(answer: Mapping[str, Any]) -> None:
        answers.write(json.dumps(answer) + "\n")
        answers.flush()

    bundle = manifest.read(Path(setup.root))
    suite = suites.read(bundle.root)
    probe = Probe(bundle.root / bundle.probes[setup.arch])
    probe.open_stream()
    say({"ready": True})
    kernels = Kernels(bundle, setup.arch, probe)
    stopwatch = Stopwatch(probe, kernels, suite)
    for number, fields in enumerate(setup.tasks):
        say({"start": number})
        answer, lost = _attempt(decode(fields), probe, kernels, stopwatch, suite)
        say({"end": number, **answer, **({"fault": True} if lost else {})})
        if lost:
            return LOST
    return 0


def _attempt(
    task: Task, probe: Probe, kernels: Kernels, stopwatch: Stopwatch, suite: Suite
) -> tuple[Mapping[str, Any], bool]:
    """The answer to one task, and whether the process is of no more use."""
    stage = "verify" if task.stage == CHECK else "time"
    try:
        if task.stage == PEAK:
            return {"rates": measure_peak(task.kernel, probe, suite)}, False
        if task.stage == CHECK:
            return {"check": asdict(check(task, probe, kernels))}, False
        if task.stage == SUBSET:
            return stopwatch.on_subset(task), False
        return stopwatch.time(task), False
    except GpuError as error:
        if error.code == OUT_OF_MEMORY:
            stopwatch.forget()
            return _failed("load", "memory", str(error)), False
        return _failed(stage, "out_of_bounds" if error.name in MISPLACED else "crash", str(error)), True
    except Exception as error:  # the border of the process: whatever a kernel's launcher raises is a row
        return _failed("run", "error", f"{type(error).__name__}: {error}"), _context_lost(probe)


def _context_lost(probe: Probe) -> bool:
    try:
        probe.finish()
    except GpuError:
        return True
    return False


def _failed(stage: str, reason: str, detail: str) -> dict[str, Any]:
    return {"failed": {"stage": stage, "reason": reason, "detail": detail[:500]}}


if __name__ == "__main__":
    # tvm-ffi imports torch where there is one: seconds of start, and a second CUDA runtime, that no kernel needs.
    sys.modules["torch"] = None  # type: ignore[assignment]
    if FREE not in sys.argv[2:]:  # never outlive the overseer: a stray kernel would hold the GPU
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    sys.exit(serve(Setup(**json.loads(Path(sys.argv[1]).read_text())), answer_stream()))
