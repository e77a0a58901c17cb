"""Timer of generated groups in a process of its own, which reads a job and prints a line for each of its tasks.

Generated code that crashes takes nothing else along; what was printed before counts.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from haotuner.backends.cpu.group_jobs import NOTHING

CALLS, ENOUGH_S = 7, 0.05  # the least of so many calls, fewer of long ones
LEAST_S = 1e-8  # a time of nothing is no time
AXES = 12  # loops of a group at most (runtime/native/loops.h)


def timed_us(library: Any, task: Mapping[str, Any], sizes: list[int]) -> float:
    """Microseconds of one group's call: the processor's time of one thread, which programs beside it do not lengthen."""
    draw = np.random.default_rng(0)
    arrays = [
        draw.standard_normal(shape).astype(dtype)
        if dtype.startswith("float")
        else np.zeros(shape, "uint16" if dtype == "bfloat16" else dtype)
        for dtype, shape in task["tensors"]
    ]
    table = np.array(sizes or [0], np.int64)
    low, high = np.zeros(AXES, np.int64), np.zeros(AXES, np.int64)
    high[: len(task["loops"])] = [sizes[position] for position in task["loops"]]
    pointers = (ctypes.c_void_p * len(arrays))(*(array.ctypes.data for array in arrays))
    run = getattr(library, f"ht_group_{task['group']}")
    run.argtypes, run.restype = [ctypes.c_void_p] * 4, None
    arguments = (table.ctypes.data, ctypes.addressof(pointers), low.ctypes.data, high.ctypes.data)
    nothing = getattr(library, NOTHING)
    nothing.argtypes, nothing.restype = [ctypes.c_void_p] * 4, None
    run(*arguments)
    result: list[float] = []
    calls: list[float] = []  # what a call from here costs by itself
    begin = time.perf_counter()
    while len(result) < CALLS and (not result or time.perf_counter() - begin < ENOUGH_S):
        before = time.thread_time()
        run(*arguments)
        result.append(time.thread_time() - before)
        before = time.thread_time()
        nothing(*arguments)
        calls.append(time.thread_time() - before)
    return max(min(result) - min(calls), LEAST_S) * 1e6


def main() -> int:
    """A line ``[group, request, microseconds]`` for each task."""
    job = json.loads(sys.stdin.read())
    library = ctypes.CDLL(job["library"])
    for task in job["tasks"]:
        us = timed_us(library, task, job["values"][task["group"]][task["request"]])
        print(json.dumps([task["group"], task["request"], us]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
