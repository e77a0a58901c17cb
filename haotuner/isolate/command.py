"""One command from start to end, with a time limit: a compiler, a tool. All that it started ends with it.

It has a session of its own: a signal to our process group, as a terminal or a service manager sends it, does not reach it.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Event

from haotuner.isolate.answers import TimedOut
from haotuner.isolate.group import Group

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
