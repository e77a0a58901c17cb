"""Dynamic batching of one model: requests of equal other sizes are answered together, as far as expected times allow.

Nothing is padded, and nobody waits for company: while a call runs, requests gather, and the next call takes those that fit.
A request joins a call where the joint call is expected to take no longer than the calls apart. The oldest of them must still
be expected to be answered within the latency limit, unless it is late by itself.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import numpy as np

from haotuner.errors import HaotunerError
from haotuner.serve.inference import InferenceRequest
from haotuner.serve.refusals import Overloaded, refusal_of

LEARNING_RATE = 0.05  # of the ratio of measured to expected times: some twenty calls
INLINE_US = 300.0  # a shorter call is answered by the thread that took the request: a hand-over costs as much
Answer = dict[str, Any]
Observe = Callable[[str, InferenceRequest, float, float, int], None]


class Pending:
    """A request that waits: when it came, its key and rows, and where its answer goes."""

    __slots__ = ("arrived", "future", "key", "request", "rows")

    def __init__(self, request: InferenceRequest, key: Any, rows: int) -> None:
        self.request, self.key, self.rows = request, key, rows
        self.arrived = time.perf_counter()
        self.future: Future[Answer] = Future()


class Batcher:
    """Queue and runners of one model. ``batch``: its dimension of independent rows; empty where there is none.

    ``largest``: rows of one call at most. Both are ``joining``, which a hand-over to another pack may replace.
    ``limit_ms``: latency limit; ``waiting``: requests that may wait.
    """

    def __init__(
        self,
        model: Any,
        *,
        batch: str,
        largest: int,
        limit_ms: float,
        waiting: int,
        runners: int,
        observe: Observe | None = None,
    ) -> None:
        self.model, self.limit_us = model, 1e3 * limit_ms
        self.joining = batch, largest  # replaced as one, by a hand-over
        self.ratio = 1.0  # measured over expected, of the calls here
        self._waiting, self._observe = waiting, observe
        self._queue: deque[Pending] = deque()
        self._ready = threading.Condition(threading.Lock())
        self._running = 0
        self._closed = False
        self._threads = [
            threading.Thread(target=self._run, name=f"haotuner-{model.name}-{index}", daemon=True)
            for index in range(runners)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, request: InferenceRequest) -> Future[Answer]:
        """The answer to come. Overloaded where too many wait, or the server stops."""
        pending = Pending(request, *self._key_of(request))
        with self._ready:
            if self._closed:
                raise Overloaded("the server stops; send the request to another one")
            if len(self._queue) >= self._waiting:
                raise Overloaded(f"{self.model.name}: {self._waiting} requests wait already; send it again later")
            self._queue.append(pending)
            self._ready.notify()
        return pending.future

    def answer_now(self, request: InferenceRequest) -> Answer | None:
        """The answer, by the calling thread, where nothing waits or runs and the call is short; else None."""
        us = self.expected_us(request.dims)
        if us is None or us > INLINE_US:
            return None
        with self._ready:
            if self._closed or self._queue or self._running:
                return None
            self._running += 1
        pending = Pending(request, None, 1)
        try:
            return self._timed_call(request.inputs, [pending], us)
        finally:
            with self._ready:
                self._running -= 1
                self._ready.notify()

    def close(self, grace_s: float) -> None:
        """Answer what waits, then end; what is not answered within ``grace_s`` is refused."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        until = time.monotonic() + grace_s
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))
        with self._ready:
            left, self._queue = list(self._queue), deque()
        for pending in left:
            if pending.future.set_running_or_notify_cancel():  # nobody waits any more for one that was cancelled
                pending.future.set_exception(Overloaded("the server stopped before this request's turn; send it again"))

    @property
    def depth(self) -> int:
        """Requests that wait."""
        return len(self._queue)

    @property
    def busy(self) -> bool:
        """True while a request waits or runs."""
        return bool(self._running or self._queue)

    def expected_us(self, dims: Mapping[str, int]) -> float | None:
        """Microseconds of a call here, by the pack's times and what calls took here; None where the pack says none."""
        try:
            return float(self.model.expected_us(**dims).expected) * self.ratio
        except HaotunerError:  # of a pack that is closed the call itself tells
            return None

    def _key_of(self, request: InferenceRequest) -> tuple[Any, int]:
        """Requests of one key may be joined; the rows of this one."""
        batch, _ = self.joining
        if not batch or not request.dims.get(batch):
            return None, 1
        others = tuple((name, size) for name, size in sorted(request.dims.items()) if name != batch)
        return (batch, others, tuple(sorted(request.inputs))), request.dims[batch]

    def _run(self) -> None:
        while True:
            with self._ready:
                while not self._queue and not self._closed:
                    self._ready.wait()
                if not self._queue:
                    return
                calls = self._joined()
                self._running += 1
            try:
                self._answer(calls)
            finally:
                with self._ready:
                    self._running -= 1

    def _joined(self) -> list[Pending]:
        """The oldest request, and those behind it that join its call. The lock is the caller's."""
        first = self._queue.popleft()
        batch, largest = self.joining
        if first.key is None or first.key[0] != batch or not self._queue:
            return [first]
        alone = self.expected_us(first.request.dims)
        joined, rows = [first], first.rows
        left = self.limit_us - 1e6 * (time.perf_counter() - first.arrived)
        if alone is not None and alone > left:
            left = float("inf")  # it is late whatever joins it, and joined calls make up for it
        together = alone
        for pending in [other for other in self._queue if other.key == first.key]:
            total = rows + pending.rows
            if total > largest:
                continue
            if alone is not None and together is not None:
                us = self.expected_us({**first.request.dims, batch: total})
                own = alone if pending.rows == first.rows else self.expected_us(pending.request.dims)
                if us is None or own is None or us > together + own or us > left:
                    break
                together = us
            joined.append(pending)
            rows = total
        if len(joined) > 1:
            joined_ids = set(map(id, joined))
            self._queue = deque(pending for pending in self._queue if id(pending) not in joined_ids)
        return joined

    def _answer(self, calls: Sequence[Pending]) -> None:
        live = [pending for pending in calls if pending.future.set_running_or_notify_cancel()]
        if not live:
            return
        try:
            if len(live) == 1:
                (only,) = live
                only.future.set_result(self._timed_call(only.request.inputs, live, self.expected_us(only.request.dims)))
                return
            rows = [pending.rows for pending in live]
            names = live[0].request.inputs
            inputs = {name: np.concatenate([pending.request.inputs[name] for pending in live]) for name in names}
            dims = {**live[0].request.dims, live[0].key[0]: sum(rows)}
            outputs = self._timed_call(inputs, live, self.expected_us(dims))
            ends = np.cumsum(rows)
            for pending, last, count in zip(live, ends.tolist(), rows, strict=True):
                pending.future.set_result({name: array[last - count : last] for name, array in outputs.items()})
        except BaseException as error:
            if len(live) > 1:  # one of them may be at fault: each is answered by itself
                for pending in live:
                    self._answer_alone(pending)
                return
            live[0].future.set_exception(refusal_of(error))

    def _answer_alone(self, pending: Pending) -> None:
        if pending.future.done():
            return
        try:
            pending.future.set_result(self._timed_call(pending.request.inputs, [pending], None))
        except BaseException as error:
            pending.future.set_exception(refusal_of(error))

    def _timed_call(self, inputs: Mapping[str, Any], calls: Sequence[Pending], expected: float | None) -> Answer:
        begin = time.perf_counter()
        outputs: Answer = self.model.run(inputs)
        end = time.perf_counter()
        if expected:
            self.ratio += LEARNING_RATE * self.ratio * (min(4.0, 1e6 * (end - begin) / expected) - 1)
        if self._observe is not None:
            for pending in calls:
                self._observe(self.model.name, pending.request, begin - pending.arrived, end - begin, len(calls))
        return outputs
