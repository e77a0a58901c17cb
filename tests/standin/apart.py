"""A function in a forked process: a sticky error, a crash or a hang ends with it. Before CUDA begins it may use a driver."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Mapping

TEXT_BYTES = 60_000  # of what a child says


def failure_of(function: Callable[[], None], *, seconds: int = 60, environment: Mapping[str, str] | None = None) -> str:
    """How a function failed: its traceback, or its signal; empty if it returned."""
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        signal.alarm(seconds)
        os.environ.update(environment or {})
        said = ""
        try:
            function()
        except BaseException:  # a forked child must not run on
            said = traceback.format_exc()
        os.write(question, said.encode()[:TEXT_BYTES])
        os._exit(0)
    os.close(question)
    with os.fdopen(answer, "rb") as stream:
        said = stream.read().decode(errors="replace")
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return said or (f"ended with status {status}" if status else "")
