"""Waiting for a process on a machine that others use: what spins or sleeps too long is ended, what wants a core is not."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

POLL_S = 0.005  # against what ends at once
LOOK_S = 0.25  # between looks at what takes longer
IDLE_S = 4.0  # nothing wants a core for so long: it waits for what never comes
TICKS = os.sysconf("SC_CLK_TCK")


def ended(child: int, seconds: float) -> int | None:
    """The exit code of a child that leads a process group of its own; None: it hung, and the group was ended.

    It hangs where the group has used so many seconds of processors, or no process of it has wanted one for some seconds.
    """
    begin = idle_since = looked = time.monotonic()
    used_before = 0.0
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        now = time.monotonic()
        if now - begin > 1.0 and now - looked > LOOK_S:
            looked = now
            wants, used = _group(child)
            if wants or used > used_before:
                idle_since = now
            used_before = max(used, used_before)
            if used > seconds or now - idle_since > IDLE_S:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return None
        time.sleep(POLL_S if now - begin < 2.0 else 0.05)


def _group(leader: int) -> tuple[bool, float]:
    """Whether a thread of the process group runs or waits for a core or a disk, and the seconds that its processes used."""
    wants, ticks = False, 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            facts = _facts(folder)
            if int(facts[2]) != leader:
                continue
            ticks += sum(int(one) for one in facts[11:15])  # its own, and those of its children that ended
            wants = wants or any(_facts(thread)[0] in "RD" for thread in (folder / "task").glob("[0-9]*"))
        except (OSError, IndexError):  # it ended meanwhile
            continue
    return wants, ticks / TICKS


def _facts(folder: Path) -> list[str]:
    """The fields of stat behind the name: state, parent, group and so on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()
