"""Small hosts that show one property of the stand-in each: ``python -m tests.standin.programs NAME CUBIN`` prints JSON."""

from __future__ import annotations

import ctypes
import functools
import json
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.standin.apart import failure_of
from tests.standin.client import Driver
from tests.standin.host import PLAIN, WIDE, Host, Problem

M, N, K = 40, 24, 64


def times(cubin: Path) -> Any:
    """Microseconds of a launch on the virtual clock, by kernel, m and splits."""
    host = Host(cubin)
    stream, events = host.stream(), [host.driver.new("cuEventCreate", 0) for _ in range(2)]
    host.driver.need("cuFuncSetAttribute", host.kernel(WIDE[0]), 8, 60 << 10)
    times_us = {}
    for kernel, shared in ((PLAIN, 0), (WIDE, 1024), (WIDE, 60 << 10)):
        for m in (16, 256, 4096):
            for splits in (1, 4):
                problem = Problem(m, 256, 512).upload(host.driver, splits)
                host.driver.need("cuEventRecord", events[0], stream)
                host.launch(problem, stream, kernel=kernel, shared=shared, splits=splits)
                host.driver.need("cuEventRecord", events[1], stream)
                host.driver.need("cuStreamSynchronize", stream)
                took = ctypes.c_float()
                host.driver.need("cuEventElapsedTime", ctypes.byref(took), *events)
                times_us[f"{kernel[0]} {shared} m={m} k{splits}"] = took.value * 1e3
    return times_us


def replays(cubin: Path) -> Any:
    """Two hundred timed launches over three weights, then one whose result is read; how many were carried out."""
    host = Host(cubin)
    stream, problem = host.stream(), Problem(M, N, K).upload(host.driver, 4)
    weights = [host.driver.upload(problem.w * factor) for factor in (2.0, 3.0, 1.0)]
    host.kernel("haotuner_reduce_fp32"), host.kernel(PLAIN[0])
    host.driver.need("cuCtxSynchronize")
    host.driver.need("cuStreamBeginCapture", stream, 0)
    for weight in weights:
        problem.at["w"] = weight
        host.launch(problem, stream, splits=4)
    graph = ctypes.c_uint64()
    host.driver.need("cuStreamEndCapture", stream, ctypes.byref(graph))
    executable = host.driver.new("cuGraphInstantiateWithFlags", graph.value, 0)
    for _ in range(34):
        host.driver.need("cuGraphLaunch", executable, stream)
    host.driver.need("cuStreamSynchronize", stream)
    before = host.driver.executed()
    problem.check(host.driver)
    return {"before": before, "after": host.driver.executed()}


def regions(cubin: Path) -> Any:
    """Three hundred calls of two regions, side by side in Y; how many launches were carried out before and for a reading."""
    host = Host(cubin)
    stream, problem = host.stream(), Problem(M, N, K).upload(host.driver)
    first = PLAIN[1]
    upper, lower = problem.arguments(), problem.arguments()
    upper.m, lower.m = first, M - first
    lower.x, lower.y = lower.x + 4 * first * K, lower.y + 4 * first * N
    for _ in range(300):
        host.send(upper, stream)
        host.send(lower, stream, kernel=WIDE)
    host.driver.need("cuStreamSynchronize", stream)
    before = host.driver.executed()
    problem.check(host.driver)
    return {"before": before, "after": host.driver.executed()}


def chain(cubin: Path) -> Any:
    """A product of a product, its first operand overwritten afterwards: what is read late is what was asked for."""
    host = Host(cubin)
    stream, first = host.stream(), Problem(32, 32, 32).upload(host.driver)
    second = Problem(32, 32, 32).upload(host.driver)
    second.at["x"], second.x = first.at["y"], first.x @ first.w.T
    host.launch(first, stream)
    host.launch(second, stream)
    zeros = np.zeros_like(first.x)
    host.driver.need("cuMemcpyHtoDAsync", first.at["x"], zeros.ctypes.data_as(ctypes.c_void_p), zeros.nbytes, stream)
    host.driver.need("cuMemsetD8Async", first.at["y"], 0, zeros.nbytes, stream)
    host.driver.need("cuStreamSynchronize", stream)
    second.check(host.driver)
    return {"executed": host.driver.executed()}


