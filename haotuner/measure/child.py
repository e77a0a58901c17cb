"""The measuring process: reads one JSON job a line, answers one JSON line. Started by measure/worker.py only."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from haotuner.measure.job import Job, Refusal

MEMORY_SHARE = 0.8  # of physical memory: a runaway job fails with MemoryError instead of calling the OOM killer
FILE_LIMIT_BYTES = 1 << 30  # of one file: a library has under 1 MiB; a job that floods its log must not fill the disk


def build(job: Job) -> Job:
    """Compile kernels (by name) into a measuring library."""
    from haotuner.compile.cpu import measuring_library
    from haotuner.compile.toolchain import Toolchain
    from haotuner.words.kernel import MicroKernel

    kernels = [MicroKernel.parse(name) for name in job["kernels"]]
    try:
        measuring_library(kernels, job["mcpu"], Toolchain.find(), Path(job["out"]))
    except Exception as error:  # the border of the worker: a compiler's error is data
        raise Refusal("build", "compile_error", f"{type(error).__name__}: {error}"[-2000:]) from error
    return {"out": job["out"]}


def compile_object(job: Job) -> Job:
    """Compile kernels (by name) into one object file, for a pack."""
    from haotuner.compile.cpu import object_code
    from haotuner.words.kernel import MicroKernel

    try:
        object_code([MicroKernel.parse(name) for name in job["kernels"]], job["mcpu"], Path(job["out"]))
    except Exception as error:  # the border of the worker: a compiler's error is data
        raise Refusal("build", "compile_error", f"{type(error).__name__}: {error}"[-2000:]) from error
    return {"out": job["out"]}


def main() -> None:
    """Serve jobs until standard input closes."""
    _die_with_parent(int(sys.argv[2]))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    # Not RLIMIT_AS: compilers and BLAS reserve tens of GiB of addresses that they never touch.
    for limit, most in (
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_DATA, int(memory * MEMORY_SHARE)),
        (resource.RLIMIT_FSIZE, FILE_LIMIT_BYTES),
    ):
        hard = resource.getrlimit(limit)[1]
        resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))
    for asked in (signal.SIGINT, signal.SIGTERM):  # the parent's to handle, whoever else of its group was told; it kills us
        signal.signal(asked, signal.SIG_IGN)
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever a compiler prints goes to the log, not into the protocol
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tvm_ffi imports it where it is: 1.5 s for nothing
    roles: dict[str, dict[str, Callable[[Job], Job]]] = {"build": {"build": build, "object": compile_object}}
    if sys.argv[1] == "time":
        from haotuner.measure.bench_table import Table

        table = Table()
        roles["time"] = {"time": table.time, "verify": table.verify, "watch": table.watch}
    else:
        from haotuner.compile.cpu import warm

        warm()  # pay for the compiler once, before the first job's clock starts
    _answer(answers, {"ready": os.getpid()})
    for line in sys.stdin:
        job = json.loads(line)
        try:
            _answer(answers, roles[sys.argv[1]][job["do"]](job))
        except Refusal as refusal:
            _answer(answers, {"failed": [refusal.stage, refusal.reason, str(refusal)]})
        except MemoryError as error:
            _answer(answers, {"failed": ["run", "memory", str(error)]})


def _die_with_parent(lifeline: int) -> None:
    """Let the kernel kill this process group when the other end of the pipe ``lifeline`` closes."""
    fcntl.fcntl(lifeline, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(lifeline, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(lifeline, fcntl.F_SETFL, fcntl.fcntl(lifeline, fcntl.F_GETFL) | os.O_ASYNC)


def _answer(stream: Any, answer: Job) -> None:
    stream.write(json.dumps(answer) + "\n")
    stream.flush()


if __name__ == "__main__":
    main()
