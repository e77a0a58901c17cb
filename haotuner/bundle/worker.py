"""The process that touches the GPU: one verb a stage, a task a request.

It ends at a fault that a CUDA context does not survive. compute-sanitizer runs it with one task and
no requests: ``python -m haotuner.bundle.worker SETUP.json``.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

from haotuner.bundle import manifest, suites
from haotuner.bundle.ceilings import measure_peak
from haotuner.bundle.checking import check
from haotuner.bundle.kernels import Kernels
from haotuner.bundle.probe import OUT_OF_MEMORY, GpuError, Probe
from haotuner.bundle.timing import Stopwatch
from haotuner.bundle.trials import CHECK, PEAK, SUBSET, TIME, Task, decode
from haotuner.isolate.answers import Job, Refusal
from haotuner.isolate.program import Program, Verb, attempt, described

PROGRAM = "haotuner.bundle.worker:gpu"
LOST = 75  # exit code of the one-task form: the context is gone (EX_TEMPFAIL)
MISPLACED = (
    "cudaErrorIllegalAddress",
    "cudaErrorMisalignedAddress",
    "cudaErrorInvalidAddressSpace",
    "cudaErrorIllegalInstruction",
)


def gpu(told: Mapping[str, Any]) -> Program:
    """Checks and times kernels of the bundle at ``root`` for ``arch``."""
    # tvm-ffi imports torch where there is one: seconds of start, and a second CUDA runtime, that no kernel needs.
    sys.modules["torch"] = None  # type: ignore[assignment]
    try:
        return Program(verbs=Worker(Path(told["root"]), told["arch"]).verbs())
    except GpuError as error:
        raise Refusal("load", "error", str(error)) from error


def request_of(task: Task) -> Job:
    """The request that asks for a task."""
    return {"do": task.stage, "task": asdict(task)}


class Worker:
    """One CUDA context and what is loaded into it."""

    def __init__(self, root: Path, arch: str) -> None:
        bundle = manifest.read(root)
        self._suite = suites.read(bundle.root)
        self._probe = Probe(bundle.root / bundle.probes[arch])
        self._probe.open_stream()
        self._kernels = Kernels(bundle, arch, self._probe)
        self._stopwatch = Stopwatch(self._probe, self._kernels, self._suite)

    def verbs(self) -> Mapping[str, Verb]:
        """By stage."""
        doing: Mapping[str, Callable[[Task], Mapping[str, Any]]] = {
            PEAK: lambda task: {"rates": measure_peak(task.kernel, self._probe, self._suite)},
            CHECK: lambda task: {"check": asdict(check(task, self._probe, self._kernels))},
            SUBSET: self._stopwatch.on_subset,
            TIME: self._stopwatch.time,
        }
        return {stage: partial(self._answer, do) for stage, do in doing.items()}

    def _answer(self, do: Callable[[Task], Mapping[str, Any]], job: Job) -> Job:
        task = decode(job["task"])
        try:
            return dict(do(task))
        except GpuError as error:
            if error.code == OUT_OF_MEMORY:
                self._stopwatch.forget()
                raise Refusal("load", "memory", str(error)) from error
            reason = "out_of_bounds" if error.name in MISPLACED else "crash"
            raise Refusal(stage_of(task), reason, str(error), fatal=True) from error
        except Refusal:
            raise
        except Exception as error:  # whatever a kernel's launcher raises is a row
            raise Refusal("run", "error", described(error), fatal=self._lost()) from error

    def _lost(self) -> bool:
        try:
            self._probe.finish()
        except GpuError:
            return True
        return False


def stage_of(task: Task) -> str:
    """The stage that a record of a failed task names."""
    return "verify" if task.stage == CHECK else "time"


def main(setup: Path) -> int:
    """Do the one task of a setup, ``{"root", "arch", "request"}``, and print the answer; an exit code."""
    told = json.loads(setup.read_text())
    answer, lost = attempt(gpu(told).verbs, told["request"])
    print(json.dumps(answer))
    return LOST if lost else 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