def unread(cubin: Path) -> Any:
    """A launch whose result is freed unread."""
    host = Host(cubin)
    stream, problem = host.stream(), Problem(M, N, K).upload(host.driver)
    host.launch(problem, stream)
    host.driver.need("cuStreamSynchronize", stream)
    for name in ("y", "x", "w"):
        host.driver.need("cuMemFree", problem.at[name])
    return {"executed": host.driver.executed()}


def result(cubin: Path) -> Any:
    """Y of one launch: how many of its elements are numbers, and how often it was carried out."""
    host = Host(cubin)
    problem, stream = Problem(M, N, K).upload(host.driver), host.stream()
    host.launch(problem, stream)
    host.driver.need("cuStreamSynchronize", stream)
    output = host.driver.download(problem.at["y"], np.empty((M, N), np.float32))
    return {"numbers": int(np.isfinite(output).sum()), "executed": host.driver.executed()}


def planned(cubin: Path) -> Any:
    """Answers of ten calls each, under the plan of the environment."""
    host = Host(cubin)
    problem, stream = Problem(M, N, K).upload(host.driver), host.stream()
    codes = [host.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 64) for _ in range(6)]
    parameters = [problem.arguments()]
    launched = [host.driver.launch(host.kernel(PLAIN[0]), parameters, grid=6, block=128, stream=stream) for _ in range(4)]
    return {"alloc": codes, "launch": launched, "wait": host.driver.call("cuStreamSynchronize", stream)}


def hanging(cubin: Path) -> Any:
    """A wait for work that never ends, planned or by a barrier that a thread does not reach."""

    def wait(kernel: str) -> None:
        host = Host(cubin)
        parameters = (
            [problem.arguments()] if (problem := Problem(M, N, K).upload(host.driver)) and kernel == PLAIN[0] else None
        )
        flag = host.driver.upload(np.zeros(1, np.int32))
        stream = host.stream()
        block = 128 if parameters else 64
        assert (
            host.driver.launch(
                host.kernel(kernel), parameters or [ctypes.c_uint64(flag)], grid=1, block=block, stream=stream
            )
            == 0
        )
        assert host.driver.call("cuStreamQuery", host.stream()) == 0  # another stream is free
        if kernel == PLAIN[0]:
            assert host.driver.call("cuStreamQuery", stream) == 600
        host.driver.call("cuStreamSynchronize", stream)

    return [failure_of(functools.partial(wait, kernel), seconds=2) for kernel in (PLAIN[0], "never_ends")]


