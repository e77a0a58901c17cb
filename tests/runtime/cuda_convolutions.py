"""Convolutions served on a CUDA device. Scenarios of cuda_scenarios.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed
from haotuner.ops.convolution import windows
from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.weights import weight_shape
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.cuda_memory import Device
from tests.runtime.cuda_served import counts
from tests.standin.client import Driver

UNTOUCHED = -7.0


class Convolved:
    """A convolution on device 0. Drawn numbers are small and whole: every sum of them is exact in any type."""

    def __init__(self, path: str) -> None:
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        (name,) = self.pack.ops
        self.meaning = Op.parse(name)
        self.dtype = DTYPES[self.meaning.dtype].numpy
        self.op, self.stream = self.pack.op(name), self.device.stream()
        self.weight = self.drawn(*weight_shape(self.meaning))
        self.bias = self.drawn(self.meaning["f"], seed=1)
        self.placed = self.device.upload(self.weight), self.device.upload(self.bias)
        self.served = self.op.bind(*self.placed)
        self.served.prepare(self.stream)
        self.last = self.meaning.all_options()["layout"] == "nhwc"
        # Windows of one tap, channels last: contiguous images are multiplied as they lie.
        self.plain = self.last and self.meaning["r"] * self.meaning["s"] == 1

    def drawn(self, *shape: int, seed: int = 0) -> Any:
        return np.random.default_rng(seed).integers(-3, 4, shape).astype(self.dtype)

    def fits(self, h: int, w: int) -> bool:
        """Whether a window fits into an image with its pads."""
        sides = windows(self.meaning.kind, dict(self.meaning.static), self.meaning.all_options())
        return bool(sides["h"].out(h) > 0 and sides["w"].out(w) > 0)

    def image(self, b: int, h: int, w: int) -> tuple[Any, Any]:
        """An image, and what it becomes with the bias and a relu behind it."""
        shape = Shape.of({"b": b, "h": h, "w": w})
        x = self.drawn(*self.meaning.operand_shape(self.meaning.meaning.operands[0], shape), seed=h * w)
        options = self.meaning.all_options()
        wide = {"x": x.astype(np.float64), "weight": self.weight.astype(np.float64)}
        if self.last:
            wide["x"] = wide["x"].transpose(0, 3, 1, 2)
        y = self.meaning.meaning.result(wide, options) + self.bias.astype(np.float64)[:, None, None]
        y = np.maximum(y, 0) if self.meaning.epilogue else y
        return x, np.ascontiguousarray(y.transpose(0, 2, 3, 1)) if self.last else y

    def right(self, x: Any, want: Any, placed: Any, what: object) -> None:
        y = self.device.upload(np.full(want.shape, UNTOUCHED, self.dtype))
        self.served(placed, out=y, stream=self.stream)
        self.device.wait(self.stream)
        assert np.array_equal(self.device.download(y, self.dtype).astype(np.float64), want), what


def convolutions(path: str) -> None:
    """Images of any size and strides, one without its axis b, a graph, and no image."""
    one = Convolved(path)
    driver = Driver()
    for b, h, w in ((1, 1, 1), (2, 5, 7), (1, 16, 3), (3, 9, 9), (1, 20, 21)):
        if not one.fits(h, w):
            continue
        x, want = one.image(b, h, w)
        one.right(x, want, one.device.upload(x), (b, h, w))
        row = x.shape[-1] + 5
        strides = [row * int(np.prod(x.shape[axis + 1 : -1])) for axis in range(3)]
        one.right(x, want, one.device.upload(x, strides=(*strides, 1)), (b, h, w, "rows apart"))
    x, want = one.image(1, 6, 6)
    y = one.device.upload(np.full(want[0].shape, UNTOUCHED, one.dtype))
    driver.library.standin_counts_reset()
    one.served(one.device.upload(x[0]), out=y, stream=one.stream)
    one.device.wait(one.stream)
    assert counts(driver)["cuLaunchKernel"] == (1 if one.plain else 2)  # perhaps the layout of the columns; the products
    assert np.array_equal(one.device.download(y, one.dtype).astype(np.float64), want[0])
    placed, out = one.device.upload(x), one.device.upload(np.full(want.shape, UNTOUCHED, one.dtype))
    one.device.begin(one.stream)
    one.served(placed, out=out, stream=one.stream)
    graph = one.device.end(one.stream)
    one.device.replay(graph, one.stream)
    one.device.wait(one.stream)
    assert np.array_equal(one.device.download(out, one.dtype).astype(np.float64), want), "a graph"
    nothing = one.device.empty((0, *x.shape[1:]), one.dtype)
    one.served(nothing, out=one.device.empty((0, *want.shape[1:]), one.dtype), stream=one.stream)


def convolution_refusals(path: str) -> None:
    """What cannot be is refused in words, before a launch."""
    one = Convolved(path)
    x, want = one.image(2, 5, 5)
    placed, out = one.device.upload(x), one.device.upload(want.astype(one.dtype))
    other = "float32" if one.dtype != "float32" else "float16"
    for wrong, kind, why in (
        (one.device.upload(x[..., :-1].copy()), ValueError, "extent|images of|image of"),
        (one.device.upload(x.astype(other)), TypeError, "x has dtype"),
        (one.device.upload(x.reshape(-1)), ValueError, "x has rank 1"),
        (x.astype("float32"), ValueError, "lives on the CPU"),
    ):
        with pytest.raises(kind, match=why):
            one.served(wrong, out=out, stream=one.stream)
    p, q = want.shape[1:3] if one.last else want.shape[2:]
    with pytest.raises(ValueError, match=f"expected 2 of {p} x {q}"):
        one.served(placed, out=one.device.upload(want[:1].astype(one.dtype)), stream=one.stream)
    if one.plain:
        one.served(placed, out=out, stream=one.device.stream())
    else:
        with pytest.raises(RuntimeError, match=r"call prepare\(stream\)"):
            one.served(placed, out=out, stream=one.device.stream())
    if one.meaning["c"] == one.meaning["f"]:
        with pytest.raises(ValueError, match="out shares memory with x"):
            one.served(placed, out=placed, stream=one.stream)
    with pytest.raises(ValueError, match="weight must be contiguous"):
        one.op.bind(one.device.upload(one.weight[:1]), one.placed[1])
    one.pack.close()
    with pytest.raises(PackClosed):
        one.served(placed, out=out, stream=one.stream)
