"""A contender's process as its parent sees it: runs only while it is asked something, stopped otherwise."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from haotuner.bench.contender import Setting
from haotuner.words.record import Failed

# The child sees what its parent sees: the same import path, whether from a checkout, a wheel or a test.
BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from haotuner.bench.child import main; main()"
DYING_STEP_S, DYING_STEPS = 0.01, 300  # a crashed process writes its core or trace for at most three seconds
STDERR_KEPT = 1000  # characters of what a dying process said that go into the failure

POOL_VARIABLES = (  # every pool that a peer here may bring; a process has one library, so all get the same count
    "OMP_NUM_THREADS",
    "MKL_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "BLIS_NUM_THREADS",
)
# Settings of peers that the caller's environment may hold and that could hamper them (a fixed OpenBLAS core type, say).
DROPPED_PREFIXES = (
    *("OMP_", "KMP_", "GOMP_", "MKL_", "OPENBLAS_", "GOTO_", "BLIS_", "ONEDNN_", "DNNL_", "ATEN_", "ORT_", "OV_"),
    *("OPENVINO_", "TORCH_", "TORCHINDUCTOR_", "ZENDNN", "ZENTORCH_", "NPY_"),
)
ISA_VARIABLES: Mapping[str, Mapping[str, str]] = {  # the names under which each library takes such a limit
    "avx2": {
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
        "ATEN_CPU_CAPABILITY": "avx2",
    },
    "sse": {
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "ATEN_CPU_CAPABILITY": "default",
    },
}


class Missing(Exception):
    """The library of the contender is not installed; the message says which."""


class Down(Exception):
    """No answer will come: the request failed. ``alive`` says whether the process can be asked again."""

    def __init__(self, failed: Failed, *, alive: bool) -> None:
        super().__init__(failed.detail)
        self.failed, self.alive = failed, alive


def child_environment(environment: Mapping[str, str], setting: Setting) -> dict[str, str]:
    """The caller's environment without settings that could hamper a peer, with the thread count."""
    kept = {name: value for name, value in environment.items() if not name.startswith(DROPPED_PREFIXES)}
    kept.update(dict.fromkeys(POOL_VARIABLES, str(setting.threads)))
    kept.update(ISA_VARIABLES[setting.isa] if setting.isa else {})
    return kept


class Child:
    """One contender's process. Not thread-safe. Its life hangs on the thread that made it (PR_SET_PDEATHSIG)."""

    def __init__(self, spec: str, setting: Setting, environment: Mapping[str, str]) -> None:
        self._said = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the process)
        self._unread = b""
        self._process = subprocess.Popen(
            [sys.executable, "-c", BOOT, json.dumps(sys.path), spec, json.dumps(asdict(setting)), str(os.getpid())],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=child_environment(environment, setting),
            start_new_session=True,  # a group of its own: stopped, continued and killed together with what it starts
        )

    @property
    def pid(self) -> int:
        """Process id, and id of its process group."""
        return self._process.pid

    def hello(self, limit_s: float) -> dict[str, Any]:
        """``{"version", "alone"}`` as it answers, after which it is stopped. Missing or Down otherwise."""
        answer = self._read(limit_s)
        if "missing" in answer:
            self.kill()
            raise Missing(answer["missing"])
        self._judge(answer)
        self._stop()
        return answer

    def begin(self, request: Mapping[str, Any]) -> None:
        """Let it run and hand it a request; `finish` takes the answer. Several children may have begun at once."""
        self._signal(signal.SIGCONT)
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise self._died() from None

    def finish(self, limit_s: float) -> dict[str, Any]:
        """The answer to what was begun, the process stopped again. Down after a failure."""
        answer = self._read(limit_s)
        self._stop()
        return self._judge(answer)

    def ask(self, request: Mapping[str, Any], limit_s: float) -> dict[str, Any]:
        """One request, one answer."""
        self.begin(request)
        return self.finish(limit_s)

    def kill(self) -> int:
        """End it and everything it started, stopped or not; the exit status."""
        if self._process.returncode is None:  # not reaped yet: the group's id cannot be somebody else's
            self._signal(signal.SIGKILL)  # unlike other signals it also ends a stopped process
            self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._said.close()
        return self._process.returncode

    def _read(self, limit_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        descriptor = self._process.stdout.fileno()
        until = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                self.kill()
                raise Down(Failed(stage="run", reason="timeout", detail=f"no answer within {limit_s:.0f} s"), alive=False)
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise self._died()
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def _judge(self, answer: dict[str, Any]) -> dict[str, Any]:
        if "failed" in answer:
            stage, reason, detail = answer["failed"]
            alive = stage != "load"
            if not alive:
                self.kill()
            raise Down(Failed(stage=stage, reason=reason, detail=detail), alive=alive)
        return answer

    def _stop(self) -> None:
        """Stop the whole group and wait until it stands still."""
        self._signal(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):
            seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if seen is not None and seen.si_code == os.CLD_STOPPED:
                os.waitid(
                    os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG
                )  # take the notice, so that the next wait is for the next stop

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _died(self) -> Down:
        for _ in range(DYING_STEPS):  # its pipe is closed: let it keep its own exit status, and leave it unreaped for `kill`
            if os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
                break
            time.sleep(DYING_STEP_S)
        self._said.seek(0, os.SEEK_END)
        self._said.seek(max(0, self._said.tell() - STDERR_KEPT))
        said = self._said.read().decode(errors="replace").strip()
        code = self.kill()
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exited with status {code}"
        return Down(Failed(stage="run", reason="crash", detail=f"{how}{': ' + said if said else ''}"), alive=False)
