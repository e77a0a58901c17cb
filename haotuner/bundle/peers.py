"""The vendor's and Triton's matmul on the same shapes by the same policy, each in a process of its own."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from haotuner.bundle.child_process import OVER, Child, died
from haotuner.bundle.suites import Suite
from haotuner.bundle.trials import PEER, Task
from haotuner.words.op import Op

PEERS = ("torch", "triton")
START_SECONDS = 120.0  # importing torch and making its handles
ONE_SECONDS = 60.0  # triton compiles its configurations at the first shape of a dtype
MISSING = 4  # exit code of a peer that is not installed or sees no GPU


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
    peer: str, wanted: Sequence[Task], suite: Suite, l2_bytes: int, python_path: str, deadline: float
) -> Iterator[tuple[Task, dict[str, Any]]]:
    """Answers of one peer in order, ``{"missing": why}`` once where it cannot run at all.

    A task that hangs or crashes the peer is answered by a failure, and the next process goes on behind it.
    """
    left = list(wanted)
    while left and time.monotonic() < deadline:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder, "setup.json")
            rows = [[*task.extents, task.dtype, task.weights] for task in left]
            path.write_text(json.dumps({"tasks": rows, "l2_bytes": l2_bytes, "rotation_bytes": suite.rotation_bytes}))
            child = Child(f"haotuner.bundle.peer_{peer}", str(path), python_path=python_path)
            answered = 0
            try:
                limit = time.monotonic() + START_SECONDS
                while (line := child.line(min(limit, deadline))) not in (None, OVER):
                    yield left[answered], json.loads(line or "")
                    answered += 1
                    limit = time.monotonic() + ONE_SECONDS
                if line == OVER:
                    child.exit_code()
            finally:
                code = child.end()
        if answered == len(left) or (line is None and time.monotonic() >= deadline):
            return
        if code == MISSING:
            yield left[0], {"missing": child.words or f"{peer} is not installed"}
            return
        reason = "timeout" if line is None else "crash"
        detail = "no answer in time" if line is None else died(code, child.words)
        yield left[answered], {"failed": {"stage": "time", "reason": reason, "detail": f"{peer}: {detail}"}}
        left = left[answered + 1 :]
