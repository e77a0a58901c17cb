"""A small host of the product's kind: dense products by the launch contract, on streams, with a workspace for split k."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.standin.client import Arguments, Driver, DriverError

NON_BLOCKING = 1
MAX_DYNAMIC = 8  # CUfunction_attribute
PLAIN = ("dense_bm16_bn16", 16, 16)
WIDE = ("dense_bm64_bn32", 64, 32)


@dataclass(slots=True)
class Problem:
    """Y = X W^T of seeded numbers, on the device."""

    m: int
    n: int
    k: int
    x: np.ndarray[Any, Any] = field(init=False)
    w: np.ndarray[Any, Any] = field(init=False)
    at: dict[str, int] = field(default_factory=dict)  # addresses of x, w, y, partial

    def __post_init__(self) -> None:
        random = np.random.default_rng(self.m * 1000 + self.k)
        self.x = random.standard_normal((self.m, self.k)).astype(np.float32)
        self.w = random.standard_normal((self.n, self.k)).astype(np.float32)

    def upload(self, driver: Driver, splits: int = 1) -> Problem:
        """Operands and room for the results, in memory of the current context."""
        self.at["x"], self.at["w"] = driver.upload(self.x), driver.upload(self.w)
        self.at["y"] = driver.new("cuMemAlloc", 4 * self.m * self.n)
        self.at["partial"] = driver.new("cuMemAlloc", 4 * self.m * self.n * splits) if splits > 1 else 0
        driver.need("cuCtxSynchronize")
        return self

    def arguments(self, splits: int = 1) -> Arguments:
        """As every kernel takes them."""
        at = self.at
        return Arguments(
            at["x"], at["w"], 0, 0, at["y"], at["partial"] if splits > 1 else 0,
            self.m, self.n, self.k, self.k, self.n, splits, 0, 0,
        )  # fmt: skip

    def check(self, driver: Driver) -> None:
        """AssertionError unless Y on the device is right."""
        output = driver.download(self.at["y"], np.empty((self.m, self.n), np.float32))
        np.testing.assert_allclose(output, self.x @ self.w.T, rtol=1e-4, atol=1e-4)


class Host:
    """A driver, its context current, and the kernels of one cubin."""

    def __init__(self, cubin: Path, device: int = 0) -> None:
        self.driver = Driver()
        self.context = self.driver.open(device)
        self.module = self.driver.new("cuModuleLoadData", cubin.read_bytes())
        self._kernels: dict[str, int] = {}

    def kernel(self, name: str) -> int:
        """A function of the module, asked for once."""
        if name not in self._kernels:
            self._kernels[name] = self.driver.new("cuModuleGetFunction", self.module, name.encode())
        return self._kernels[name]

    def stream(self) -> int:
        """A new stream that does not wait for the legacy one."""
        return self.driver.new("cuStreamCreate", NON_BLOCKING)

    def launch(
        self, problem: Problem, stream: int, *, splits: int = 1, kernel: Any = PLAIN, shared: int = 0, maps: Any = ()
    ) -> None:
        """One product, and its reduction where k is split; DriverError when a launch is refused."""
        self.send(problem.arguments(splits), stream, kernel=kernel, shared=shared, maps=maps)

    def send(
        self, arguments: Arguments, stream: int, *, kernel: Any = PLAIN, shared: int = 0, maps: Any = (), grid: int = 0
    ) -> None:
        """The launches of one argument block."""
        name, rows, columns = kernel
        tiles = grid or -(-arguments.m // rows) * -(-arguments.n // columns)
        self.must(name, [arguments, *maps], stream, (tiles, arguments.splits, 1), 128, shared)
        if arguments.splits > 1:
            self.must("haotuner_reduce_fp32", [arguments], stream, (2, 1, 1), 256, 0)

    def must(self, name: str, parameters: list[Any], stream: int, grid: Any, block: int, shared: int) -> None:
        """A launch that is not refused."""
        code = self.driver.launch(self.kernel(name), parameters, grid=grid, block=block, shared=shared, stream=stream)
        if code:
            raise DriverError(f"cuLaunchKernel of {name} answered {code}")

    def tensor_map(self, address: int, rows: int, columns: int) -> Any:
        """A tensor map over a row-major fp32 operand."""
        room = _Map()
        extents, pitches = (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(columns * 4)
        boxes, steps = (ctypes.c_uint32 * 2)(32, 16), (ctypes.c_uint32 * 2)(1, 1)
        at = room.aligned()
        self.driver.need("cuTensorMapEncodeTiled", at, 7, 2, address, extents, pitches, boxes, steps, 0, 3, 2, 0)
        return (ctypes.c_byte * 128).from_address(at), room


class _Map(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_byte * 256)]

    def aligned(self) -> int:
        """The first address in it that a tensor map may have."""
        return (ctypes.addressof(self) + 63) // 64 * 64
