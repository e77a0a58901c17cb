"""Arena: memory for packed weights, side by side on huge pages."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

ALIGNMENT = 64  # a cache line: vector loads of the packed weight never straddle two
HUGE_PAGE = 2 << 20  # of x86-64
# Over 4 MiB, from which on numpy advises huge pages (Linux, where they are had for the asking or always), and over 32 MiB
# with what aligning adds, which glibc always gives back when freed. Pages that nothing was written to take no memory.
CHUNK = 32 << 20


class Arena:
    """Float32 arrays out of shared chunks; a chunk is freed when its last array is.

    A weight that comes from memory is read with one entry of the address translation for 2 MiB instead of 512, and
    without gaps between scattered pages: n=600 k=1200 cold, 1 to 8 rows on one core, was 1.12 to 1.30 times as fast;
    weights of many MiB alone gain little, as numpy advises their pages anyway. Calls may come from any
    thread, and from a child forked at any moment: there is no lock.
    """

    __slots__ = ("_rests",)

    def __init__(self) -> None:
        self._rests: deque[NDArray[np.uint8]] = deque()  # popped while in use; two threads at once get a chunk each

    def take(self, shape: tuple[int, ...]) -> NDArray[np.float32]:
        """An array of that shape, ``ALIGNMENT``-aligned, content undefined; MemoryError if there is no memory."""
        floats = int(np.prod(shape))
        need = -(-floats * 4 // ALIGNMENT) * ALIGNMENT
        rest = self._rest()
        if rest is None or rest.size < need:
            chunk = _chunk(need)
            array, left = chunk[:need], chunk[need:]
            rest = left if rest is None or left.size > rest.size else rest
        else:
            array, rest = rest[:need], rest[need:]
        if rest.size:
            self._rests.append(rest)
        return array[: floats * 4].view(np.float32).reshape(shape)

    def clear(self) -> None:
        """Keep nothing for later; what was taken stays."""
        self._rests.clear()

    def _rest(self) -> NDArray[np.uint8] | None:
        try:
            return self._rests.pop()
        except IndexError:
            return None


def _chunk(need: int) -> NDArray[np.uint8]:
    size = max(need, CHUNK)
    raw = np.empty(size + HUGE_PAGE, np.uint8)
    offset = -raw.ctypes.data % HUGE_PAGE
    return raw[offset : offset + size]
