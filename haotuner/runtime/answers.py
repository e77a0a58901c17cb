"""Answers: arrays for what a model returns. Those of many pages lie in memory that is used again once nobody holds one."""

from __future__ import annotations

import ctypes
import math
import mmap
import weakref
from collections import deque
from contextlib import suppress
from typing import Any

import numpy as np

from haotuner.runtime.arena import HUGE_PAGE
from haotuner.runtime.handed import address

PAGE = 4096
MANY = 16 * PAGE  # below, page faults cost less than what is done here
LARGE = (
    HUGE_PAGE // 4
)  # from here on huge pages: one is had for half of what as many bytes cost in small ones, as in model/host.c
AGAIN = 2  # arrays of each output that are kept: a caller often holds an answer until it has the next


class Answers:
    """Memory of a model's outputs. Calls may come from any thread, and from a child forked at any moment: there is no lock.

    A first answer of 3 MB in pages that are new costs a millisecond of page faults; the same memory again costs none.
    """

    def __init__(self, outputs: int) -> None:
        """``outputs``: how many arrays an answer has."""
        self._free: deque[_Block] = deque(maxlen=AGAIN * max(1, outputs))

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array of undefined content; MemoryError or ValueError where it cannot be had."""
        need = math.prod(shape) * dtype.itemsize
        if need < MANY:
            return np.empty(shape, dtype)
        block = self._found(need) or _Block(need)
        held = block.hold()
        weakref.finalize(held, self._free.append, block).atexit = False  # with the last array or view that lies in it
        return np.ndarray(shape, dtype, held, block.begin)

    def clear(self) -> None:
        """Keep nothing; arrays that somebody holds stay."""
        self._free.clear()

    def _found(self, need: int) -> _Block | None:
        """A block that nobody holds. Where all are too small the largest grows: only what is new of it costs page faults."""
        spare: _Block | None = None
        for _ in range(len(self._free)):
            with suppress(IndexError):  # another thread has it
                block = self._free.popleft()
                if block.room >= need:
                    self._back(spare)
                    return block
                if spare is None or spare.room < block.room:
                    block, spare = spare, block  # type: ignore[assignment]
                self._back(block)
        return spare if spare is not None and spare.grown(need) else None

    def _back(self, block: _Block | None) -> None:
        if block is not None:
            self._free.append(block)


class _Block:
    """Whole pages, huge ones where the host gives them for the asking. Those that nothing was written to take no memory."""

    def __init__(self, need: int) -> None:
        self.room = _room(need)
        try:
            self._mapped = mmap.mmap(-1, self.room + _spare(self.room), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for an array of {need} bytes") from error
        self._advise()

    def grown(self, need: int) -> bool:
        """Make room for so many bytes; what it holds is lost. Small pages do not grow into huge ones."""
        room = _room(need)
        if _spare(room) != _spare(self.room):
            return False
        try:
            self._mapped.resize(room + _spare(room))
        except (OSError, OverflowError, ValueError, SystemError, BufferError):  # no memory, or no mremap
            return False
        self.room = room
        self._advise()
        return True

    def hold(self) -> Any:
        """What an array lies in: it lives as long as the array and all views of it."""
        return (ctypes.c_char * len(self._mapped)).from_buffer(self._mapped)

    def _advise(self) -> None:
        self.begin = -address(self._mapped) % HUGE_PAGE if _spare(self.room) else 0
        with suppress(OSError, AttributeError):  # of a kernel without huge pages
            if _spare(self.room):
                self._mapped.madvise(mmap.MADV_HUGEPAGE, self.begin, self.room)


def _room(need: int) -> int:
    page = PAGE if need < LARGE else HUGE_PAGE
    return -(-need // page) * page


def _spare(room: int) -> int:
    """Addresses beyond the room, so that it may begin where a huge page does."""
    return 0 if room < HUGE_PAGE else HUGE_PAGE
