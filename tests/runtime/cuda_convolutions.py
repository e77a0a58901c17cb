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

    def right(self, x: Any, expected: Any, placed: Any, what: object) -> None:
        y = self.device.upload(np.full(expected.shape, UNTOUCHED, self.dtype))
        self.served(placed, out=y, stream=self.stream)
        self.device.wait(self.stream)
        assert np.array_equal(self.device.download(y, self.dtype).astype(np.float64), expected), what


def convolutions(path: str) -> None:
    """Images of any size and strides, one without its axis b, a graph, and no image."""
    conv = Convolved(path)
    driver = Driver()
    for b, h, w in ((1, 1, 1), (2, 5, 7), (1, 16, 3), (3, 9, 9), (1, 20, 21)):
        if not conv.fits(h, w):
            continue
        x, expected = conv.image(b, h, w)
        conv.right(x, expected, conv.device.upload(x), (b, h, w))
        row = x.shape[-1] + 5
        strides = [row * int(np.prod(x.shape[axis + 1 : -1])) for axis in range(3)]
        conv.right(x, expected, conv.device.upload(x, strides=(*strides, 1)), (b, h, w, "rows apart"))
    x, expected = conv.image(1, 6, 6)
    y = conv.device.upload(np.full(expected[0].shape, UNTOUCHED, conv.dtype))
    driver.library.standin_counts_reset()
    conv.served(conv.device.upload(x[0]), out=y, stream=conv.stream)
    conv.device.wait(conv.stream)
    assert counts(driver)["cuLaunchKernel"] == (1 if conv.plain else 2)  # perhaps the layout of the columns; the products
    assert np.array_equal(conv.device.download(y, conv.dtype).astype(np.float64), expected[0])
    placed, out = conv.device.upload(x), conv.device.upload(np.full(expected.shape, UNTOUCHED, conv.dtype))
    conv.device.begin(conv.stream)
    conv.served(placed, out=out, stream=conv.stream)
    graph = conv.device.end(conv.stream)
    conv.device.replay(graph, conv.stream)
    conv.device.wait(conv.stream)
    assert np.array_equal(conv.device.download(out, conv.dtype).astype(np.float64), expected), "a graph"
    nothing = conv.device.empty((0, *x.shape[1:]), conv.dtype)
    conv.served(nothing, out=conv.device.empty((0, *expected.shape[1:]), conv.dtype), stream=conv.stream)


def convolution_refusals(path: str) -> None:
    """What cannot be is refused in words, before a launch."""
    conv = Convolved(path)
    x, expected = conv.image(2, 5, 5)
    placed, out = conv.device.upload(x), conv.device.upload(expected.astype(conv.dtype))
    other = "float32" if conv.dtype != "float32" else "float16"
    for wrong, kind, why in (
        (conv.device.upload(x[..., :-1].copy()), ValueError, "extent|images of|image of"),
        (conv.device.upload(x.astype(other)), TypeError, "x has dtype"),
        (conv.device.upload(x.reshape(-1)), ValueError, "x has rank 1"),
        (x.astype("float32"), ValueError, "lives on the CPU"),
    ):
        with pytest.raises(kind, match=why):
            conv.served(wrong, out=out, stream=conv.stream)
    p, q = expected.shape[1:3] if conv.last else expected.shape[2:]
    with pytest.raises(ValueError, match=f"expected 2 of {p} x {q}"):
        conv.served(placed, out=conv.device.upload(expected[:1].astype(conv.dtype)), stream=conv.stream)
    if conv.plain:
        conv.served(placed, out=out, stream=conv.device.stream())
    else:
        with pytest.raises(RuntimeError, match=r"call prepare\(stream\)"):
            conv.served(placed, out=out, stream=conv.device.stream())
    if conv.meaning["c"] == conv.meaning["f"]:
        with pytest.raises(ValueError, match="out shares memory with x"):
            conv.served(placed, out=placed, stream=conv.stream)
    with pytest.raises(ValueError, match="weight must be contiguous"):
        conv.op.bind(conv.device.upload(conv.weight[:1]), conv.placed[1])
    conv.pack.close()
    with pytest.raises(PackClosed):
        conv.served(placed, out=out, stream=conv.stream)
