"""Waiting for a process on a machine that others use: what spins or sleeps too long is ended, what wants a core is not."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

POLL_S = 0.005  # against what ends at once
SOON_S = 1.0  # what ends within it is not looked at
LOOK_S = 0.25  # between looks at what takes longer
BUSY = 0.05  # of a core: less is used by what asks a thousand times a second whether it may go on
IDLE_S = 4.0  # nothing wants a core for so long: it waits for what never comes
WATCHER_IDLE_S = 5 * IDLE_S  # of a program that may itself watch what hangs, one after the other
WALL_S = 600  # nothing takes so long on a machine that is busy, too
TICKS = os.sysconf("SC_CLK_TCK")


def ended(child: int, seconds: float, *, idle: float | None = None) -> int | None:  # None: IDLE_S
    """The exit code of a child; None: it hung, and was ended with all that descends from it or is in a group that it leads.

    It hangs where those have used so many ``seconds`` of processors, or none of them has wanted one for ``idle`` seconds,
    nor stood in line for a file that another process has locked.
    """
    begin = idle_since = looked = time.monotonic()
    used_before = 0.0
    try:
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                return os.waitstatus_to_exitcode(status)
            now = time.monotonic()
            if now - begin > SOON_S and now - looked > LOOK_S:
                wants, used = _spent(child)
                if wants or used - used_before > BUSY * (now - looked):
                    idle_since = now
                looked, used_before = now, max(used, used_before)
                if used > seconds or now - idle_since > (IDLE_S if idle is None else idle) or now - begin > WALL_S:
                    _end(child)
                    return None
            time.sleep(POLL_S if now - begin < 2.0 else 0.05)
    except BaseException:  # a test's own limit, or Ctrl-C
        _end(child)
        raise


def ran(
    command: Sequence[object], seconds: float, *, idle: float = WATCHER_IDLE_S, **how: Any
) -> subprocess.CompletedProcess[str]:
    """What a command said, and how it ended; AssertionError with what it said if it hung (see ``ended``).

    Args:
        command: the program and its words.
        seconds: of processors, for it and what it starts.
        idle: seconds in which neither wants a core.
        how: ``cwd``, ``env``, as ``subprocess.Popen`` takes them.
    """
    words = [str(word) for word in command]
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=out, stderr=err, process_group=0, **how)
        code = ended(process.pid, seconds, idle=idle)
        process.returncode = -signal.SIGKILL if code is None else code  # it was waited for
        outputs = []
        for stream in (out, err):
            stream.seek(0)
            outputs.append(stream.read().decode(errors="replace"))
    assert code is not None, f"{' '.join(words)} hung\n{outputs[0][-2000:]}\n{outputs[1][-4000:]}"
    return subprocess.CompletedProcess(words, code, *outputs)


def _spent(leader: int) -> tuple[bool, float]:
    """Whether one of a process's family wants a core, a disk or a locked file, and the seconds that they used."""
    family = _family(leader)
    ticks = sum(int(count) for facts in family.values() for count in facts[11:15])  # their own, and of children that ended
    return any(map(_wants, family)) or not family.keys().isdisjoint(_in_line()), ticks / TICKS


def _family(leader: int) -> dict[int, list[str]]:
    """The facts of a process, of all that descend from it, and of all in the group that it leads."""
    facts: dict[int, list[str]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it ended meanwhile
            facts[int(folder.name)] = _facts(folder)
    family, more = set[int](), {pid for pid, fields in facts.items() if leader in (pid, int(fields[2]))}
    while more:
        family |= more
        more = {pid for pid, fields in facts.items() if int(fields[1]) in family} - family
    return {pid: facts[pid] for pid in family}


def _wants(pid: int) -> bool:
    """Whether a thread runs or waits for a core or a disk."""
    with suppress(OSError, IndexError):
        return any(_facts(thread)[0] in "RD" for thread in Path(f"/proc/{pid}/task").glob("[0-9]*"))
    return False


def _in_line() -> set[int]:
    """The processes that wait for a file that another has locked, as ``LOCK: -> FLOCK ADVISORY WRITE PID ...`` says."""
    with suppress(OSError):
        lines = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return {int(words[5]) for words in lines if words[1] == "->"}
    return set()


def _facts(folder: Path) -> list[str]:
    """The fields of stat behind the name: state, parent, group and so on."""
    return (folder / "stat").read_text().rpartition(")")[2].split()


def _end(child: int) -> None:
    for pid in (*_family(child), child):
        with suppress(OSError):  # it ended meanwhile
            os.kill(pid, signal.SIGKILL)
    with suppress(OSError):  # what it started meanwhile, and no group of the child's own is none
        os.killpg(child, signal.SIGKILL)
    with suppress(ChildProcessError):  # it was waited for
        os.waitpid(child, 0)
