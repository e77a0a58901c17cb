"""Answers to many jobs, worked out in processes; each with the seconds of a core that it took."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures.process import BrokenProcessPool
from types import MappingProxyType
from typing import Any, TypeAlias, TypeVar

from joblib import Parallel, delayed
from threadpoolctl import threadpool_limits

from haotuner.errors import HaotunerError

Answer: TypeAlias = dict[str, Any]  # found, and the seconds it took
Given = TypeVar("Given")
Asked = TypeVar("Asked")


def answers_of(
    work: Callable[[Given, Asked], Any],
    inputs: Given,
    jobs: Mapping[str, Asked],
    *,
    processes: int,
    tell: Callable[[str], None] = lambda _: None,
    earlier: Mapping[str, Answer] = MappingProxyType({}),
    keep: Callable[[str, Answer], None] = lambda _key, _answer: None,
) -> dict[str, Answer]:
    """``work(given, job)`` of every job with the seconds it took, by key; what was kept is not worked out again.

    Raises:
        HaotunerError: a process died. What ``work`` raises comes through as it is.
    """
    answers = {key: earlier[key] for key in jobs if key in earlier}
    for key, answer in _worked_out(work, inputs, {key: job for key, job in jobs.items() if key not in earlier}, processes):
        keep(key, answer)
        answers[key] = answer
        tell(f"{key}: {answer['seconds']:.0f} s")
    return answers


def _worked_out(
    work: Callable[[Given, Asked], Any], inputs: Given, jobs: Mapping[str, Asked], processes: int
) -> Iterator[tuple[str, Answer]]:
    """Each answer as it is done; the first jobs start first, so the longest should come first."""
    parallel = Parallel(
        n_jobs=max(1, min(processes, len(jobs))),
        return_as="generator_unordered",
        max_nbytes=None,  # tables travel as copies: maps of files would be read-only, and LightGBM wants to own its rows
        initializer=_leave_ctrl_c_to_the_parent,
    )
    try:
        yield from parallel(delayed(_timed)(work, inputs, key, job) for key, job in jobs.items())
    except BrokenProcessPool as gone:
        raise HaotunerError("a process of the report died; is there enough memory? try --jobs 1") from gone


def _leave_ctrl_c_to_the_parent() -> None:
    """A terminal sends Ctrl-C to all processes; the first one ends the others."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _timed(work: Callable[[Given, Asked], Any], inputs: Given, key: str, job: Asked) -> tuple[str, Answer]:
    started = time.process_time()  # of a core: a crowded machine makes no work
    with threadpool_limits(1):  # products of these sizes are slower on two threads, and many times so on a busy machine
        result = work(inputs, job)
    return key, {"found": result, "seconds": time.process_time() - started}
