"""Products of a call's own factors, side by side, served on a CUDA device. Scenarios of cuda_scenarios.py."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest

import haotuner
from haotuner.errors import PackClosed
from haotuner.ops.dtypes import DTYPES
from haotuner.words.op import Op
from tests.serving.cuda_memory import Device
from tests.serving.cuda_served import counts
from tests.standin.client import Driver

UNTOUCHED = -7.0
MOST_MATRICES = 65535  # of one launch


class Products:
    """A batch_matmul on device 0. Drawn numbers are small and whole: every sum of them is exact in any type."""

    def __init__(self, path: str) -> None:
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        (name,) = self.pack.ops
        self.op, named = self.pack.op(name), Op.parse(name)
        self.across = named.option("layout") == "nt"
        self.k = dict(named.static).get("k", 0)
        self.dtype = DTYPES[named.dtype].numpy
        self.stream = self.device.stream()

    def drawn(self, *shape: int, seed: int = 0) -> Any:
        return np.random.default_rng(seed).integers(-3, 4, shape).astype(self.dtype)

    def factor(self, batch: tuple[int, ...], n: int, k: int) -> Any:
        """w as it is stored."""
        return self.drawn(*batch, *((n, k) if self.across else (k, n)), seed=1)

    def exact(self, x: Any, w: Any) -> Any:
        """In the type of the result, which holds these numbers."""
        wide = w.astype(np.float64)
        return x.astype(np.float64) @ (wide.swapaxes(-1, -2) if self.across else wide)

    def placed(self, values: Any, gap: int = 0) -> Any:
        """On the device, with a gap behind each row."""
        row = values.shape[-1] + gap
        strides = [row * int(np.prod(values.shape[axis + 1 : -1])) for axis in range(values.ndim - 1)]
        return self.device.upload(values, strides=(*strides, 1))

    def run(self, x: Any, w: Any, y: Any) -> None:
        self.op.run(x, w, out=y, stream=self.stream)
        self.device.wait(self.stream)

    def right(self, x: Any, w: Any, what: object, gap: int = 0, ends: tuple[int, ...] = ()) -> None:
        """A call on compact factors, or with gaps behind rows."""
        want = self.exact(x, w)
        y = self.placed(np.full(want.shape, UNTOUCHED, self.dtype), gap)
        self.run(self.placed(x, gap), self.placed(w, gap), y)
        assert np.array_equal(self.device.download(y, self.dtype).astype(np.float64), want), what


def products(path: str) -> None:
    """Any extents, batches that are broadcast, rows and matrices at strides, heads, nothing at all, and a graph."""
    served = Products(path)
    driver, k = Driver(), served.k or 13
    for b, m, n in ((1, 1, 1), (3, 7, 7), (2, 33, 70), (5, 70, 20), (1, 40, 40)):
        for terms in {k, served.k or 40}:
            served.right(served.drawn(b, m, terms), served.factor((b,), n, terms), (b, m, n, terms))
            served.right(served.drawn(b, m, terms), served.factor((b,), n, terms), (b, m, n, terms, "gaps"), gap=8)
    for x_batch, w_batch in (((2, 3), (2, 3)), ((2, 3), (3,)), ((), (4,)), ((2, 1, 3), (5, 1)), ((), ()), ((1, 4), (2, 4))):
        served.right(served.drawn(*x_batch, 5, k), served.factor(w_batch, 6, k), (x_batch, w_batch))
    assert served.pack.stats()[served.op.name]["fallbacks"] == 0
    b, t, h = 2, 9, 3  # heads: slices of one tensor, and one launch
    q, other = served.drawn(b, t, h, k), served.drawn(b, t, h, k, seed=1)
    heads = (t * h * k, k, h * k, 1)
    x = served.device.empty((b, h, t, k), served.dtype, strides=heads)
    served.device.put(x, q.transpose(0, 2, 1, 3))
    w = other.transpose(0, 2, 1, 3) if served.across else served.factor((b, h), 6, k)
    placed = served.device.empty((b, h, t, k), served.dtype, strides=heads) if served.across else served.placed(w)
    if served.across:
        served.device.put(placed, w)
    want = served.exact(q.transpose(0, 2, 1, 3), w)
    y = served.device.upload(np.full(want.shape, UNTOUCHED, served.dtype))
    driver.library.standin_counts_reset()
    served.run(x, placed, y)
    assert counts(driver)["cuLaunchKernel"] == 1
    assert np.array_equal(served.device.download(y, served.dtype).astype(np.float64), want), "heads"
    driver.library.standin_counts_reset()
    for batch, m, n in (((0,), 3, 3), ((2,), 0, 5), ((2,), 5, 0)):
        empty = [
            served.device.empty(shape, served.dtype)
            for shape in ((*batch, m, k), served.factor(batch, n, k).shape, (*batch, m, n))
        ]
        served.run(*empty)
    assert counts(driver).get("cuLaunchKernel", 0) == 0
    if not served.k:  # no terms: zeros
        served.right(served.drawn(2, 3, 0), served.factor((2,), 4, 0), "k = 0")
    many = MOST_MATRICES + 2
    tail = served.factor((), 1, k).shape
    x = served.device.empty((many, 1, k), served.dtype, strides=(0, k, 1))
    w = served.device.empty((many, *tail), served.dtype, strides=(0, tail[-1], 1))
    y = served.device.empty((many, 1, 1), served.dtype)
    driver.library.standin_counts_reset()
    served.device.begin(served.stream)
    served.op.run(x, w, out=y, stream=served.stream)
    served.device.end(served.stream)  # never replayed: it is many blocks
    assert counts(driver)["cuLaunchKernel"] == 2, "more matrices than the grid's third axis has"
    graphs(served, k)


def graphs(served: Products, k: int) -> None:
    """A captured call replays with what its factors hold then, also after the pack was closed."""
    x, w = served.drawn(2, 20, k), served.factor((2,), 18, k)
    placed = served.device.upload(x), served.device.upload(w)
    y = served.device.upload(np.full((2, 20, 18), UNTOUCHED, served.dtype))
    served.device.begin(served.stream)
    served.op.run(*placed, out=y, stream=served.stream)
    graph = served.device.end(served.stream)
    again = served.drawn(2, 20, k, seed=5)
    served.device.put(placed[0], again)
    served.pack.close()
    served.device.replay(graph, served.stream)
    assert np.array_equal(served.device.download(y, served.dtype).astype(np.float64), served.exact(again, w)), "replayed"
    with pytest.raises(PackClosed, match="load the pack again"):
        served.op.run(*placed, out=y, stream=served.stream)


def product_refusals(path: str) -> None:
    """What is wrong with a factor is said by name, in the words of the CPU where it has them; the next call is right."""
    served = Products(path)
    k = served.k or 16
    x, w = served.drawn(2, 5, k), served.factor((2,), 6, k)
    good = [served.device.upload(x), served.device.upload(w), served.device.empty((2, 5, 6), served.dtype)]
    deep = served.drawn(2, 5, k + 8)
    for place, wrong, kind, words in (
        (0, np.zeros((2, 5, k), np.float32), ValueError, "x lives on the CPU"),
        (0, served.device.upload(deep), ValueError, f"w has extent {k} on axis k, x has {k + 8}; they must be equal"),
        (1, served.device.empty(w.shape, "int32"), TypeError, "w has dtype code 0 with 32 bits"),
        (1, served.device.upload(served.factor((3,), 6, k)), ValueError, "x has 2 matrices in axis 3 from .* w has 3"),
        (0, served.device.empty((2, 5, k), served.dtype, strides=(10 * k, 2 * k, 2)), ValueError, "x has inner stride 2"),
        (2, served.device.empty((2, 5, 7), served.dtype), ValueError, "y has extent 7 on axis n, w has 6"),
        (2, served.device.empty((2, 5, 6), served.dtype, strides=(30, 0, 1)), ValueError, "y"),
        (2, good[0], ValueError, "y"),
        (0, [1.0], TypeError, "x is a list; pass a tensor of the pack's device"),
    ):  # fmt: skip
        given = [*good]
        given[place] = wrong
        with pytest.raises(kind, match=words) as raised:
            served.op.run(*given[:2], out=given[2], stream=served.stream)
        assert str(raised.value).startswith(f"{served.op.name}: "), str(raised.value)
    with pytest.raises(ValueError, match="scale is not added on a device: add it to the result"):
        served.op.run(*good[:2], out=good[2], stream=served.stream, scale=0.5)
    with pytest.raises(TypeError, match="more is no operand"):
        served.op.run(*good[:2], out=good[2], stream=served.stream, more=1)
    with pytest.raises(ValueError, match=r"batches \(2,\) of x and \(3,\) of w do not go together"):
        served.op.run(good[0], served.device.upload(served.factor((3,), 6, k)), stream=served.stream)
    served.right(x, w, "after the refusals")
    before = served.pack.stats()[served.op.name]["fallbacks"]
    if len(served.op.entry.kernels) > 1:  # off the wide loads of the planned kernel another one serves
        skewed = served.device.upload(x, skip=1)
        served.run(skewed, good[1], good[2])
        found = served.device.download(good[2], served.dtype).astype(np.float64)
        assert np.array_equal(found, served.exact(x, w)) and served.pack.stats()[served.op.name]["fallbacks"] == before + 1
