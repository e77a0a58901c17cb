"""Kernels over shapes on the emulator, apart from the caller: ``python -m tests.emulator.run JOB.json``.

One child process loads the library and forks for each case, so a deadlock, a stray access or a misuse ends that case alone.
Each case comes back as one JSON line with the largest error as a share of the tolerance.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.standin.patience import ran

RUN_SECONDS = 110  # of processors
CASE_SECONDS = 30  # of processor time, which no load of the machine stretches; a case takes 0.1 to 2 s, a livelock must end


@dataclass(frozen=True, kw_only=True)
class Call:
    """One launch: extents, elements between the rows of X and of Y, shares of k, and what happens to the sums."""

    m: int
    n: int
    k: int
    x_gap: int = 0
    y_gap: int = 0
    splits: int = 1
    steps: Sequence[str] = ()  # of haotuner/ops/epilogue.py
    out: str = ""  # element type of Y and the residual; empty: the kernel's own
    ends: Sequence[int] = ()  # of groups of rows, each with a matrix of its own: what a grouped kernel is given
    y_alignment: int = 16  # bytes: an element's size lays Y, bias and residual off 16 bytes wherever their sizes are


@dataclass(frozen=True, kw_only=True)
class Case:
    """One kernel over calls; ``launch`` are the fields of its ``Launch``."""

    symbol: str
    dtype: str
    launch: Mapping[str, Any]
    calls: Sequence[Call]
    kn: bool = False
    signs: str = "us"  # of bytes, u or s of x and of w
    modes: Sequence[str] = ("late", "early")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Cases of one library."""

    machine: str
    library: str
    traced: bool = False  # the library is: bank conflicts of the first two calls, which differ in k alone, and no results
    cases: Sequence[Case] = field(default_factory=list)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Error as a share of the tolerance (over 1 is wrong, infinite where nothing was written), or why the case ended."""

    worst: float = 0.0
    conflicts: int = 0  # of ldmatrix, in shared-memory banks
    passes: float = (
        1.0  # over the banks that a step of the main loop takes, of the least; 0 where it makes no access (traced)
    )
    died: str = ""

    @property
    def right(self) -> bool:
        """Whether every result was within the tolerance and nothing died."""
        return not self.died and self.worst <= 1.0


def run(job: Job, folder: Path, seconds: float = RUN_SECONDS) -> dict[str, Verdict]:
    """Run a job in a child process within so many seconds of processors; a verdict for each case's symbol."""
    path = folder / f"{Path(job.library).stem}.json"
    path.write_text(json.dumps(asdict(job)))
    command = [sys.executable, "-m", "tests.emulator.run", path]
    done = ran(command, seconds, cwd=Path(__file__).parents[2], env={**os.environ, "OPENBLAS_NUM_THREADS": "1"})
    if done.returncode:
        raise RuntimeError(f"the emulator's child exited {done.returncode}: {done.stderr[-3000:]}")
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    return {verdict.pop("symbol"): Verdict(**verdict) for verdict in verdicts}


def _serve(path: str) -> None:
    import numpy.random  # noqa: F401  # numpy imports it at its first use, 0.012 s of a core: once, not for each case

    from tests.emulator.calls import judge, trace

    job = json.loads(Path(path).read_text())
    machine = ctypes.CDLL(job["machine"], ctypes.RTLD_GLOBAL)
    machine.emulator_bank_conflicts.restype = ctypes.c_long
    library = ctypes.CDLL(job["library"])
    for fields in job["cases"]:
        case = Case(**{**fields, "calls": [Call(**call) for call in fields["calls"]]})
        look = trace if job["traced"] else judge
        verdict = _apart(lambda case=case, look=look: look(case, library, machine, job["seed"]))
        print(json.dumps({"symbol": case.symbol, **asdict(verdict)}), flush=True)


def _apart(judge: Any) -> Verdict:
    """The verdict of a forked process, or how it died."""
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        signal.setitimer(signal.ITIMER_PROF, CASE_SECONDS)
        os.dup2(question, 2)  # what the machine says before it gives up
        os.write(question, json.dumps(asdict(judge())).encode())
        os._exit(0)
    os.close(question)
    with os.fdopen(answer, "rb") as stream:
        output = stream.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit {status}"
        return Verdict(died=f"{how}: {output.strip()[-300:]}")
    return Verdict(**json.loads(output))


if __name__ == "__main__":
    _serve(sys.argv[1])
