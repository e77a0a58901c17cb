"""A function in a forked process: a sticky error, a crash or a hang ends with it. Before CUDA begins it may use a driver."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable, Mapping

from tests.standin.patience import WALL_S, ended

TEXT_BYTES = 60_000  # of what a child says; a pipe holds 65,536
HUNG = "it hung"


def failure_of(function: Callable[[], None], *, seconds: float = 60, environment: Mapping[str, str] | None = None) -> str:
    """How a function failed: its traceback, its signal, or that it hung; empty if it returned.

    It hangs where it used so many seconds of processors, or waits for what never comes (``patience.ended``).
    """
    answer, question = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(answer)
        signal.alarm(WALL_S)  # if the parent is ended first
        os.environ.update(environment or {})
        message = ""
        try:
            function()
        except BaseException:  # a forked child must not run on
            message = traceback.format_exc()
        os.write(question, message.encode()[:TEXT_BYTES])
        os._exit(0)
    os.close(question)
    with os.fdopen(answer, "rb") as stream:
        status = ended(child, seconds)
        if status is None:
            return HUNG
        message = stream.read().decode(errors="replace")
    return message or (f"ended with status {status}" if status else "")
