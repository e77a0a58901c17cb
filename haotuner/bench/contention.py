"""Load of other processes: what the processors did beyond our own while a row was timed; and the memory that is free."""

from __future__ import annotations

import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

CONTENDED_CORES = 0.1  # a tenth of one core: daemons stay below it, and it can cost a row 5 % when it lands on our core
CROWDED_BLOCKS = 0.1  # a tenth of the blocks: each can take twice as long, and a median of few does not forgive that
_BUSY = (0, 1, 2, 5, 6, 7)  # columns of /proc/stat (man 5 proc): user nice system irq softirq steal; not idle, iowait, guest


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Seconds, all since some fixed past: wall time, busy time of the processors we may use, our own share of it."""

    wall_s: float
    busy_s: float
    own_s: float


def read(pids: Iterable[int]) -> Reading:
    """Now, for this process and the living children of these ids."""
    own = time.process_time() + sum(map(_process_s, pids))
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Reading(wall_s=time.monotonic(), busy_s=_busy_s(), own_s=own + ended.ru_utime + ended.ru_stime)


def foreign_cores(before: Reading, after: Reading) -> float:
    """Other work that ran in between, in cores, on average."""
    wall = max(after.wall_s - before.wall_s, 1e-9)
    return max(0.0, (after.busy_s - before.busy_s) - (after.own_s - before.own_s)) / wall


def available_bytes() -> int | None:
    """Memory that new processes can have without swapping; None where /proc/meminfo does not say."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return None


def _process_s(pid: int) -> float:
    """CPU time of another process, all its threads, in nanosecond steps (the clock of clock_getcpuclockid(3))."""
    try:
        return time.clock_gettime((~pid << 3) | 2)
    except OSError:
        return 0.0  # it ended: its time is in RUSAGE_CHILDREN


def _busy_s() -> float:
    ours = {f"cpu{number}" for number in os.sched_getaffinity(0)}
    ticks = 0
    for line in Path("/proc/stat").read_text().splitlines():
        name, *columns = line.split()
        if name in ours:
            ticks += sum(int(columns[index]) for index in _BUSY)
    return ticks / os.sysconf("SC_CLK_TCK")
