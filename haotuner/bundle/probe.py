"""The GPU through the probe library: memory, streams, graphs, inputs, the float64 judge and measured ceilings."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

TYPES = {"fp32": 0, "fp16": 1, "bf16": 2}  # ProbeType
PATTERNS = {"spread": 0, "exact": 1}
OUT_OF_MEMORY = 2  # cudaErrorMemoryAllocation


class GpuError(Exception):
    """A CUDA call failed; ``name`` is the runtime's, such as ``cudaErrorIllegalAddress``."""

    def __init__(self, call: str, code: int, name: str) -> None:
        super().__init__(f"{call}: {name} ({code})")
        self.code = code
        self.name = name


class _Facts(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char * 256), ("uuid", ctypes.c_char * 64),
        ("driver", ctypes.c_int), ("runtime", ctypes.c_int), ("major", ctypes.c_int), ("minor", ctypes.c_int),
        ("units", ctypes.c_int), ("threads_per_unit", ctypes.c_int), ("threads_per_block", ctypes.c_int),
        ("registers_per_unit", ctypes.c_int),
        ("memory_bytes", ctypes.c_int64), ("l2_bytes", ctypes.c_int64), ("shared_per_unit", ctypes.c_int64),
        ("shared_per_block", ctypes.c_int64),
        ("clock_khz", ctypes.c_int), ("memory_clock_khz", ctypes.c_int), ("memory_bus_bits", ctypes.c_int),
    ]  # fmt: skip


