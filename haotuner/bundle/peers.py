"""The vendor's and Triton's matmul on the same shapes by the same policy, each in a process of its own."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from haotuner.bundle.overseer import answer_to
from haotuner.bundle.suites import Suite
from haotuner.bundle.trials import PEER, Task
from haotuner.isolate.answers import MISSING, Unanswered
from haotuner.isolate.child import Child
from haotuner.words.op import Op

PEERS = ("torch", "triton")
START_SECONDS = 120.0  # importing torch and making its handles
ONE_SECONDS = 60.0  # triton compiles its configurations at the first shape of a dtype


def tasks(peer: str, suite: Suite, done: set[str]) -> list[Task]:
    """Every timed shape that the peer has not answered yet; the kernel is the peer's name."""
    found = []
    for workload in suite.timed:
        op = Op.parse(workload.op)
        for m in workload.rows:
            for weights in ("cold", "hot") if workload.hot else ("cold",):
                extents = (m, op["n"], op["k"])
                found.append(Task(stage=PEER, kernel=peer, dtype=op.dtype, extents=extents, weights=weights))
    return [task for task in found if task.key() not in done]


def answers(
    peer: str, wanted: Sequence[Task], suite: Suite, l2_bytes: int, deadline: float
) -> Iterator[tuple[Task, Mapping[str, Any]]]:
    """Answers of one peer in order, ``{"missing": why}`` once where it cannot run at all.

    A task that hangs or crashes the peer is answered by a failure, and a fresh process goes on behind it.
    """
    child = Child(f"haotuner.bundle.peer_{peer}:peer", {"l2_bytes": l2_bytes, "rotation_bytes": suite.rotation_bytes})
    try:
        for task in wanted:
            answer = None if child.pid is not None else _not_started(child, deadline)
            if time.monotonic() >= deadline:
                return
            if answer is None:
                request = {"do": "time", "extents": task.extents, "dtype": task.dtype, "weights": task.weights}
                answer = answer_to(child, request, "time", ONE_SECONDS, deadline)
            if answer is None:
                return
            yield task, answer
            if "missing" in answer:
                return
    finally:
        child.close()


def _not_started(child: Child, deadline: float) -> Mapping[str, Any] | None:
    """Why the peer does not get ready; None if it does. The task that it was started for has no other answer."""
    child.launch()
    try:
        child.greeting(min(START_SECONDS, deadline - time.monotonic()))
    except Unanswered as error:
        return {"missing": str(error)} if error.reason == MISSING else {"failed": asdict(error.failed("time"))}
    return None
