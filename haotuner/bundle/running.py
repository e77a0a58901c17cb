"""One task as a process with a group of its own: asked to end when its time is over, killed when it does not."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

GRACE_S = 60.0  # a tuner that is asked to stop writes and checks its pack
GLANCE_S = 0.1
SAID = 600  # characters of a task's last words that are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """How a task ended. ``late``: its time was over, ``killed``: and it did not heed that."""

    code: int
    seconds: float
    late: bool
    killed: bool
    said: str


def run(
    command: Sequence[str], out: Path, environment: Mapping[str, str], *, limit_s: float, stopped: Callable[[], bool],
    grace_s: float = GRACE_S,
) -> Ended:  # fmt: skip
    """Run a command; its output goes to ``out``, its errors beside it as ``.log``. ``stopped``: as if its time were over."""
    log, aside = out.with_suffix(".log"), out.with_name(f".{out.name}.new")
    began = time.monotonic()
    late = killed = False
    with aside.open("wb") as output, log.open("ab") as errors:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, env=environment, start_new_session=True
        )
        try:
            while process.poll() is None:
                if not late and (stopped() or time.monotonic() - began > limit_s):
                    late = True
                    due = time.monotonic() + grace_s
                    process.send_signal(signal.SIGTERM)
                elif late and time.monotonic() > due:
                    killed = True
                    break
                time.sleep(GLANCE_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # and whatever it left behind
            process.wait()
    if aside.stat().st_size:
        aside.replace(out)
    else:
        aside.unlink()
    said = log.read_text(errors="replace")[-SAID:].strip()
    return Ended(code=process.returncode, seconds=time.monotonic() - began, late=late, killed=killed, said=said)
