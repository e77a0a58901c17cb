"""One task as a process with a group of its own: asked to end when its time is over, killed if it does not, or with us."""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from haotuner.isolate.group import Group

GRACE_S = 60.0  # a tuner that is asked to stop writes and checks its pack
GLANCE_S = 0.1
SAID = 600  # characters of a task's last words that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a task ended. ``late``: it was asked to end before it did by itself."""

    code: int
    seconds: float
    late: bool
    said: str


def run(
    command: Sequence[str],
    out: Path,
    environment: Mapping[str, str],
    *,
    limit_s: float,
    stopped: Callable[[], bool],
    grace_s: float = GRACE_S,
) -> Ended:
    """Run a command; its output goes to ``out`` if there is any. ``stopped``: as if its time were over."""
    aside = out.with_name(f".{out.name}.new")
    began, due = time.monotonic(), 0.0
    with aside.open("wb") as output:
        group = Group(command, environment, stdin=subprocess.DEVNULL, stdout=output)
        try:
            while not group.ended():
                if not due and (stopped() or time.monotonic() - began > limit_s):
                    due = time.monotonic() + grace_s
                    group.process.send_signal(signal.SIGTERM)
                elif due and time.monotonic() > due:
                    break
                time.sleep(GLANCE_S)
        finally:
            text = group.last_words()[-SAID:]
            code = group.kill()
    if aside.stat().st_size:
        aside.replace(out)
    else:
        aside.unlink()
    return Ended(code=code, seconds=time.monotonic() - began, late=bool(due), said=text)
