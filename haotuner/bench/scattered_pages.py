"""The machine's scattered free pages, kept from contenders while they race."""

from __future__ import annotations

import mmap
from pathlib import Path
from types import TracebackType

from haotuner.bench.contention import available_bytes
from haotuner.hw_profiles.host import Host
from haotuner.hw_profiles.topology import topology

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
        self._held: mmap.mmap | None = None

    @property
    def held_bytes(self) -> int:
        """Bytes that are kept now."""
        return 0 if self._held is None else len(self._held)

    def __enter__(self) -> ScatteredPages:
        try:
            wanted_bytes = int(scattered_bytes(self._buddies.read_text(encoding="ascii")) * MORE)
        except (OSError, ValueError):  # another kernel, or a container that hides it
            return self
        allowed = [size for size in (available_bytes(), topology(Host.here()).memory_bytes) if size is not None]
        size = min([wanted_bytes, *(bound // MOST_SHARE for bound in allowed)]) if allowed else 0
        if size >= mmap.PAGESIZE:
            self._held = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
            if hasattr(mmap, "MADV_NOHUGEPAGE"):
                self._held.madvise(mmap.MADV_NOHUGEPAGE)
            for at in range(0, size, mmap.PAGESIZE):
                self._held[at] = 1  # a page is handed out when it is written to
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._held is not None:
            self._held.close()
            self._held = None


def scattered_bytes(text: str) -> int:
    """Bytes of small free blocks in ``/proc/buddyinfo``, a line a zone: ``Node 0, zone Normal``, a count for each order."""
    pages = 0
    for line in text.splitlines():
        counts = [int(word) for word in line.split()[4:]]
        pages += sum(count << order for order, count in enumerate(counts[:SCATTERED_ORDERS]))
    return pages * mmap.PAGESIZE
