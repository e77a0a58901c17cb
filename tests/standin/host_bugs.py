"""Mistakes that hosts make, each beside what is right: ``python -m tests.standin.host_bugs CUBIN SEEDS``.

A mistake is a function that does the whole work wrongly; it must fail under some seed. Two devices are there.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np

from tests.standin.apart import failure_of
from tests.standin.client import DriverError
from tests.standin.host import MAX_DYNAMIC, PLAIN, WIDE, Host, Problem

SPLITS = 4
SHARED = 60 << 10
MAPPED = ("dense_by_maps", 16, 16)


def right(cubin: Path) -> None:
    """Two streams, split k with a workspace each, a wide kernel, maps, a graph, another device: as it should be."""
    host = Host(cubin)
    first, second = Problem(40, 24, 64).upload(host.driver, SPLITS), Problem(33, 40, 96).upload(host.driver, SPLITS)
    streams = [host.stream(), host.stream()]
    for problem, stream in zip((first, second), streams, strict=True):
        host.launch(problem, stream, splits=SPLITS)
        host.driver.need("cuStreamSynchronize", stream)
        problem.check(host.driver)
    host.driver.need("cuFuncSetAttribute", host.kernel(WIDE[0]), MAX_DYNAMIC, SHARED)
    host.launch(first, streams[0], kernel=WIDE, shared=SHARED)
    host.driver.need("cuStreamSynchronize", streams[0])
    first.check(host.driver)
    maps = [host.tensor_map(second.at["x"], 33, 96), host.tensor_map(second.at["w"], 40, 96)]
    host.launch(second, streams[1], kernel=MAPPED, maps=[tensor_map for tensor_map, _ in maps])
    host.driver.need("cuStreamSynchronize", streams[1])
    second.check(host.driver)
    _replay(host, first, streams[0])
    other = Host(cubin, device=1)
    third = Problem(17, 16, 32).upload(other.driver)
    other.launch(third, other.stream())
    other.driver.need("cuCtxSynchronize")
    third.check(other.driver)
    other.driver.need("cuMemFree", third.at["w"])


def _replay(host: Host, problem: Problem, stream: int, inside: Callable[[], object] = lambda: None) -> None:
    host.kernel(PLAIN[0])
    host.driver.need("cuStreamBeginCapture", stream, 0)
    host.launch(problem, stream, splits=SPLITS)
    inside()
    graph = ctypes.c_uint64()
    host.driver.need("cuStreamEndCapture", stream, ctypes.byref(graph))
    executable = host.driver.new("cuGraphInstantiateWithFlags", graph.value, 0)
    host.driver.need("cuGraphLaunch", executable, stream)
    host.driver.need("cuStreamSynchronize", stream)
    problem.check(host.driver)


def operands_swapped(cubin: Path) -> None:
    """x and w in each other's place."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver)
    problem.at["x"], problem.at["w"] = problem.at["w"], problem.at["x"]
    host.launch(problem, host.stream())
    host.driver.need("cuCtxSynchronize")
    problem.check(host.driver)


def shared_memory_not_asked_for(cubin: Path) -> None:
    """More than 48 KB without the function's attribute."""
    host = Host(cubin)
    host.launch(Problem(40, 24, 64).upload(host.driver), host.stream(), kernel=WIDE, shared=SHARED)


def workspace_of_two_streams(cubin: Path) -> None:
    """Partial sums of two streams in one buffer."""
    host = Host(cubin)
    first, second = Problem(40, 24, 64).upload(host.driver, SPLITS), Problem(40, 24, 96).upload(host.driver, SPLITS)
    second.at["partial"] = first.at["partial"]
    for problem in (first, second):
        host.launch(problem, host.stream(), splits=SPLITS)
    host.driver.need("cuCtxSynchronize")
    first.check(host.driver)
    second.check(host.driver)


