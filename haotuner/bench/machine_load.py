"""Load of the machine while a row is timed: other processes, and scattered free memory."""

from __future__ import annotations

import mmap
import os
import resource
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from haotuner.host.memory import available_bytes
from haotuner.hw_profiles.topology import Host, topology

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


BUDDIES = Path("/proc/buddyinfo")
SCATTERED_ORDERS = 6  # blocks of under 64 pages: where runs were longer, reads of memory were within 5 % of the fastest
MORE = 1.25  # of what the table says: each core's own list of single pages is not in it
MOST_SHARE = 8  # of the memory that is free, or allowed to us, an eighth at most


class ScatteredPages:
    """Holds scattered pages from entering to leaving; where the system does not tell of them, nothing.

    Linux hands out the smallest free blocks first. Whoever asked first got single pages from all over memory, and read cold
    weights up to 30 % slower for it than who asked later: the order in which processes start is no library's doing.
    """

    def __init__(self, buddies: Path = BUDDIES) -> None:
        self._buddies = buddies
        self._mapping: mmap.mmap | None = None

    def __enter__(self) -> ScatteredPages:
        try:
            wanted_bytes = int(scattered_bytes(self._buddies.read_text(encoding="ascii")) * MORE)
        except (OSError, ValueError):  # another kernel, or a container that hides it
            return self
        allowed = [size for size in (available_bytes(), topology(Host.here()).memory_bytes) if size is not None]
        size = min([wanted_bytes, *(bound // MOST_SHARE for bound in allowed)]) if allowed else 0
        if size >= mmap.PAGESIZE:
            self._mapping = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                self._mapping.madvise(mmap.MADV_NOHUGEPAGE)
            for at in range(0, size, mmap.PAGESIZE):
                self._mapping[at] = 1  # a page is handed out when it is written to
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._mapping is not None:
            self._mapping.close()
            self._mapping = None


def scattered_bytes(text: str) -> int:
    """Bytes of small free blocks in ``/proc/buddyinfo``, a line a zone: ``Node 0, zone Normal``, a count for each order."""
    pages = 0
    for line in text.splitlines():
        counts = [int(word) for word in line.split()[4:]]
        pages += sum(count << order for order, count in enumerate(counts[:SCATTERED_ORDERS]))
    return pages * mmap.PAGESIZE
