"""What a behaviour of the driver is tried with."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.standin.client import Driver

N = 1000  # floats of the usual buffer


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A driver not yet initialised, and cubins of ``driver_kernels.cu`` for its device and for another."""

    driver: Driver
    kind: str  # late, early or real
    cubin: bytes
    wrong: bytes

    @property
    def rounds(self) -> int:
        """Of ``slow_copy``: on silicon some 50 ms; the stand-in is late by itself."""
        return 20_000_000 if self.kind == "real" else 1

    def fill(self, address: int, value: float, *, stream: int = 0, n: int = N) -> int:
        """Launch ``fill``; the CUresult."""
        parameters = [ctypes.c_uint64(address), ctypes.c_int(n), ctypes.c_float(value)]
        return self.driver.launch(self.kernel("fill"), parameters, grid=-(-n // 128), block=128, stream=stream)

    def slow_copy(self, source: int, target: int, *, stream: int = 0) -> None:
        """Launch ``slow_copy`` of N floats."""
        parameters = [ctypes.c_uint64(source), ctypes.c_uint64(target), ctypes.c_int(N), ctypes.c_int(self.rounds)]
        assert self.driver.launch(self.kernel("slow_copy"), parameters, grid=8, block=128, stream=stream) == 0

    def add_one(self, address: int, *, stream: int = 0) -> int:
        """Launch ``add_one`` over N floats; the CUresult."""
        parameters = [ctypes.c_uint64(address), ctypes.c_int(N)]
        return self.driver.launch(self.kernel("add_one"), parameters, grid=8, block=128, stream=stream)

    def kernel(self, name: str) -> int:
        """A kernel of the suite, its module loaded once a process."""
        if name not in _KERNELS:
            _KERNELS[name] = self.driver.function(self.cubin, name)
        return _KERNELS[name]

    def prepare(self, *names: str) -> None:
        """Load kernels now: not inside a capture."""
        for name in names:
            self.kernel(name)

    def floats(self, value: float = 0.0) -> int:
        """Device memory of N floats."""
        return self.driver.upload(np.full(N, value, np.float32))

    def read(self, address: int) -> np.ndarray[Any, Any]:
        """N floats from the device."""
        return self.driver.download(address, np.empty(N, np.float32))


_KERNELS: dict[str, int] = {}  # of one behaviour's process
