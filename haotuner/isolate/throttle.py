"""A command within a share of the cores, which stands still while something else must run: by SIGSTOP and SIGCONT."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from haotuner.host.processor import usable_cores

TURN_S = 0.05  # between two looks
BURST_S = 2.0  # of processor time ahead of the share: a measurement is then rarely stopped in its middle
NICENESS = 19


def run_throttled(
    command: Sequence[str],
    share: float,
    must_wait: Callable[[], bool],
    stopping: Callable[[], bool],
    log: Path,
) -> int | None:
    """The command's exit code; None where ``stopping`` ended it. Its output goes to ``log``.

    ``share``: of the cores that this process may use, over the command's life. ``must_wait``: whether it stands still now.
    """
    with log.open("wb") as stream:
        child = subprocess.Popen([*command], stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True)
    os.setpriority(os.PRIO_PROCESS, child.pid, NICENESS)
    allowed_per_s, begin, stopped, used = share * usable_cores(), time.monotonic(), False, 0.0
    known: dict[int, float] = {}  # processor seconds of every process that was seen, those that ended too
    try:
        while child.poll() is None:
            if stopping():
                return None
            tree = descendants(child.pid)
            known.update((pid, seconds) for pid in tree if (seconds := processor_s(pid)) is not None)
            used = sum(known.values())
            allowed = allowed_per_s * (time.monotonic() - begin)
            waits = must_wait() or used > allowed + (0.0 if stopped else BURST_S)
            if waits or waits != stopped:
                _signal(tree, signal.SIGSTOP if waits else signal.SIGCONT)
            stopped = waits
            time.sleep(TURN_S)
        return child.returncode
    finally:
        if child.poll() is None:
            _signal(descendants(child.pid), signal.SIGKILL)
            child.wait()


def descendants(pid: int) -> list[int]:
    """A process and all that it started, and so on, those of other sessions too."""
    result, todo = list[int](), [pid]
    while todo:
        parent = todo.pop()
        result.append(parent)
        for threads in _entries(Path(f"/proc/{parent}/task")):
            with suppress(OSError, ValueError):
                todo += map(int, (threads / "children").read_text(encoding="ascii").split())
    return result


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:  # it ended
        return []


def processor_s(pid: int) -> float | None:
    """Processor seconds of one process; None where it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _signal(pids: Sequence[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError, PermissionError):
            os.kill(pid, number)
