"""Generated programs served on a CUDA device. Scenarios of cuda_scenarios.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner import judge
from haotuner.errors import PackClosed, UsageError
from haotuner.ops.dtypes import DTYPES
from haotuner.words.op import Op
from haotuner.words.shape import Shape
from tests.serving.cuda_memory import Capsule, Device
from tests.serving.cuda_served import counts
from tests.standin.client import Driver

UNTOUCHED = -7.0


class Generated:
    """An op on device 0."""

    def __init__(self, path: str) -> None:
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        (name,) = self.pack.ops
        self.dtype = DTYPES[Op.parse(name).dtype].numpy
        self.meaning, self.op, self.stream = Op.parse(name), self.pack.op(name), self.device.stream()

    def drawn(self, m: int, n: int) -> dict[str, Any]:
        return judge.draw(self.meaning, Shape.of(m=m, n=n), np.random.default_rng(m * n))

    def out(self, m: int, n: int, gap: int = 0) -> Any:
        return self.device.upload(np.full((m, n), UNTOUCHED, self.dtype), strides=(n + gap, 1))

    def judged(self, inputs: dict[str, Any], y: Any, what: object) -> None:
        self.device.wait(self.stream)
        verdict = judge.check(self.meaning, inputs, self.device.download(y, self.dtype))
        assert not verdict.wrong, f"{what}: {verdict}"


def generated(path: str) -> None:
    """Short rows and long ones, rows apart, a graph, operands by name, and no row; one launch a call."""
    one, driver = Generated(path), Driver()
    for m, n in ((1, 1), (3, 5), (40, 16), (2, 17), (5, 200), (3, 300), (130, 9)):
        inputs = one.drawn(m, n)
        for gap in (0, 3):
            placed = [one.device.upload(v, strides=(n + gap, 1) if v.ndim == 2 else None) for v in inputs.values()]
            y = one.out(m, n, gap)
            driver.library.standin_counts_reset()
            one.op.run(*placed, out=y, stream=one.stream)
            assert counts(driver)["cuLaunchKernel"] == 1
            one.judged(inputs, y, (m, n, gap))
    for m, n in ((3, 5), (7, 300)):  # the output is x itself
        inputs = one.drawn(m, n)
        x, *rest = (one.device.upload(value) for value in inputs.values())
        one.op.run(x, *rest, out=x, stream=one.stream)
        one.judged(inputs, x, (m, n, "in place"))
    inputs = one.drawn(6, 40)
    named, y = {name: one.device.upload(value) for name, value in inputs.items()}, one.out(6, 40)
    one.device.begin(one.stream)
    one.op.run(**named, out=y, stream=one.stream)
    graph = one.device.end(one.stream)
    one.device.replay(graph, one.stream)
    one.judged(inputs, y, "a graph")
    empty = one.device.empty((0, 40), one.dtype)
    one.op.run(empty, *list(named.values())[1:], out=one.device.empty((0, 40), one.dtype), stream=one.stream)
    assert one.pack.stats()[one.op.name]["calls"] >= 14


def generated_refusals(path: str) -> None:
    """What cannot be is refused in words, before a launch."""
    one = Generated(path)
    inputs = one.drawn(4, 12)
    x, *rest = (one.device.upload(value) for value in inputs.values())
    out = one.out(4, 12)
    for wrong, kind, why in (
        (inputs["x"].astype(np.float32), ValueError, "does not live on a CUDA device"),
        (one.device.upload(inputs["x"].astype(np.float16)), TypeError, "dtype"),
        (one.device.upload(inputs["x"][:3].copy()), ValueError, "they must be equal"),
        (7, TypeError, "x is a int"),
    ):
        with pytest.raises(kind, match=why):
            one.op.run(wrong, *rest, out=out, stream=one.stream)
    behind = tvm_ffi.from_dlpack(Capsule(x.data_ptr() + 12 * np.dtype(one.dtype).itemsize, (4, 12), one.dtype, 0))
    with pytest.raises(ValueError, match="shares memory with x without being that very tensor"):
        one.op.run(x, *rest, out=behind, stream=one.stream)
    with pytest.raises(TypeError, match="takes x"):
        one.op.run(x, *rest, x, out=out, stream=one.stream)
    with pytest.raises(UsageError, match="no thread counts"):
        one.op.with_threads(2)
    one.pack.close()
    with pytest.raises(PackClosed):
        one.op.run(x, *rest, out=out, stream=one.stream)
