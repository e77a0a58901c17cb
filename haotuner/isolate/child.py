"""One child process that answers requests, one JSON line each; after a fault the next request finds a fresh one.

Whatever the program does (crash, hang, garbage in its answers), the parent lives and gets an answer or an `Unanswered`.
After Helion's benchmark worker (style: one spawned child; time-out and death are different outcomes).
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from haotuner.errors import WorkerLost
from haotuner.isolate.answers import ChildNotResponding, Crashed, Job, Refused, TimedOut
from haotuner.isolate.group import Group, Limits

START_LIMIT_S = 300.0  # importing tvm took 5 s from a cold disk, a first CUDA context 30 s; in a crowd twenty times that
GLANCE_S = 0.25  # how often a silent child is looked at
# The child sees what its parent sees: the same import path, whether from a checkout, a wheel, a bundle or a test.
BOOT = "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1)); from haotuner.isolate.program import main; main()"


def _readable(descriptor: int, seconds: float) -> bool:
    """True if a pipe has something to read, or was closed, within a time. Any descriptor: select takes none from 1024 on."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(seconds * 1000.0))


class Child:
    """A program and the process that runs it now, if any. Not thread-safe: one caller at a time, from any thread."""

    def __init__(
        self,
        program: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        environment: Mapping[str, str] | None = None,
        limits: Limits | None = None,
        path: Sequence[str] | None = None,
        rests: bool = False,
    ) -> None:
        """Nothing is started yet.

        Args:
            program: ``module:function``; see `haotuner.isolate.program`.
            arguments: of the function, as JSON can say them.
            environment: of the process; None for ours.
            limits: of the process; None for ours.
            path: where the process imports from; None for our ``sys.path``.
            rests: the whole group is stopped (SIGSTOP) unless it is asked something.
        """
        self._program, self._arguments, self._path, self._rests = program, dict(arguments or {}), path, rests
        self._environment = None if environment is None else dict(environment)
        self._limits = limits
        self._group: Group | None = None
        self._unread = b""
        self._due = False  # an answer is on its way that nobody has taken yet

    @property
    def pid(self) -> int | None:
        """Id of the process and of its group; None while there is none."""
        return None if self._group is None else self._group.pid

    def launch(self) -> None:
        """Start a process, in place of the present one; do not wait for it. WorkerLost if the machine has no room for it."""
        self.close()
        path = [str(entry) for entry in (sys.path if self._path is None else self._path)]
        limits = None if self._limits is None else asdict(self._limits)
        words = [json.dumps(part) for part in (self._arguments, limits)]
        command = [sys.executable, "-P", "-c", BOOT, json.dumps(path), self._program, *words]
        try:
            self._group = Group(command, self._environment, stdin=subprocess.PIPE)
        except OSError as error:
            raise WorkerLost(
                f"could not start a process for {self._program} ({error}); free some memory or processes"
            ) from error
        self._unread, self._due = b"", True

    def greeting(self, limit_s: float = START_LIMIT_S) -> Job:
        """Greeting of the launched program when it is ready. Unanswered if it cannot be; the process is gone then."""
        return self.finish(limit_s)

    def start(self, limit_s: float = START_LIMIT_S) -> None:
        """Have a process ready, so that no request waits for its imports. WorkerLost if it cannot be had."""
        if self._ready():
            return
        self.launch()
        try:
            self.greeting(limit_s)
        except ChildNotResponding as error:
            raise WorkerLost(f"the process for {self._program} did not start: {error}; try `haotuner doctor`") from None

    def ask(self, request: Mapping[str, Any], limit_s: float) -> Job:
        """The answer to one request, ``{"do": verb, ...}``, from a fresh process where the last one is lost.

        Unanswered if there is none within the limit, WorkerLost if no process can be had.
        """
        self.start()
        self.begin(request)
        return self.finish(limit_s)

    def begin(self, request: Mapping[str, Any]) -> None:
        """Hand a request to the present process; `finish` takes the answer. Several children may have begun at once.

        Crashed if there is no such process any more: what it was sent before is lost with it.
        """
        if not self._ready():
            raise Crashed(self._why_not_ready())
        assert self._group is not None and self._group.process.stdin is not None
        if self._rests:
            self._group.resume()
        self._due = True
        try:
            self._group.process.stdin.write(json.dumps(request).encode() + b"\n")
            self._group.process.stdin.flush()
        except BrokenPipeError:
            raise Crashed(self._obituary()) from None

    def finish(self, limit_s: float) -> Job:
        """The answer to what was begun. Unanswered if there is none; unless that is ``alive``, the process is gone."""
        answer = self._read(limit_s)
        self._due = False
        refused = (
            None
            if (refusal := answer.get("refused")) is None
            else Refused(refusal[0], refusal[1], refusal[2], fatal=refusal[3])
        )
        if refused is not None and not refused.alive:
            self.close()
        elif self._rests and self._group is not None:
            self._group.stop()
        if refused is not None:
            raise refused
        return answer

    def close(self) -> None:
        """Kill the process and everything it started. Harmless when there is none."""
        group, self._group = self._group, None
        self._unread, self._due = b"", False
        if group is not None:
            group.kill()

    def _ready(self) -> bool:
        """True if there is a process that lives, has answered everything, and has said nothing unasked."""
        group = self._group
        if group is None or group.process.stdout is None or self._due or self._unread or group.ended():
            return False
        return not _readable(group.process.stdout.fileno(), 0.0)

    def _why_not_ready(self) -> str:
        if self._group is None:
            return "the process is gone"
        if self._group.ended():
            return self._obituary()
        self.close()
        return "an answer was left over that belongs to no request"

    def _read(self, limit_s: float) -> Job:
        if self._group is None or self._group.process.stdout is None:
            raise ValueError(f"{self._program}: nothing was begun, so there is nothing to finish")
        descriptor = self._group.process.stdout.fileno()
        until = time.monotonic() + limit_s
        while b"\n" not in self._unread:
            left = until - time.monotonic()
            ended = self._group.ended()  # asked before the look at the pipe: what a dead child wrote is there already
            if left <= 0 or not _readable(descriptor, min(left, GLANCE_S)):
                if ended:  # without an end of file: something that it started holds the pipe open
                    raise Crashed(self._obituary())
                if left > 0:
                    continue
                self.close()
                raise TimedOut(f"no answer within {limit_s:.0f} s")
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                raise Crashed(self._obituary())
            self._unread += chunk
        line, _, self._unread = self._unread.partition(b"\n")
        answer = _understood(line)
        if answer is None:
            self.close()
            raise Crashed(f"unreadable answer: {line[:200]!r}")
        return answer

    def _obituary(self) -> str:
        assert self._group is not None
        group, self._group = self._group, None
        return group.obituary()


def _understood(line: bytes) -> Job | None:
    """An answer; None if a library wrote into the pipe and it is none."""
    try:
        answer = json.loads(line)
    except ValueError:
        return None
    if not isinstance(answer, dict):
        return None
    refusal = answer.get("refused", ["", "", "", False])
    return answer if isinstance(refusal, list) and list(map(type, refusal)) == [str, str, str, bool] else None
