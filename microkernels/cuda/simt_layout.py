"""Tiles of CUDA cores: elements that they load and multiply, and their places among threads and in shared memory."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from haotuner.microkernels.cuda.dense import WARP


@dataclass(frozen=True, slots=True, kw_only=True)
class Elements:
    """One element of k, or four bytes of it, as TVM and the device functions name it, and how sums end."""

    word: int  # elements of k
    words: int  # of a load
    gathered: bool
    dtype: str  # of a register
    memory: str  # of the operands
    fetch: str
    dot: str  # empty: a product that is added
    stored: str


def elements_of(word: int, words: int, *, gathered: bool, signs: str) -> Elements:
    """Of loads of so many words; ``word``: elements of k that are multiplied at once, ``signs``: of bytes, of X and W."""
    if word == 1:
        fetch, floats = "ht_fetch_floats", "float32"
        return Elements(
            word=1, words=words, gathered=False, dtype=floats, memory=floats, fetch=fetch, dot="", stored="ht_store_strips<"
        )
    return Elements(
        word=word, words=words, gathered=gathered, dtype="int32", memory="uint8" if gathered else "int32",
        fetch="ht_fetch_words", dot=f"ht_dot_{signs}", stored="ht_store_byte_strips<",
    )  # fmt: skip


BANKS = 32
SIDE_BY_SIDE = 8  # lanes along k at most: a warp's stores to shared memory need four rows and more to meet all banks


class Places:
    """Indices as TIRx expressions, of ``threads`` that load ``v`` elements at a time, ``chunks`` of them to a step of k."""

    def __init__(self, tirx: Any, threads: int, v: int, chunks: int) -> None:
        self._tirx, self._threads, self._v = tirx, threads, v
        # Lanes that store one k chunk; the next chunk's lanes start that many banks further. At least a strip, so that
        # 16-byte fragments stay whole.
        self._chunk_lanes = BANKS // min(chunks, SIDE_BY_SIDE)

    # Row of the thread's first piece, rows to its i-th, and the chunk, of a tile whose rows have so many chunks.
    def along_rows(self, thread: Any, i: Any, chunks: int) -> tuple[Any, Any, Any]:
        """Neighbours are chunks of a row."""
        tirx, threads = self._tirx, self._threads
        if threads % chunks:
            e = i * threads + thread
            return tirx.truncdiv(e, chunks), 0, tirx.truncmod(e, chunks)
        return tirx.truncdiv(thread, chunks), i * (threads // chunks), tirx.truncmod(thread, chunks)

    def along_k(self, thread: Any, i: Any, chunks: int) -> tuple[Any, Any, Any]:
        """For a tile that is stored across: neighbours are rows sooner."""
        tirx, threads = self._tirx, self._threads
        if chunks <= SIDE_BY_SIDE:
            return self.along_rows(thread, i, chunks)
        down = WARP // SIDE_BY_SIDE
        whole = threads % (chunks * down) == 0
        e = thread if whole else i * threads + thread
        row = tirx.truncdiv(e, chunks * down) * down + tirx.truncdiv(tirx.truncmod(e, WARP), SIDE_BY_SIDE)
        beside = tirx.truncdiv(tirx.truncmod(e, chunks * down), WARP) * SIDE_BY_SIDE
        return row, i * (threads // chunks) if whole else 0, beside + tirx.truncmod(e, SIDE_BY_SIDE)

    def _swizzled(self, chunk: Any, height: int, unit: int) -> Any:
        """Swizzle of a chunk's rows of a transposed tile, so that stores meet all banks, in units of rows.

        It is XORed to the index of a row, and is below the power of two that divides the tile's height.
        """
        tirx = self._tirx
        turn = chunk if height >= BANKS else tirx.truncdiv(chunk, BANKS // height)
        return tirx.truncdiv(tirx.truncmod(turn * self._chunk_lanes, _turns(height)), unit)

    # What of a XOR is known to the compiler is taken out of it: one address then serves many accesses, at fixed distances.
    def stored_at(self, row: Any, ahead: Any, chunk: Any, height: int) -> Any:
        """Index of the row ``ahead`` of a row, in the chunk's rows of k."""
        near = self._tirx.truncmod(ahead, _turns(height))
        return self._tirx.bitwise_xor(row + near, self._swizzled(chunk, height, 1)) + (ahead - near)

    def strip_of(self, first: Any, s: Any, chunk: Any, height: int, width: int, lanes: int, strips: int) -> Any:
        """Index of a thread's strip s: its first is at ``first``, whose bits for the strips are zero."""
        tirx = self._tirx
        turn, bits = self._swizzled(chunk, height, width), lanes * (strips - 1)
        selected = tirx.bitwise_and(turn, bits)
        return tirx.bitwise_xor(first, turn - selected) + tirx.bitwise_xor(s * lanes, selected)

    def row_of_k(self, chunk: Any, q: Any, height: int) -> Any:
        """Index of the q-th row of k of a chunk: short ones share the banks, so neighbouring chunks begin with others."""
        tirx, v = self._tirx, self._v
        beside = max(1, BANKS // height)  # rows of k side by side in all banks
        by_chunk = max(1, beside // v)  # that lie in different banks as they are
        if beside == by_chunk:
            return chunk * v + q
        return chunk * v + tirx.bitwise_xor(q, tirx.truncmod(tirx.truncdiv(chunk, by_chunk), beside // by_chunk))


def _turns(height: int) -> int:
    """A turn is less."""
    return min(BANKS, height & -height)
