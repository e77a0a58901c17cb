"""A pack that a test serves on a CUDA device, in a process of its own whose driver is the stand-in (or a real one)."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np

import haotuner
from haotuner.ops.dtypes import DTYPES
from tests.runtime.cuda_memory import Device
from tests.runtime.cuda_packs import KN_PICKS, PICKS, Pick
from tests.standin.client import Driver

SEED = 5
EPS = {dtype.numpy: dtype.eps for dtype in DTYPES.values()}


class Served:
    """A pack on device 0 with its first op bound, and the numbers to judge it by."""

    def __init__(self, path: str, *, biased: bool = True, ordinal: int = 0) -> None:
        self.device = Device(ordinal)
        self.pack = haotuner.load(path, device=f"cuda:{ordinal}")
        (name,) = self.pack.ops
        self.pick: Pick = next(pick for pick in (*PICKS, *KN_PICKS) if pick.op == name)
        self.op = self.pack.op(name)
        self._before = dict(self.pack.stats()[name])
        draw = np.random.default_rng(SEED)
        self.weight = draw.standard_normal((self.op.n, self.op.k)).astype(self.pick.dtype)
        self.stored = np.ascontiguousarray(self.weight.T) if self.pick.op.endswith("_kn") else self.weight
        self.bias = draw.standard_normal(self.op.n).astype(self.pick.dtype)
        bias = self.device.upload(self.bias) if biased else None
        if not biased:
            self.bias = np.zeros_like(self.bias)
        self.linear = self.op.bind(self.device.upload(self.stored), bias)
        self.stream = self.device.stream()

    def rows(self, *shape: int) -> Any:
        """Inputs of a shape."""
        return np.random.default_rng(sum(shape)).standard_normal((*shape, self.op.k)).astype(self.pick.dtype)

    def out(self, *shape: int, **how: Any) -> Any:
        """An output for inputs of a shape."""
        return self.device.empty((*shape, self.op.n), self.pick.dtype, **how)

    def judge(self, y: Any, x: Any, what: object = "") -> None:
        """Within the rounding of the sum and of the result."""
        x64, w64 = x.astype(np.float64), self.weight.astype(np.float64)
        exact = x64 @ w64.T + self.bias.astype(np.float64)
        size = np.abs(x64) @ np.abs(w64).T + np.abs(self.bias.astype(np.float64))
        allowed = (self.op.k + 8) * 2.0**-24 * size + EPS[self.pick.dtype] * np.abs(exact)
        error = np.abs(self.device.download(y, self.pick.dtype).astype(np.float64) - exact)
        assert (error <= allowed).all(), f"{what}: {np.max(error / allowed):.3g} of the tolerance"

    def call(self, x: Any, y: Any) -> None:
        """On the stream, and until it is done."""
        self.linear(x, out=y, stream=self.stream)
        self.device.wait(self.stream)

    def stats(self) -> dict[str, int]:
        """Counters of the op since this was made; those of the library go on over all packs of a process."""
        return {name: count - self._before[name] for name, count in self.pack.stats()[self.op.name].items()}


def counts(driver: Driver) -> dict[str, int]:
    """Calls of each function since the last reset."""
    text = ctypes.create_string_buffer(1 << 14)
    driver.library.standin_counts(text, ctypes.c_size_t(len(text)))
    lines = (line.split() for line in text.value.decode().splitlines())
    return {name: int(count) for name, count in lines}