class _Verdict(ctypes.Structure):
    _fields_ = [("max_error", ctypes.c_double), ("wrong", ctypes.c_int64), ("unwritten", ctypes.c_int64)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Kernel against reference: the largest error as a share of the tolerance, and how many elements are beyond it."""

    max_error: float
    wrong: int
    unwritten: int


class Probe:
    """One GPU, opened by one process. Not for several threads."""

    def __init__(self, library: Path, device: int = 0) -> None:
        self._library = ctypes.CDLL(str(library))
        self._library.probe_error.restype = ctypes.c_char_p
        facts = _Facts()
        code = self._library.probe_open(device, ctypes.byref(facts))
        self.facts: dict[str, int | str] = {}
        for name, *_ in _Facts._fields_:
            value = getattr(facts, name)
            self.facts[name] = value.decode(errors="replace") if isinstance(value, bytes) else value
        self.opened = code
        self.stream = 0

    def open_stream(self) -> int:
        """The process's stream, made at the first call; GpuError where the device could not be opened."""
        self._check("open", self.opened)
        if not self.stream:
            stream = ctypes.c_void_p()
            self._call("probe_stream", ctypes.byref(stream))
            self.stream = stream.value or 0
        return self.stream

    def use_subset(self, units: int) -> int:
        """Go on with a stream confined to at least that many multiprocessors; how many it has."""
        stream, got = ctypes.c_void_p(), ctypes.c_int()
        self._call("probe_subset", units, ctypes.byref(stream), ctypes.byref(got))
        self.stream = stream.value or 0
        return got.value

    def name_of(self, code: int) -> str:
        """The runtime's name of an error code."""
        return str(self._library.probe_error(code).decode(errors="replace"))

    def allocate(self, size: int) -> int:
        """Device memory; GpuError with OUT_OF_MEMORY when there is not enough."""
        memory = ctypes.c_void_p()
        self._call("probe_allocate", ctypes.byref(memory), ctypes.c_int64(size))
        return memory.value or 0

    def release(self, memory: int) -> None:
        """Give memory back."""
        self._call("probe_release", ctypes.c_void_p(memory))

    def finish(self) -> None:
        """Wait for the stream; any error of what ran on it is raised here."""
        self._call("probe_finish", ctypes.c_void_p(self.stream))

    def set_bytes(self, memory: int, byte: int, size: int) -> None:
        """Fill with one byte, in stream order."""
        self._call("probe_set", ctypes.c_void_p(memory), byte, ctypes.c_int64(size), ctypes.c_void_p(self.stream))

    def fill(self, memory: int, count: int, dtype: str, pattern: str, seed: int) -> None:
        """A fixed sequence of values, in stream order."""
        kind, values = TYPES[dtype], PATTERNS[pattern]
        at, stream = ctypes.c_void_p(memory), ctypes.c_void_p(self.stream)
        self._call("probe_fill", at, ctypes.c_int64(count), kind, values, ctypes.c_uint32(seed), stream)

    def compare(
        self, x: int, w: int, y: int, extents: tuple[int, int, int], strides: tuple[int, int], dtype: str, kn: bool
    ) -> Comparison:
        """Every element of Y (m, n) against a float64 sum; extents are (m, n, k), strides X's and Y's rows."""
        verdict = _Verdict()
        operands = [ctypes.c_void_p(address) for address in (x, w, y)]
        self._call(
            "probe_compare", *operands, *extents, *strides, TYPES[dtype], int(kn), ctypes.byref(verdict),
            ctypes.c_void_p(self.stream),
        )  # fmt: skip
        return Comparison(max_error=verdict.max_error, wrong=verdict.wrong, unwritten=verdict.unwritten)

    def changed_bytes(self, memory: int, size: int, byte: int, *, rows: int = 1, pitch: int = 0) -> int:
        """How many bytes are no longer ``byte`` in ``rows`` runs of ``size``, ``pitch`` bytes apart."""
        changed = ctypes.c_int64()
        at, stream = ctypes.c_void_p(memory), ctypes.c_void_p(self.stream)
        runs = (ctypes.c_int64(extent) for extent in (rows, size, pitch))
        self._call("probe_changed", at, *runs, byte, ctypes.byref(changed), stream)
        return changed.value

    @contextmanager
    def captured(self) -> Iterator[list[int]]:
        """Collects what is launched inside into a graph; the list holds it afterwards. Released by :meth:`drop`."""
        graph: list[int] = []
        self._call("probe_capture", ctypes.c_void_p(self.stream))
        made = ctypes.c_void_p()
        try:
            yield graph
        finally:  # a capture that stays open would poison everything after it
            code = self._library.probe_captured(ctypes.c_void_p(self.stream), ctypes.byref(made))
        self._check("probe_captured", code)
        graph.append(made.value or 0)

    def drop(self, graph: int) -> None:
        """Release a graph."""
        self._call("probe_release_graph", ctypes.c_void_p(graph))

    def replay_us(self, graph: int, samples: int) -> list[float]:
        """Microseconds of each of several replays, one after another."""
        times = (ctypes.c_float * samples)()
        self._call("probe_replay", ctypes.c_void_p(graph), ctypes.c_void_p(self.stream), samples, times)
        return list(times)

    def mark(self, which: int) -> None:
        """Record one of two events (0 or 1), in stream order."""
        self._call("probe_mark", ctypes.c_void_p(self.stream), which)

    def between_us(self) -> float:
        """Microseconds from mark 0 to mark 1; waits for it."""
        passed = ctypes.c_float()
        self._call("probe_between", ctypes.byref(passed))
        return passed.value

    def rates(self, function: str, *arguments: int, samples: int) -> list[float]:
        """Samples of one of the probe's ``*_peak`` functions."""
        found = (ctypes.c_float * samples)()
        stream = ctypes.c_void_p(self.stream)
        if function == "memory":
            kind, size = arguments
            self._call("probe_memory_peak", kind, ctypes.c_int64(size), samples, found, stream)
        elif function == "tensor":
            kind, rounds = arguments
            self._call("probe_tensor_peak", kind, samples, rounds, found, stream)
        else:
            self._call(f"probe_{function}_peak", samples, *arguments, found, stream)
        return list(found)

    def units_seen(self) -> int:
        """Distinct multiprocessors that the stream's blocks ran on."""
        units = ctypes.c_int()
        self._call("probe_units", ctypes.byref(units), ctypes.c_void_p(self.stream))
        return units.value

    def _call(self, function: str, *arguments: object) -> None:
        self._check(function, getattr(self._library, function)(*arguments))

    def _check(self, function: str, code: int) -> None:
        if code:
            raise GpuError(function, code, self.name_of(code))
