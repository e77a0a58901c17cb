"""The clock of contenders on a GPU: CUDA graphs of launches, replayed between events.

The tuner's policy: a graph walks over all the weights, so that a cold one is found in memory (three L2s full of others
passed since); a replay's time over its launches is a sample; a block is the median of its samples. What the host does to
launch is no part of a time, the gaps between dependent launches of a graph are.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from haotuner.bench.contender import Call
from haotuner.bench.timing import Block

LEAST_LAUNCHES = 20  # of a graph: its start and the events, some microseconds, are shared by all
LEAST_SAMPLES, MOST_SAMPLES = 5, 63
AT_ONCE = 8  # replays that are queued before the host waits
WARM_S = 0.01  # after a pause: the clock of an idle GPU takes some milliseconds to rise


class Engine(Protocol):
    """Captures and replays on one stream of a GPU."""

    def capture(self, run: Callable[[], object]) -> Any:
        """A graph of what ``run`` queues."""
        ...

    def drop(self, graph: Any) -> None:
        """Free a graph that will not be replayed any more."""
        ...

    def replay_us(self, graph: Any, times: int) -> list[float]:
        """Microseconds of so many replays in a row, each between two events; waits for the last."""
        ...


class GraphClock:
    """Times a round of calls as one graph. The first calls run before the capture: libraries get ready in them."""

    def __init__(self, engine: Engine, calls: Sequence[Call]) -> None:
        self._engine = engine
        self._launches = len(calls) * -(-LEAST_LAUNCHES // len(calls))
        for call in calls[:2]:
            call()

        def run() -> None:
            for launch in range(self._launches):
                calls[launch % len(calls)]()

        self._graph: Any = engine.capture(run)
        engine.replay_us(self._graph, 1)  # the first replay uploads it
        (self._replay_us,) = engine.replay_us(self._graph, 1)

    def __del__(self) -> None:
        graph, self._graph = getattr(self, "_graph", None), None
        if graph is not None:
            self._engine.drop(graph)

    def block(self, seconds: float) -> Block:
        """Warm up, then replay for that long, within ``LEAST_SAMPLES`` and ``MOST_SAMPLES``."""
        until = time.perf_counter() + WARM_S
        while time.perf_counter() < until:
            self._engine.replay_us(self._graph, 1)
        sample_count = int(min(MOST_SAMPLES, max(LEAST_SAMPLES, seconds * 1e6 / max(self._replay_us, 1e-3))))
        samples: list[float] = []
        while len(samples) < sample_count:
            samples += self._engine.replay_us(self._graph, min(AT_ONCE, sample_count - len(samples)))
        self._replay_us = statistics.median(samples)
        return Block(call_ns=self._replay_us * 1e3 / self._launches, calls=self._launches * len(samples))
