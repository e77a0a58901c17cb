"""Kernels over shapes on the emulator, apart from the caller: ``python -m tests.emulator.run JOB.json``.

One child process loads the library and forks for each case, so a deadlock, a stray access or a misuse ends that case alone.
Each case comes back as one JSON line with the largest error as a share of the tolerance.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

RUN_SECONDS = 110  # below pytest's own limit
CASE_SECONDS = 30  # of processor time, which no load of the machine stretches; a case takes 0.1 to 2 s, a livelock must end
UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
UNTOUCHED = -7.0  # exact in every dtype; what lies between the rows of Y


@dataclass(frozen=True, kw_only=True)
class Case:
    """One function over shapes; a shape is (m, n, k, elements between X's rows, the same for Y)."""

    symbol: str
    dtype: str
    shapes: Sequence[tuple[int, int, int, int, int]]
    kn: bool = False
    modes: Sequence[str] = ("late", "early")


@dataclass(frozen=True, kw_only=True)
class Job:
    """Cases of one library."""

    machine: str
    library: str
    cases: Sequence[Case] = field(default_factory=list)
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """Error as a share of the tolerance (over 1 is wrong, infinite where nothing was written), or why the case ended."""

    worst: float = 0.0
    conflicts: int = 0  # of ldmatrix, in shared-memory banks
    died: str = ""

    @property
    def right(self) -> bool:
        """Whether every result was within the tolerance and nothing died."""
        return not self.died and self.worst <= 1.0


def run(job: Job, folder: Path, seconds: float = RUN_SECONDS) -> dict[str, Verdict]:
    """Run a job in a child process within so many seconds; a verdict for each case's symbol."""
    path = folder / f"{Path(job.library).stem}.json"
    path.write_text(json.dumps(asdict(job)))
    done = subprocess.run(
        [sys.executable, "-m", "tests.emulator.run", str(path)],
        capture_output=True, text=True, timeout=seconds, check=False, cwd=Path(__file__).parents[2],
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1"},
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"the emulator's child exited {done.returncode}: {done.stderr[-3000:]}")
    verdicts = [json.loads(line) for line in done.stdout.splitlines()]
    return {verdict.pop("symbol"): Verdict(**verdict) for verdict in verdicts}


def tolerance(x: Any, weight: Any, exact: Any, dtype: str) -> Any:
    """The rounding of the result, and of an fp32 sum of k products in any order (Higham 2002, eq. 3.5)."""
    import numpy as np

    summed = (x.shape[1] + 2) * UNIT_ROUNDOFF["fp32"] * (np.abs(x) @ np.abs(weight).T)
    return UNIT_ROUNDOFF[dtype] * np.abs(exact) + summed + 1e-30


def _serve(path: str) -> None:
    import tvm_ffi

    job = json.loads(Path(path).read_text())
    machine = ctypes.CDLL(job["machine"], ctypes.RTLD_GLOBAL)
    machine.emulator_bank_conflicts.restype = ctypes.c_long
    module = tvm_ffi.load_module(job["library"])
    for fields in job["cases"]:
        case = Case(**fields)
        verdict = _apart(lambda case=case: _judge(case, module[case.symbol], machine, job["seed"]))
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
        said = stream.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if status:
        how = f"signal {signal.Signals(-status).name}" if status < 0 else f"exit {status}"
        return Verdict(died=f"{how}: {said.strip()[-300:]}")
    return Verdict(**json.loads(said))


def _judge(case: Case, function: Any, machine: ctypes.CDLL, seed: int) -> Verdict:
    import numpy as np

    from tests.emulator.memory import matrix

    random = np.random.default_rng(seed)
    worst = 0.0
    for m, n, k, x_gap, y_gap in case.shapes:
        x, x_tensor = matrix(machine, m, k, k + x_gap, case.dtype)
        w, w_tensor = matrix(machine, *((k, n, n) if case.kn else (n, k, k)), case.dtype)
        y, y_tensor = matrix(machine, m, n, n + y_gap, case.dtype)
        whole_rows = np.lib.stride_tricks.as_strided(y, (m - 1, n + y_gap), y.strides)  # the last row has no gap behind it
        x[...], w[...] = random.standard_normal(x.shape), random.standard_normal(w.shape)
        x64, w64 = x.astype(np.float64), w.astype(np.float64).T if case.kn else w.astype(np.float64)
        exact = x64 @ w64.T
        allowed = tolerance(x64, w64, exact, case.dtype)
        for mode in case.modes:
            machine.emulator_set(int(mode == "late"), seed)
            whole_rows[...], y[...] = UNTOUCHED, np.nan
            function(x_tensor, w_tensor, y_tensor)
            share = np.abs(y.astype(np.float64) - exact) / allowed
            strayed = bool((whole_rows[:, n:] != UNTOUCHED).any())
            worst = max(worst, float("inf") if strayed else float(np.where(np.isnan(share), np.inf, share).max()))
    return Verdict(worst=worst, conflicts=machine.emulator_bank_conflicts())


if __name__ == "__main__":
    _serve(sys.argv[1])
