"""Programs for the tests of isolate: each serves verbs that misbehave in one way."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from typing import Any

from haotuner.isolate.answers import MISSING, Job, Refusal
from haotuner.isolate.program import Program


def willing(settings: Mapping[str, Any]) -> Program:
    """Serves everything below; its greeting is what it was told and what it finds."""
    print("hello from a library")  # must not look like an answer
    state: dict[str, int] = {}

    def count(job: Job) -> Job:
        state["count"] = state.get("count", 0) + 1
        return {"count": state["count"], "process": os.getpid()}

    def sleep(job: Job) -> Job:
        time.sleep(job["seconds"])
        return {"slept": job["seconds"]}

    def spawn(job: Job) -> Job:
        started = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return {"process": started.pid}

    def spin(job: Job) -> Job:
        until = time.process_time() + 0.05
        while time.process_time() < until:
            continue
        return {}

    def unasked(job: Job) -> Job:
        """Something that it leaves running writes a line into every pipe that it finds, after the answer."""

        def write() -> None:
            for number in range(3, 64):
                with contextlib.suppress(OSError):
                    os.write(number, b'{"count": 99}\n')

        threading.Timer(0.2, write).start()
        return {}

    verbs = {
        "count": count, "sleep": sleep, "spawn": spawn, "spin": spin, "unasked": unasked,
        "say_no": lambda job: _raise(Refusal("verify", "wrong", "one is not two")),
        "give_up": lambda job: _raise(Refusal("run", "crash", "the context is gone", fatal=True)),
        "fail": lambda job: _raise(ZeroDivisionError("by nothing")),
        "no_memory": lambda job: _raise(MemoryError("so much")),
        "exit": lambda job: os._exit(job["code"]),
        "read_input": lambda job: {"read": sys.stdin.read()},
        "print": lambda job: {"printed": print("noise", flush=True)},
        "environment": lambda job: {"value": os.environ.get(job["name"])},
        "odd": lambda job: {"refused": job["refused"]},
    }  # fmt: skip
    return Program(verbs=verbs, greeting={"told": dict(settings), "path": sys.path})


def absent(settings: Mapping[str, Any]) -> Program:
    """Needs a library that nobody has."""
    raise Refusal("load", MISSING, "no_such_library is not installed")


def broken(settings: Mapping[str, Any]) -> Program:
    """Fails while it loads."""
    raise ValueError("cannot load this")


def silent(settings: Mapping[str, Any]) -> Program:
    """Never gets ready."""
    time.sleep(600)
    return Program(verbs={})


def _raise(error: Exception) -> Job:
    raise error
