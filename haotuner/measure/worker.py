"""One long-lived child process that runs jobs; whatever it does, the parent lives and gets an answer.

The child has its own session, and its process group dies with the parent: it holds the reading end of a pipe, the
lifeline, on which the kernel sends SIGKILL to the group when the parent's end closes. (Not PR_SET_PDEATHSIG: that fires
when the *thread* that started the child ends, and spares what the child started.) After any fault (time-out, crash,
unreadable answer) the group is killed and the child replaced on the next call. After Helion's benchmark worker (style:
one spawned child, time-out and death are different outcomes).
"""

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
from typing import Any, BinaryIO

from haotuner.errors import WorkerLost

START_LIMIT_S = 90.0  # importing tvm took 5 s here from a cold disk; a loaded machine takes a multiple
DYING_LIMIT_S = 5.0
GLANCE_S = 0.25  # how often a silent child is looked at
STDERR_KEPT = 2000  # the end of what a dying compiler says is what matters


class JobTimeout(Exception):
    """The job did not answer in time; the child was killed."""


class JobCrashed(Exception):
    """The child died during the job; the message names the signal or exit status."""


class JobFailed(Exception):
    """The job itself reported an error: ``stage``, ``reason``, and a detail."""

    def __init__(self, stage: str, reason: str, detail: str) -> None:
        super().__init__(detail)
        self.stage, self.reason, self.detail = stage, reason, detail


class Worker:
    """Runs jobs of one role (``build`` or ``time``) in a child. Not thread-safe: one caller."""

    def __init__(self, role: str, environment: Mapping[str, str]) -> None:
        self._role = role
        self._environment = dict(environment)
        self._child: subprocess.Popen[bytes] | None = None
        self._errors: BinaryIO | None = None
        self._unread = b""
        self._lifeline = -1

    def call(self, job: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
        """Answer of one job. JobFailed, JobTimeout or JobCrashed if there is none; the next call finds a fresh child."""
        child = self._child
        if child is None or _dead(child) or self._unread:  # what was not read belongs to no job
            child = self._start()
        assert child.stdin is not None
        try:
            child.stdin.write(json.dumps(job).encode() + b"\n")
            child.stdin.flush()
            answer = self._read(timeout_s)
        except BrokenPipeError:
            raise JobCrashed(self._obituary()) from None
        if "failed" in answer:
            stage, reason, detail = answer["failed"]
            raise JobFailed(stage, reason, detail)
        return answer

    def start(self) -> None:
        """Have a child ready, so that no job waits for its imports. WorkerLost if it cannot be had."""
        if self._child is None or _dead(self._child):
            self._start()

    def close(self) -> None:
        """Kill the child and everything it started."""
        if self._child is not None:
            self._end()
        if self._errors is not None:
            self._errors.close()
            self._errors = None

    def _start(self) -> subprocess.Popen[bytes]:
        self.close()
        self._unread = b""
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the child
        held, self._lifeline = os.pipe()
        command = [sys.executable, "-m", "haotuner.measure.child", self._role, str(held)]
        try:
            self._child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                start_new_session=True,
                pass_fds=[held],
                env=self._environment,
            )
        except OSError as error:
            os.close(self._lifeline)
            raise WorkerLost(f"could not start the measuring process ({error}); free some memory or processes") from error
        finally:
            os.close(held)
        try:
            self._read(START_LIMIT_S)
        except (JobTimeout, JobCrashed) as error:
            raise WorkerLost(f"the measuring process ({self._role}) did not start: {error}; try `haotuner doctor`") from None
        return self._child

    def _read(self, timeout_s: float) -> dict[str, Any]:
        assert self._child is not None and self._child.stdout is not None
        descriptor = self._child.stdout.fileno()
        until = time.monotonic() + timeout_s
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            died = _dead(self._child)  # asked before the look at the pipe: what a dead child wrote is there already
            if left <= 0 or not select.select([descriptor], [], [], min(left, GLANCE_S))[0]:
                if died:  # without an end of file: something that it started holds the pipe open
                    raise JobCrashed(self._obituary())
                if left > 0:
                    continue
                self._end()
                raise JobTimeout(f"no answer within {timeout_s:.0f} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise JobCrashed(self._obituary())
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            answer = json.loads(line)
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            self._end()
            raise JobCrashed(f"unreadable answer: {line[:200]!r}")
        return answer

    def _obituary(self) -> str:
        assert self._child is not None
        until = time.monotonic() + DYING_LIMIT_S
        while not _dead(self._child) and time.monotonic() < until:  # its pipe is closed: let it keep its own exit status
            time.sleep(0.005)
        code = self._end()
        said = ""
        if self._errors is not None:
            self._errors.seek(0, os.SEEK_END)
            self._errors.seek(max(0, self._errors.tell() - STDERR_KEPT))
            said = self._errors.read().decode(errors="replace").strip()
        how = f"killed by {_signal_name(-code)}" if code < 0 else f"exited with status {code}"
        return f"{how}{': ' + said if said else ''}"

    def _end(self) -> int:
        assert self._child is not None
        child, self._child = self._child, None
        os.close(self._lifeline)
        return _kill(child)


def _dead(child: subprocess.Popen[bytes]) -> bool:
    """Whether the child has ended. It stays a zombie, so that its id, which is its group's, is not given away."""
    return os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None


def _kill(child: subprocess.Popen[bytes]) -> int:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)  # also when the child is dead: a compiler that it started may live
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with contextlib.suppress(BrokenPipeError):
                pipe.close()
    return int(child.returncode)


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # real-time signals have no names of their own
        return f"signal {number}"
