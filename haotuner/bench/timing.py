"""The clock inside a contender's process: batches of calls between two readings, medians of batches."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from time import perf_counter_ns

import numpy as np

BATCH_NS = 200_000  # reading the clock costs 50 ns, under 0.1 % of a batch; a time slice of other load spoils few
WARM_NS = 5_000_000  # after being stopped: pools wake, caches and branch predictors fill again; 5 ms reload any L3
LONG_NS = 100_000_000  # a call this long warms itself: what it must reload is a small part of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One uninterrupted stretch of one contender's calls."""

    call_ns: float  # median over batches
    calls: int


class Clock:
    """Walks round and round over the calls, so that each finds its weight as far back in time as the others.

    ``evicted_bytes``: so much other memory is read before each round and at the beginning of each block. The first call
    behind it brings back what all calls share (inputs, result, code); like the reading, it is not timed if there are others.
    """

    def __init__(self, calls: Sequence[Callable[[], object]], evicted_bytes: int = 0) -> None:
        self._calls = list(calls)
        self._round = itertools.cycle(self._calls)
        self._others = np.ones(evicted_bytes // 8, np.int64)  # written to: all pages that were not are the same one
        self._next = len(self._calls)
        self._estimate_ns = 0.0
        for call in self._calls:  # some libraries get ready for a shape at the first call
            call()

    def block(self, seconds: float) -> Block:
        """Warm up, then time calls for that long; at least one call is timed."""
        self._warm()
        size = max(1, round(BATCH_NS / max(self._estimate_ns, 1.0)))
        batches: list[float] = []
        timed, self._next = 0, len(self._calls)
        end = perf_counter_ns() + int(seconds * 1e9)
        while True:
            batch = self._batch(size)
            start = perf_counter_ns()
            for call in batch:
                call()
            stop = perf_counter_ns()
            batches.append((stop - start) / len(batch))
            timed += len(batch)
            if stop >= end:
                break
        self._estimate_ns = statistics.median(batches)
        return Block(call_ns=self._estimate_ns, calls=timed)

    def _batch(self, size: int) -> list[Callable[[], object]]:
        """The next calls, about ``size`` of them; none of another round where memory is read between rounds."""
        if not self._others.size:
            return list(itertools.islice(self._round, size))
        alone = len(self._calls) == 1
        if self._next >= len(self._calls):
            self._others.sum()
            self._next = 0 if alone else 1
            if not alone:
                self._calls[0]()
        timed = len(self._calls) - (not alone)
        size = -(-timed // max(1, round(timed / size)))  # equal parts of a round
        batch = self._calls[self._next : self._next + size]
        self._next += size
        return batch

    def _warm(self) -> None:
        if self._estimate_ns > LONG_NS:
            return
        start = perf_counter_ns()
        for done in itertools.count(1):
            next(self._round)()
            passed = perf_counter_ns() - start
            if passed >= WARM_NS:
                self._estimate_ns = self._estimate_ns or passed / done
                return


def difference_ns(function: Callable[[], object], other: Callable[[], object], seconds: float) -> float:
    """Additional time of ``function`` over ``other``, in ns: median over alternating batches of both."""
    result: list[float] = []
    first = _batch(function, range(3))
    size = range(max(3, round(BATCH_NS / max(first, 1.0))))
    end = perf_counter_ns() + int(seconds * 1e9)
    while perf_counter_ns() < end or len(result) < 3:
        result.append(_batch(function, size) - _batch(other, size))
    return statistics.median(result)


def _batch(call: Callable[[], object], size: Iterable[int]) -> float:
    start = perf_counter_ns()
    count = 0
    for _ in size:
        call()
        count += 1
    return (perf_counter_ns() - start) / count
