"""Parallel: the same function over many jobs in several processes that share one large, unchanging argument."""

from __future__ import annotations

import contextlib
import io
import pickle
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from multiprocessing import get_context
from multiprocessing.connection import Connection, wait
from types import MappingProxyType
from typing import Any, TypeVar

from haotuner.errors import HaotunerError

Given = TypeVar("Given")
Job = TypeVar("Job")
Found = TypeVar("Found")


def spread(
    work: Callable[[Given, Job], Found], given: Given, jobs: Sequence[Job], *, processes: int
) -> Iterator[tuple[Job, Found]]:
    """``work(given, job)`` of every job, as each is done; with one process in this one, in order.

    Processes are spawned, not forked: LightGBM and BLAS keep threads that a fork would lose. Jobs are dealt round, so the
    longest should come first.

    Raises:
        HaotunerError: a process died, or ``work`` raised; the text says what.
    """
    if processes <= 1 or len(jobs) <= 1:
        for job in jobs:
            yield job, work(given, job)
        return
    context = get_context("spawn")
    payload = _packed((work, given))
    waiting, children = {}, []
    for first in range(min(processes, len(jobs))):
        here, there = context.Pipe(duplex=False)
        share = range(first, len(jobs), processes)
        child = context.Process(target=_work, args=(payload, [(at, jobs[at]) for at in share], there), daemon=True)
        with _deaf():
            child.start()
        there.close()
        waiting[here] = len(share)
        children.append(child)
    try:
        while waiting:
            for ready in wait(list(waiting)):
                assert isinstance(ready, Connection)
                try:
                    at, found, error = ready.recv()
                except EOFError as gone:
                    raise HaotunerError("a process of the evaluation died; is there enough memory? try --jobs 1") from gone
                if error:
                    raise HaotunerError(error)
                yield jobs[at], found
                waiting[ready] -= 1
                if not waiting[ready]:
                    del waiting[ready]
    finally:
        for child in children:
            child.terminate()
            child.join()


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """Processes started meanwhile leave Ctrl-C, which a terminal sends to all, to this one: it ends them."""
    if threading.current_thread() is not threading.main_thread():  # only that one may change what a signal does
        yield
        return
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _work(payload: bytes, jobs: Sequence[tuple[int, Any]], out: Connection) -> None:
    work, given = pickle.loads(payload)
    for at, job in jobs:
        try:
            out.send((at, work(given, job), ""))
        except Exception as error:  # sent to the parent, which raises it
            out.send((at, None, f"{type(error).__name__}: {error}"))
            return


def _packed(value: object) -> bytes:
    buffer = io.BytesIO()
    _Pickler(buffer, protocol=pickle.HIGHEST_PROTOCOL).dump(value)
    return buffer.getvalue()


class _Pickler(pickle.Pickler):
    """Pickles read-only views of dictionaries too, which a ``Device`` has."""

    def reducer_override(self, value: object) -> Any:
        return (_view, (dict(value),)) if isinstance(value, MappingProxyType) else NotImplemented


def _view(value: dict[str, Any]) -> MappingProxyType[str, Any]:
    return MappingProxyType(value)
