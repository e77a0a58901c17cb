"""A process with a group of its own: it is stopped, continued and killed with all that it started, and dies with us.

It inherits the reading end of a pipe, the lifeline. When this process ends, however it ends, the other end closes and
the kernel sends SIGKILL to the group. (Not PR_SET_PDEATHSIG: that fires when the *thread* that started the child ends, and
spares what the child started.)
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import IO

from haotuner.errors import WorkerLost

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