def devices(cubin: Path) -> Any:
    """Names of the devices, and what the first can hold."""
    driver = Driver()
    if code := driver.call("cuInit", 0):
        return {"init": code}
    count, name = ctypes.c_int(), ctypes.create_string_buffer(64)
    driver.need("cuDeviceGetCount", ctypes.byref(count))
    names = []
    for index in range(count.value):
        driver.need("cuDeviceGetName", name, 64, index)
        names.append(name.value.decode())
    driver.open()
    module = driver.call("cuModuleLoadData", ctypes.byref(ctypes.c_uint64()), cubin.read_bytes())
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    driver.need("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    too_much = driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), total.value + 1)
    return {
        "init": 0,
        "names": names,
        "module": module,
        "memory": total.value,
        "too_much": too_much,
        "units": driver.attribute(16),
    }


def counts(cubin: Path) -> Any:
    """How often two functions were called, and that a reset forgets."""
    host = Host(cubin)
    problem = Problem(M, N, K).upload(host.driver)
    host.driver.library.standin_counts_reset()
    for _ in range(3):
        host.launch(problem, 0)
    return {name: host.driver.count(name) for name in ("cuLaunchKernel", "cuMemAlloc", "cuModuleLoadData")}


def overhead(cubin: Path) -> Any:
    """Nanoseconds of cuLaunchKernel: the least of fifty batches of a hundred calls."""
    host = Host(cubin)
    arguments = Problem(M, N, K).upload(host.driver).arguments()
    launch, kernel = host.driver.library.cuLaunchKernel, host.kernel(PLAIN[0])
    pointers = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    launch.argtypes = [ctypes.c_uint64, *[ctypes.c_uint] * 7, ctypes.c_uint64, ctypes.c_void_p, ctypes.c_void_p]
    batches = []
    for _ in range(50):
        started = time.perf_counter_ns()
        for _ in range(100):
            launch(kernel, 6, 1, 1, 128, 1, 1, 0, 0, pointers, None)
        batches.append((time.perf_counter_ns() - started) / 100)
        host.driver.need("cuCtxSynchronize")
    return {"ns": min(batches), "counted": host.driver.count("cuLaunchKernel")}


def caches(cubin: Path) -> Any:
    """Microseconds of a launch whose weight was never read, was read just before, and was driven out of the cache."""
    host = Host(cubin)
    stream, events = host.stream(), [host.driver.new("cuEventCreate", 0) for _ in range(2)]
    problem, other = Problem(1, 1024, 1024).upload(host.driver), Problem(1, 1024, 1024).upload(host.driver)
    times_us = []
    for weight in (problem, problem, other, problem):
        host.driver.need("cuEventRecord", events[0], stream)
        host.launch(weight, stream)
        host.driver.need("cuEventRecord", events[1], stream)
        host.driver.need("cuStreamSynchronize", stream)
        took = ctypes.c_float()
        host.driver.need("cuEventElapsedTime", ctypes.byref(took), *events)
        times_us.append(took.value * 1e3)
    return dict(zip(("cold", "warm", "other", "again"), times_us, strict=True))


def threads(cubin: Path) -> Any:
    """Eight threads that allocate, launch on streams of their own, check and free, fifteen times each; errors found."""
    host, errors = Host(cubin), []
    for name in (PLAIN[0], "haotuner_reduce_fp32"):
        host.kernel(name)

    def work(number: int) -> None:
        try:
            host.driver.need("cuCtxSetCurrent", host.context)
            for turn in range(15):
                stream, splits = host.stream(), 1 + turn % 3
                problem = Problem(16 + number, 24, 32 + turn)
                problem.at = {"x": host.driver.upload(problem.x), "w": host.driver.upload(problem.w)}
                problem.at["y"] = host.driver.new("cuMemAlloc", 4 * problem.m * problem.n)
                problem.at["partial"] = host.driver.new("cuMemAlloc", 4 * problem.m * problem.n * splits)
                host.launch(problem, stream, splits=splits)
                host.driver.need("cuStreamSynchronize", stream)
                problem.check(host.driver)
                for address in problem.at.values():
                    host.driver.need("cuMemFree", address)
                host.driver.need("cuStreamDestroy", stream)
        except Exception as error:  # told by the parent
            errors.append(repr(error)[:300])

    running = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    host.driver.need("cuMemGetInfo", ctypes.byref(free), ctypes.byref(total))
    return {"errors": errors, "held": total.value - free.value, "executed": host.driver.executed()}


PROGRAMS: dict[str, Callable[[Path], Any]] = {
    program.__name__: program
    for program in (
        times,
        replays,
        regions,
        chain,
        unread,
        result,
        planned,
        hanging,
        devices,
        counts,
        overhead,
        caches,
        threads,
    )
}

if __name__ == "__main__":
    print(json.dumps(PROGRAMS[sys.argv[1]](Path(sys.argv[2]))))
