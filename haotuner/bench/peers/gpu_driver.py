"""A GPU through its driver alone: memory, streams, graphs, and the clock of contenders there.

The clock of contenders on a GPU: CUDA graphs of launches, replayed between events.

The tuner's policy: a graph walks over all the weights, so that a cold one is found in memory (three L2s full of others
passed since); a replay's time over its launches is a sample; a block is the median of its samples. What the host does to
launch is no part of a time, the gaps between dependent launches of a graph are.
"""

from __future__ import annotations

import ctypes
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from haotuner.bench.contender import Array, Call
from haotuner.bench.operands import decoded, encoded
from haotuner.bench.timing import Block
from haotuner.ops.dtypes import DTYPES

LEAST_LAUNCHES = 20  # of a graph: its start and the events, some microseconds, are shared by all
LEAST_SAMPLES, MOST_SAMPLES = 5, 63
AT_ONCE = 8  # replays that are queued before the host waits
WARM_S = 0.01  # after a pause: the clock of an idle GPU takes some milliseconds to rise


class Engine(Protocol):
    """Captures and replays on one stream of a GPU."""

    def capture(self, run: Callable[[], object]) -> Any:
        """A graph of what ``run`` queues."""
        ...

    def drop(self, graph: Any) -> None:
        """Free a graph that will not be replayed any more."""
        ...

    def replay_us(self, graph: Any, times: int) -> list[float]:
        """Microseconds of so many replays in a row, each between two events; waits for the last."""
        ...