def weight_freed_while_queued(cubin: Path) -> None:
    """cuMemFree of W before the launch that reads it was waited for."""
    host = Host(cubin)
    problem, stream = Problem(40, 24, 64).upload(host.driver), host.stream()
    host.launch(problem, stream)
    host.driver.need("cuMemFree", problem.at["w"])
    host.driver.need("cuStreamSynchronize", stream)
    problem.check(host.driver)


def maps_not_encoded(cubin: Path) -> None:
    """A tensor map on a stack frame that is gone: other bytes lie there by now."""
    host = Host(cubin)
    problem = Problem(32, 32, 64).upload(host.driver)
    host.launch(problem, host.stream(), kernel=MAPPED, maps=[(ctypes.c_byte * 128)(*range(100)) for _ in range(2)])
    host.driver.need("cuCtxSynchronize")


def map_of_freed_memory(cubin: Path) -> None:
    """A tensor map that was encoded once, over an operand that has moved since."""
    host = Host(cubin)
    problem = Problem(32, 32, 64).upload(host.driver)
    maps = [host.tensor_map(problem.at["x"], 32, 64), host.tensor_map(problem.at["w"], 32, 64)]
    host.driver.need("cuMemFree", problem.at["x"])
    problem.at["x"] = host.driver.upload(problem.x)
    host.launch(problem, host.stream(), kernel=MAPPED, maps=[tensor_map for tensor_map, _ in maps])
    host.driver.need("cuCtxSynchronize")


def no_context_pushed(cubin: Path) -> None:
    """A thread's first call without a current context."""
    host = Host(cubin)
    problem, stream = Problem(40, 24, 64).upload(host.driver), host.stream()
    host.kernel(PLAIN[0])
    host.driver.need("cuCtxSetCurrent", 0)
    host.launch(problem, stream)


def context_of_another_device(cubin: Path) -> None:
    """The current device instead of the tensor's, on the default stream: its memory is out of reach."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver)
    other = Host(cubin, device=1)
    other.launch(problem, 0)
    other.driver.need("cuCtxSynchronize")


def stream_of_another_device(cubin: Path) -> None:
    """The tensor's device is current, the stream is of another."""
    stream = Host(cubin, device=1).stream()
    host = Host(cubin)
    host.launch(Problem(40, 24, 64).upload(host.driver), stream)


def module_loaded_in_a_capture(cubin: Path) -> None:
    """The first call of an op loads its module, and that call is captured."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver, SPLITS)
    _replay(
        host,
        problem,
        host.stream(),
        lambda: host.driver.need("cuModuleLoadData", ctypes.byref(ctypes.c_uint64()), cubin.read_bytes()),
    )


def wait_in_a_capture(cubin: Path) -> None:
    """A call that waits for its stream, captured; the host does not look at the answer."""
    host = Host(cubin)
    problem, stream = Problem(40, 24, 64).upload(host.driver, SPLITS), host.stream()
    _replay(host, problem, stream, lambda: host.driver.call("cuStreamSynchronize", stream))


def allocation_in_a_capture(cubin: Path) -> None:
    """A workspace made on the first call, captured."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver, SPLITS)
    _replay(host, problem, host.stream(), lambda: host.driver.call("cuMemAlloc", ctypes.byref(ctypes.c_uint64()), 64))


def grid_overflows(cubin: Path) -> None:
    """Tiles of m times tiles of n in 32 bits with a sign."""
    host = Host(cubin)
    arguments = Problem(40, 24, 64).upload(host.driver).arguments()
    host.send(arguments, host.stream(), grid=(65536 * 32768) & 0xFFFFFFFF)


def grid_wraps(cubin: Path) -> None:
    """A grid that wrapped around to a small number: most of Y is never written."""
    host = Host(cubin)
    problem, stream = Problem(40, 24, 64).upload(host.driver), host.stream()
    host.send(problem.arguments(), stream, grid=((1 << 32) + 2) & 0xFFFFFFFF)
    host.driver.need("cuStreamSynchronize", stream)
    problem.check(host.driver)


