"""Memory of a host: packed weights side by side on huge pages, and pooled arrays for what a model returns.

Output pool: arrays for what a model returns. Those of many pages lie in memory that is used again once free.
"""

from __future__ import annotations

import math
import mmap
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

from haotuner.runtime.arrays import address

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


PAGE = 4096
MANY = 16 * PAGE  # below, page faults cost less than what is done here
LARGE = HUGE_PAGE // 4  # from here on huge pages, as in model/host.c: half of what as many bytes cost in small ones
WINDOW, SLACK = 64, 4  # as of arenas (model/run.c): blocks of SLACK times what the last WINDOW arrays needed are given back
AGAIN = 2  # arrays of each output that are kept: a caller often holds an answer until it has the next
LARGEST_ANSWER = 4 << 20  # bytes of an answer whose arrays are kept as they are: 2 us are nothing beside what more takes


def _references(arrays: Sequence[Any], shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]) -> int:
    """The most references that one of these arrays has, those of this loop among them; -1: a caller changed what one is."""
    most = 0
    for array, shape, dtype in zip(arrays, shapes, dtypes, strict=False):  # a call of a few elements feels its checks
        if array.shape != shape or array.dtype is not dtype:
            return -1
        count = getrefcount(array)
        if count > most:
            most = count
    return most


_BYTES = np.dtype(np.uint8)
_ALONE = _references([np.empty(0, _BYTES)], [(0,)], [_BYTES])  # of arrays that their list alone refers to


class OutputPool:
    """Memory of a model's outputs. Calls may come from any thread, and from a child forked at any moment: there is no lock.

    A first answer of 3 MB in pages that are new costs a millisecond of page faults; the same memory again costs none.
    """

    def __init__(self, outputs: int) -> None:
        """``outputs``: how many arrays an answer has."""
        self._free: deque[_Block] = deque(maxlen=AGAIN * max(1, outputs))
        self._answers: deque[tuple[Sequence[tuple[int, ...]], list[Any]]] = deque(maxlen=AGAIN)
        self._lent, self._recent, self._window = 0, 0, WINDOW * max(1, outputs)

    def take(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
        """An array of undefined content; MemoryError or ValueError where it cannot be had."""
        need = math.prod(shape) * dtype.itemsize
        if need < MANY and not self._free:
            return np.empty(shape, dtype)
        self._rest(need)
        if need < MANY:
            return np.empty(shape, dtype)
        try:
            block = self._free.popleft()
        except IndexError:
            block = _Block(need)
        if not need <= block.room <= 2 * need:
            block = self._other(block, need)
        if dtype.isbuiltin == 1:
            return np.asarray(_Held(self._free, block, shape, dtype.str))
        return np.ndarray(shape, dtype, np.asarray(_Held(self._free, block, (need,), "|u1")))

    def answer(self, shapes: Sequence[tuple[int, ...]], dtypes: Sequence[np.dtype[Any]]) -> list[Any]:
        """Arrays of an answer, those of an earlier one where nobody refers to them any more; errors as of ``take``.

        ``shapes``: the same object for calls of the same shapes.
        """
        for _ in range(len(self._answers)):
            try:
                known, arrays = self._answers.popleft()  # nobody else has it meanwhile
            except IndexError:
                break
            if known is shapes and _references(arrays, shapes, dtypes) == _ALONE:
                result = arrays.copy()
                self._answers.append((known, arrays))
                return result
            if known is shapes:
                self._answers.append((known, arrays))
        arrays = [self.take(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True)]
        # A view of an array refers to it only where the array refers to no other one.
        size = sum(array.nbytes for array in arrays)
        if MANY <= size <= LARGEST_ANSWER and not any(type(array.base) is np.ndarray for array in arrays):
            self._answers.append((shapes, arrays.copy()))
        return arrays

    @property
    def holds(self) -> bool:
        """True if memory waits for an answer: small answers, which need none of it, must be counted then."""
        return bool(self._free or self._answers)

    def clear(self) -> None:
        """Keep nothing; arrays that somebody holds stay."""
        self._answers.clear()
        self._free.clear()

    def _rest(self, need: int) -> None:
        """Once a window, let go of free memory that only a larger answer of an earlier window had needed."""
        self._lent += 1
        if need > self._recent:
            self._recent = need
        if self._lent < self._window:
            return
        most, self._lent, self._recent = SLACK * max(MANY, self._recent), 0, 0
        for _ in range(len(self._answers)):
            with suppress(IndexError):  # another thread has it
                shapes, arrays = self._answers.popleft()
                if max(array.nbytes for array in arrays) <= most:
                    self._answers.append((shapes, arrays))
        for _ in range(len(self._free)):
            with suppress(IndexError):  # another thread has it
                block = self._free.popleft()
                if block.room <= max(most, HUGE_PAGE):
                    self._free.append(block)

    def _other(self, best: _Block, need: int) -> _Block:
        """The smallest that has the room; else the largest grows: only what is new of it costs page faults."""
        for _ in range(len(self._free)):
            with suppress(IndexError):  # another thread has it
                block = self._free.popleft()
                if block.misses(need) < best.misses(need):
                    block, best = best, block
                self._free.append(block)
        return best if best.room >= need or best.grown(need) else _Block(need)


class _Held:
    """Memory that an array lies in: it lives as long as the array and all views of it, and then gives its block back."""

    __slots__ = ("__array_interface__", "_block", "_free")

    def __init__(self, free: deque[_Block], block: _Block, shape: tuple[int, ...], typestr: str) -> None:
        self._free, self._block = free, block
        self.__array_interface__ = {"version": 3, "typestr": typestr, "shape": shape, "data": (block.begin, False)}

    def __del__(self) -> None:
        self._free.append(self._block)


class _Block:
    """Whole pages, huge ones where the host gives them for the asking. Those that nothing was written to take no memory."""

    def __init__(self, need: int) -> None:
        self.room = _room(need)
        try:
            self._mapped = mmap.mmap(-1, self.room + _spare(self.room), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except (OSError, OverflowError) as error:
            raise MemoryError(f"no memory for an array of {need} bytes") from error
        self._advise()

    def misses(self, need: int) -> tuple[bool, int]:
        """Misfit for so many bytes: (too small, difference)."""
        return self.room < need, abs(self.room - need)

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

    def _advise(self) -> None:
        at = address(self._mapped)
        spare = -at % HUGE_PAGE if _spare(self.room) else 0
        self.begin = at + spare
        with suppress(OSError, AttributeError):  # of a kernel without huge pages
            if _spare(self.room):
                self._mapped.madvise(mmap.MADV_HUGEPAGE, spare, self.room)


def _room(need: int) -> int:
    page = PAGE if need < LARGE else HUGE_PAGE
    return -(-need // page) * page


def _spare(room: int) -> int:
    """Addresses beyond the room, so that it may begin where a huge page does."""
    return 0 if room < HUGE_PAGE else HUGE_PAGE
