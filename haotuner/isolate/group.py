"""A process with a group of its own, ended with all that it started; its limits; one command with a time limit.

Limits on what a child process takes from the machine: memory, the size of one file, no core dump.

A process with a group of its own: it is stopped, continued and killed with all that it started, and dies with us.

It inherits the reading end of a pipe, the lifeline. When this process ends, however it ends, the other end closes and
the kernel sends SIGKILL to the group. (Not PR_SET_PDEATHSIG: that fires when the *thread* that started the child ends, and
spares what the child started.)

One command from start to end, with a time limit: a compiler, a tool. All that it started ends with it.

It has a session of its own: a signal to our process group, as a terminal or a service manager sends it, does not reach it.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import resource
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event
from typing import IO

from haotuner.errors import WorkerLost
from haotuner.isolate.answers import TimedOut


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a child and of what it starts. Not for GPU work or peers: drivers and libraries reserve freely."""

    memory_share: float = 0.8  # of physical memory: a runaway job gets MemoryError and does not call the OOM killer
    file_bytes: int = 1 << 30  # of one file: a library has under 1 MiB; a job that floods its log must not fill the disk

    def apply(self) -> None:
        """Limit this process."""
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
        # Not RLIMIT_AS: compilers and BLAS reserve tens of GiB of addresses that they never touch.
        for limit, most in (
            (resource.RLIMIT_CORE, 0),
            (resource.RLIMIT_DATA, int(memory * self.memory_share)),
            (resource.RLIMIT_FSIZE, self.file_bytes),
        ):
            hard = resource.getrlimit(limit)[1]
            resource.setrlimit(limit, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


DYING_LIMIT_S = 5.0  # a crashed process writes its core or its trace
DYING_STEP_S = 0.005
REAP_LIMIT_S = 30.0  # a GPU's driver tears a context down before a killed process is gone
STDERR_KEPT = 2000  # bytes: the end of what a dying compiler says is what matters


class Group:
    """A started command. Its errors go to a file, whose end is its last words."""

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str] | None,
        *,
        stdin: int,
        stdout: int | IO[bytes] = subprocess.PIPE,
    ) -> None:
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  # lives as long as the process
        read_end, self._lifeline = os.pipe()
        try:
            self.process = subprocess.Popen(
                command,
                stdin=stdin,
                stdout=stdout,
                stderr=self._errors,
                start_new_session=True,
                pass_fds=[read_end],
                env=environment,
            )
            # These belong to the open pipe, which the child now shares: they hold on after our copy is closed.
            fcntl.fcntl(read_end, fcntl.F_SETSIG, signal.SIGKILL)
            fcntl.fcntl(read_end, fcntl.F_SETOWN, -self.process.pid)
            fcntl.fcntl(read_end, fcntl.F_SETFL, fcntl.fcntl(read_end, fcntl.F_GETFL) | os.O_ASYNC)
        except BaseException:
            os.close(self._lifeline)
            self._errors.close()
            raise
        finally:
            os.close(read_end)

    @property
    def pid(self) -> int:
        """Process id, and id of the group."""
        return self.process.pid

    def ended(self) -> bool:
        """True if the process has ended. It stays a zombie, so that its id, which is its group's, is not given away."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None

    def stop(self) -> None:
        """Stop the whole group and wait until its first process stands still, or has ended."""
        self._signal(signal.SIGSTOP)
        with contextlib.suppress(ChildProcessError):
            seen = os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
            if seen is not None and seen.si_code == os.CLD_STOPPED:
                os.waitid(
                    os.P_PID, self.pid, os.WSTOPPED | os.WNOHANG
                )  # take the notice, so that the next wait is for the next

    def resume(self) -> None:
        """Let a stopped group run."""
        self._signal(signal.SIGCONT)

    def kill(self) -> int:
        """End the group, stopped or not; the exit status. WorkerLost if the kernel does not let it go."""
        try:
            if self.process.returncode is None:  # not reaped yet, so the group's id cannot be somebody else's
                self._signal(signal.SIGKILL)  # also when the process has ended: what it started may live
                self.process.wait(REAP_LIMIT_S)
        except subprocess.TimeoutExpired as error:
            raise WorkerLost(
                f"process {self.pid} was killed and is still there after {REAP_LIMIT_S:.0f} s: a driver waits for its "
                "kernel, or a disk does not answer. Start the machine again before anything more is measured"
            ) from error
        finally:
            self._release()
        return int(self.process.returncode)

    def last_words(self) -> str:
        """The end of what it wrote to its errors."""
        self._errors.seek(max(0, self._errors.seek(0, os.SEEK_END) - STDERR_KEPT))
        return self._errors.read().decode(errors="replace").strip()

    def errors(self) -> str:
        """All that it wrote to its errors."""
        self._errors.seek(0)
        return self._errors.read().decode(errors="backslashreplace")

    def obituary(self) -> str:
        """Text of its end and its last words; what is left of the group is killed. For a process that closed its output."""
        until = time.monotonic() + DYING_LIMIT_S
        while not self.ended() and time.monotonic() < until:  # let it keep its own exit status
            time.sleep(DYING_STEP_S)
        text = self.last_words()
        code = self.kill()
        return f"{how_it_ended(code)}{': ' + text if text else ''}"

    def _signal(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def _release(self) -> None:
        if self._lifeline >= 0:
            os.close(self._lifeline)
            self._lifeline = -1
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(BrokenPipeError):
                    pipe.close()
        self._errors.close()


def how_it_ended(code: int) -> str:
    """An exit status in words; negative for a signal, as ``subprocess`` has it."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"killed by {signal.Signals(-code).name}"
    except ValueError:  # real-time signals have no names of their own
        return f"killed by signal {-code}"


GLANCE_S = 0.2  # how often a command is looked at whose caller may abandon it


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that ended by itself. ``code`` is negative for a signal, as ``subprocess`` has it."""

    code: int
    out: str
    errors: str


def run(
    command: Sequence[str],
    limit_s: float,
    environment: Mapping[str, str] | None = None,
    *,
    stdin: str = "",
    abandoned: Event | None = None,
) -> Finished:
    """Run a command to its end; it reads ``stdin``. Bytes that are no UTF-8 are written as escapes.

    TimedOut when the limit passes, with what it had written, or once ``abandoned`` is set by another thread: the command and
    all that it started are killed then, as they are when this process is. OSError when it cannot be started.
    """
    group = Group(command, environment, stdin=subprocess.PIPE if stdin else subprocess.DEVNULL)
    until = time.monotonic() + limit_s
    rest: bytes | None = stdin.encode() or None
    try:
        while True:
            left = max(0.0, until - time.monotonic())
            try:
                out, _ = group.process.communicate(rest, timeout=left if abandoned is None else min(left, GLANCE_S))
                return Finished(code=group.process.returncode, out=_text(out), errors=group.errors())
            except subprocess.TimeoutExpired as error:
                rest = None  # it is on its way
                name, given_up = Path(command[0]).name, abandoned is not None and abandoned.is_set()
                if given_up or time.monotonic() >= until:
                    words = "was not waited for" if given_up else f"did not end within {limit_s:g} s"
                    raise TimedOut(f"{name} {words}", _text(error.output or b"")) from None
    finally:
        group.kill()


def _text(raw: bytes) -> str:
    return raw.decode(errors="backslashreplace")