class GraphClock:
    """Times a round of calls as one graph. The first calls run before the capture: libraries get ready in them."""

    def __init__(self, engine: Engine, calls: Sequence[Call]) -> None:
        self._engine = engine
        self._launches = len(calls) * -(-LEAST_LAUNCHES // len(calls))
        for call in calls[:2]:
            call()

        def run() -> None:
            for launch in range(self._launches):
                calls[launch % len(calls)]()

        self._graph: Any = engine.capture(run)
        engine.replay_us(self._graph, 1)  # the first replay uploads it
        (self._replay_us,) = engine.replay_us(self._graph, 1)

    def __del__(self) -> None:
        graph, self._graph = getattr(self, "_graph", None), None
        if graph is not None:
            self._engine.drop(graph)

    def block(self, seconds: float) -> Block:
        """Warm up, then replay for that long, within ``LEAST_SAMPLES`` and ``MOST_SAMPLES``."""
        until = time.perf_counter() + WARM_S
        while time.perf_counter() < until:
            self._engine.replay_us(self._graph, 1)
        sample_count = int(min(MOST_SAMPLES, max(LEAST_SAMPLES, seconds * 1e6 / max(self._replay_us, 1e-3))))
        samples: list[float] = []
        while len(samples) < sample_count:
            samples += self._engine.replay_us(self._graph, min(AT_ONCE, sample_count - len(samples)))
        self._replay_us = statistics.median(samples)
        return Block(call_ns=self._replay_us * 1e3 / self._launches, calls=self._launches * len(samples))


LIBRARY = "libcuda.so.1"
KDL_CUDA = 2
STREAM_NON_BLOCKING = 1
CAPTURE_THREAD_LOCAL = 1
_SIZE = ctypes.c_size_t


class Driver:
    """One device's primary context, current in this thread for good; a stream of its own. An ``Engine``.

    ImportError where there is no driver or no such device; RuntimeError names the call that failed and its error.
    """

    def __init__(self, ordinal: int) -> None:
        try:
            self._cuda = ctypes.CDLL(LIBRARY)
            self._call("cuInit", 0)
            device, context, stream = ctypes.c_int(0), ctypes.c_void_p(), ctypes.c_void_p()
            self._call("cuDeviceGet", ctypes.byref(device), ordinal)
            self._call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
            self._call("cuCtxPushCurrent_v2", context)
            self._call("cuStreamCreate", ctypes.byref(stream), STREAM_NON_BLOCKING)
        except (OSError, RuntimeError) as error:
            raise ImportError(f"no GPU {ordinal} by the driver: {error}") from error
        self.ordinal, self.stream = ordinal, int(stream.value or 0)

    def upload(self, values: NDArray[Any], dtype: str) -> Memory:
        """A copy of values on the device."""
        stored = encoded(np.asarray(values, np.float32), dtype)
        memory = self.empty(values.shape, dtype)
        self._call("cuMemcpyHtoD_v2", memory.pointer, ctypes.c_void_p(stored.ctypes.data), _SIZE(stored.nbytes))
        self._call("cuStreamSynchronize", ctypes.c_void_p(0))  # the copy may return before its last bytes arrive
        return memory

    def empty(self, shape: Sequence[int], dtype: str) -> Memory:
        """Memory for a compact array; free it with ``free``."""
        size = max(1, int(np.prod(shape)) * DTYPES[dtype].size)
        return Memory(self._allocate(size), size, tuple(shape), dtype, self.ordinal)

    def workspace(self, size: int) -> int:
        """The address of so many bytes, kept as long as the process."""
        return self._allocate(size)

    def poison(self, memory: Memory) -> None:
        """Every element NaN."""
        self._call("cuMemsetD8Async", ctypes.c_uint64(memory.address), 255, _SIZE(memory.size), ctypes.c_void_p(self.stream))
        self.wait()

    def download(self, memory: Memory) -> Array:
        """Contents of the memory once all queued work is done, as fp32."""
        self.wait()
        element_type: NDArray[Any] = np.empty(
            memory.shape, np.uint16 if memory.dtype == "bf16" else DTYPES[memory.dtype].numpy
        )
        self._call("cuMemcpyDtoH_v2", ctypes.c_void_p(element_type.ctypes.data), memory.pointer, _SIZE(element_type.nbytes))
        return decoded(element_type, memory.dtype)

    def free(self, memories: Sequence[Memory]) -> None:
        """Give memory back once all queued work is done."""
        self.wait()
        for memory in memories:
            self._call("cuMemFree_v2", memory.pointer)

    def wait(self) -> None:
        """Until all queued work is done."""
        self._call("cuStreamSynchronize", ctypes.c_void_p(self.stream))

    def capture(self, run: Callable[[], object]) -> ctypes.c_void_p:
        """A graph of what ``run`` queues on the stream."""
        graph, ready = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuStreamBeginCapture_v2", ctypes.c_void_p(self.stream), CAPTURE_THREAD_LOCAL)
        try:
            run()
        finally:
            self._call("cuStreamEndCapture", ctypes.c_void_p(self.stream), ctypes.byref(graph))
        self._call("cuGraphInstantiateWithFlags", ctypes.byref(ready), graph, ctypes.c_ulonglong(0))
        self._call("cuGraphDestroy", graph)
        return ready

    def drop(self, graph: ctypes.c_void_p) -> None:
        """Free a graph that will not be replayed any more."""
        self._call("cuGraphExecDestroy", graph)

    def replay_us(self, graph: ctypes.c_void_p, times: int) -> list[float]:
        """Microseconds of so many replays in a row."""
        events = [self._event() for _ in range(times + 1)]
        try:
            self._call("cuEventRecord", events[0], ctypes.c_void_p(self.stream))
            for event in events[1:]:
                self._call("cuGraphLaunch", graph, ctypes.c_void_p(self.stream))
                self._call("cuEventRecord", event, ctypes.c_void_p(self.stream))
            self._call("cuEventSynchronize", events[-1])
            return [self._between_us(first, last) for first, last in zip(events, events[1:], strict=False)]
        finally:
            for event in events:
                self._call("cuEventDestroy_v2", event)

    def timed_us(self, run: Callable[[], object]) -> float:
        """Microseconds between two events around what ``run`` queues."""
        first, last = self._event(), self._event()
        self._call("cuEventRecord", first, ctypes.c_void_p(self.stream))
        run()
        self._call("cuEventRecord", last, ctypes.c_void_p(self.stream))
        self._call("cuEventSynchronize", last)
        return self._between_us(first, last)

    def _between_us(self, first: ctypes.c_void_p, last: ctypes.c_void_p) -> float:
        ms = ctypes.c_float(0)
        self._call("cuEventElapsedTime", ctypes.byref(ms), first, last)
        return ms.value * 1e3

    def _event(self) -> ctypes.c_void_p:
        event = ctypes.c_void_p()
        self._call("cuEventCreate", ctypes.byref(event), 0)
        return event

    def _allocate(self, size: int) -> int:
        address = ctypes.c_uint64(0)
        self._call("cuMemAlloc_v2", ctypes.byref(address), _SIZE(size))
        return address.value

    def _call(self, name: str, *arguments: Any) -> None:
        code = self._cuda[name](*arguments)
        if code != 0:
            raise RuntimeError(f"{name} answers CUDA error {code}")


class _Tensor(ctypes.Structure):
    """DLTensor of dlpack.h, and the end of DLManagedTensor."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32), ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
    ]  # fmt: skip


class Memory:
    """A compact array on a device. A DLPack producer; nobody may use it after it was freed."""

    def __init__(self, address: int, size: int, shape: tuple[int, ...], dtype: str, ordinal: int) -> None:
        self.address, self.size, self.shape, self.dtype, self._ordinal = address, size, shape, dtype, ordinal
        kind = DTYPES[dtype]
        self._extents = (ctypes.c_int64 * len(shape))(*shape)
        description = (
            address,
            KDL_CUDA,
            ordinal,
            len(shape),
            kind.code,
            8 * kind.size,
            1,
            self._extents,
            None,
            0,
            None,
            None,
        )
        self._description = _Tensor(*description)

    @property
    def pointer(self) -> ctypes.c_uint64:
        """The address as the driver takes it."""
        return ctypes.c_uint64(self.address)

    def tensor(self) -> Any:
        """A tvm-ffi tensor of it; this object must outlive it."""
        import tvm_ffi

        return tvm_ffi.from_dlpack(self)

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_CUDA, self._ordinal

    def __dlpack__(self, **_: Any) -> Any:
        new = ctypes.pythonapi.PyCapsule_New
        new.restype, new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return new(ctypes.addressof(self._description), b"dltensor", None)