def no_wait_between_streams(cubin: Path) -> None:
    """One stream writes what the next reads, with no event between."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver)
    moved = host.driver.new("cuMemAlloc", problem.x.nbytes)
    host.driver.need("cuMemcpyDtoDAsync", moved, problem.at["x"], problem.x.nbytes, host.stream())
    problem.at["x"] = moved
    host.launch(problem, host.stream())
    host.driver.need("cuCtxSynchronize")
    problem.check(host.driver)


def result_read_too_early(cubin: Path) -> None:
    """A copy to pinned memory, read before its stream was waited for."""
    host = Host(cubin)
    problem, stream = Problem(40, 24, 64).upload(host.driver), host.stream()
    pinned = host.driver.new("cuMemHostAlloc", 4 * 40 * 24, 0)
    output = np.frombuffer(memoryview((ctypes.c_char * (4 * 40 * 24)).from_address(pinned)), np.float32)
    host.launch(problem, stream)
    host.driver.need("cuMemcpyDtoHAsync", pinned, problem.at["y"], output.nbytes, stream)
    np.testing.assert_allclose(output.reshape(40, 24), problem.x @ problem.w.T, rtol=1e-4, atol=1e-4)


def pinned_source_reused(cubin: Path) -> None:
    """A pinned staging buffer filled again while a copy from it is queued."""
    host = Host(cubin)
    problem, stream = Problem(40, 24, 64).upload(host.driver), host.stream()
    pinned = host.driver.new("cuMemHostAlloc", problem.x.nbytes, 0)
    ctypes.memmove(pinned, problem.x.ctypes.data, problem.x.nbytes)
    host.driver.need("cuMemcpyHtoDAsync", problem.at["x"], pinned, problem.x.nbytes, stream)
    ctypes.memset(pinned, 0, problem.x.nbytes)
    host.launch(problem, stream)
    host.driver.need("cuStreamSynchronize", stream)
    problem.check(host.driver)


def host_memory_as_operand(cubin: Path) -> None:
    """A CPU tensor given to a CUDA kernel."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver)
    problem.at["x"] = problem.x.ctypes.data
    host.launch(problem, host.stream())
    host.driver.need("cuCtxSynchronize")


def module_unloaded_while_queued(cubin: Path) -> None:
    """close() unloads the module while a launch of it waits."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver)
    host.launch(problem, host.stream())
    host.driver.need("cuModuleUnload", host.module)
    host.driver.need("cuCtxSynchronize")


def rows_too_far_apart(cubin: Path) -> None:
    """A row stride of Y larger than what was allocated for: a few bytes behind the end are written."""
    host = Host(cubin)
    problem = Problem(2, 24, 64).upload(host.driver)
    arguments = problem.arguments()
    arguments.ldy = 30
    host.send(arguments, host.stream())
    host.driver.need("cuCtxSynchronize")
    host.driver.need("cuMemFree", problem.at["y"])


def error_not_looked_at(cubin: Path) -> None:
    """A failed launch passes for a done one: the result is what lay there."""
    host = Host(cubin)
    problem = Problem(40, 24, 64).upload(host.driver)
    host.driver.fail("cuLaunchKernel", "719")
    with contextlib.suppress(DriverError):
        host.launch(problem, host.stream())
    host.driver.need("cuCtxSynchronize")
    problem.check(host.driver)


BUGS = {
    name: function
    for name, function in list(globals().items())
    if callable(function)
    and getattr(function, "__module__", "") == __name__
    and not name.startswith("_")
    and name != "right"
}


def main(cubin: str, seeds: str) -> None:
    """One JSON line for what is right and for each mistake: how it failed, by seed."""
    for name, function in {"right": right, **BUGS}.items():
        work = functools.partial(function, Path(cubin))
        failed = [failure_of(work, environment={"STANDIN_SEED": str(seed)}) for seed in range(int(seeds))]
        print(json.dumps({"name": name, "failed": failed}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
