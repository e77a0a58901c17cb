"""One command from start to end, with a time limit: a compiler, a tool. All that it started ends with it."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.isolate.answers import TimedOut
from haotuner.isolate.group import Group


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """A command that ended by itself. ``code`` is negative for a signal, as ``subprocess`` has it."""

    code: int
    out: str
    errors: str


def run(command: Sequence[str], limit_s: float, environment: Mapping[str, str] | None = None) -> Finished:
    """Run a command to its end; it reads nothing.

    TimedOut when the limit passes: the command and all that it started are killed then, as they are when this process is.
    OSError when it cannot be started.
    """
    group = Group(command, environment, stdin=subprocess.DEVNULL)
    try:
        out, _ = group.process.communicate(timeout=limit_s)
        return Finished(code=group.process.returncode, out=out.decode(errors="replace"), errors=group.errors())
    except subprocess.TimeoutExpired:
        raise TimedOut(f"{Path(command[0]).name} did not end within {limit_s:g} s") from None
    finally:
        group.kill()
