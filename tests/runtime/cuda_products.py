"""Products of a call's own factors, side by side, served on a CUDA device. Scenarios of cuda_scenarios.py."""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.errors import PackClosed
from haotuner.ops.dtypes import DTYPES
from haotuner.ops.products import finished
from haotuner.spec.op import Op
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_served import counts
from tests.standin.client import Driver

UNTOUCHED = -7.0
MOST_MATRICES = 65535  # of one launch
FAR = 1 << 45  # an address apart from all that is allocated


class Products:
    """A batch_matmul on a device. Drawn numbers are small and whole: every sum of them is exact in any type."""

    def __init__(self, path: str, ordinal: int = 0) -> None:
        self.device, self.pack = Device(ordinal), haotuner.load(path, device=f"cuda:{ordinal}")
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
        expected = self.exact(x, w)
        y = self.placed(np.full(expected.shape, UNTOUCHED, self.dtype), gap)
        self.run(self.placed(x, gap), self.placed(w, gap), y)
        assert np.array_equal(self.device.download(y, self.dtype).astype(np.float64), expected), what


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
    expected = served.exact(q.transpose(0, 2, 1, 3), w)
    y = served.device.upload(np.full(expected.shape, UNTOUCHED, served.dtype))
    driver.library.standin_counts_reset()
    served.run(x, placed, y)
    assert counts(driver)["cuLaunchKernel"] == 1
    assert np.array_equal(served.device.download(y, served.dtype).astype(np.float64), expected), "heads"
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


def turned(path: str) -> None:
    """x as (k, m): any extents and strides of its rows, a batch of it that is broadcast, and a mask beside."""
    served = Products(path)
    device = served.device
    for b, m, n, k in ((1, 1, 1, 1), (3, 7, 7, 13), (2, 33, 70, 40), (5, 70, 20, 5)):
        x, w, mask = served.drawn(1, k, m), served.drawn(b, k, n, seed=1), served.drawn(m, 1, seed=2)
        expected = served.exact(x.swapaxes(-1, -2), w)
        for gap in (0, 5):
            y = served.placed(np.full(expected.shape, UNTOUCHED, served.dtype), gap)
            served.op.run(
                served.placed(x, gap), served.placed(w, gap), out=y, stream=served.stream, mask=device.upload(mask)
            )
            device.wait(served.stream)
            assert np.array_equal(device.download(y, served.dtype).astype(np.float64), expected + mask), (b, m, n, k, gap)
    skewed = device.empty((2, 5, 6), served.dtype, strides=(100, 12, 2))
    with pytest.raises(ValueError, match=f"^{served.op.name}: x has inner stride 2"):
        served.op.run(skewed, device.empty((2, 5, 3), served.dtype), out=device.empty((2, 6, 3), served.dtype), stream=0)


def products_beside(path: str) -> None:
    """Scale, bias and mask in the launch of the products: for each matrix or for all, broadcast along any axis."""
    served = Products(path)
    device, k, driver = served.device, served.k or 13, Driver()
    for b, m, n in (((2, 3), 33, 72), ((4,), 7, 7), ((2,), 9, 1), ((), 40, 20)):
        x, w = served.drawn(*b, m, k), served.factor(b, n, k)
        bias, shapes = served.drawn(n, seed=2), {(*b, m, n), (m, n), (*b, 1, n), (m, 1), (n,)}
        masks = [served.drawn(*shape, seed=3) for shape in shapes]
        each = np.exp2(np.arange(int(np.prod(b)), dtype=np.float32) % 3 - 1).reshape(b)
        scales = [0.5, each if b else 2.0]
        calls = [{"mask": mask, "scale": scale} for mask, scale in zip(masks, scales * len(masks), strict=False)]
        for operands in ({"bias": bias}, {"scale": 0.25}, {"bias": bias, "mask": masks[0], "scale": scales[-1]}, *calls):
            expected = finished(served.exact(x, w), **operands)
            y = served.placed(np.full(expected.shape, UNTOUCHED, served.dtype))
            placed = {name: value if np.ndim(value) == 0 else device.upload(value) for name, value in operands.items()}
            driver.library.standin_counts_reset()
            served.op.run(served.placed(x), served.placed(w), out=y, stream=served.stream, **placed)
            assert counts(driver)["cuLaunchKernel"] == 1
            device.wait(served.stream)
            eps = DTYPES[Op.parse(served.op.name).dtype].eps
            error = np.abs(device.download(y, served.dtype).astype(np.float64) - expected)
            assert (error <= eps * np.abs(expected)).all(), (b, m, n, list(operands), error.max())
    number, y = np.array(0.25, np.float32), served.placed(np.full((5, 6), UNTOUCHED, served.dtype))
    x, w = served.drawn(5, k), served.factor((), 6, k)
    served.op.run(served.placed(x), served.placed(w), out=y, stream=served.stream, scale=number)
    number[()] = 64  # after the call: the launch, which may still be waiting, has it as it was
    device.wait(served.stream)
    assert np.array_equal(device.download(y, served.dtype).astype(np.float64), finished(served.exact(x, w), scale=0.25))


def products_elsewhere(path: str) -> None:
    """On the second device: a number as scale comes from the host, all else must lie where x does."""
    served, other = Products(path, ordinal=1), Device()
    device, k = served.device, served.k or 13
    x, w = served.drawn(2, 5, k), served.factor((2,), 6, k)
    bias, mask, each = served.drawn(6, seed=2), served.drawn(5, 6, seed=3), np.array([0.5, 2.0], np.float32)
    factors = device.upload(x), device.upload(w)
    for operands in ({"scale": 0.5}, {"scale": 0.25, "bias": bias, "mask": mask}, {"scale": each, "mask": mask}):
        expected = finished(served.exact(x, w), **operands)
        y = device.upload(np.full(expected.shape, UNTOUCHED, served.dtype))
        placed = {name: value if np.ndim(value) == 0 else device.upload(value) for name, value in operands.items()}
        served.op.run(*factors, out=y, stream=served.stream, **placed)
        device.wait(served.stream)
        assert np.array_equal(device.download(y, served.dtype).astype(np.float64), expected), list(operands)
    for name, value in (("scale", each), ("bias", bias), ("mask", mask)):
        y = device.empty((2, 5, 6), served.dtype)
        with pytest.raises(ValueError, match=f"{name} lives on cuda:0, x on cuda:1: copy it there"):
            served.op.run(*factors, out=y, stream=served.stream, **{name: other.upload(value)})


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
    for index, wrong, kind, words in (
        (0, np.zeros((2, 5, k), np.float32), ValueError, "x lives on the CPU"),
        (0, served.device.upload(deep), ValueError, f"w has extent {k} on axis k, x has {k + 8}; they must be equal"),
        (1, served.device.empty(w.shape, "int32"), TypeError, "w has dtype code 0 with 32 bits"),
        (1, served.device.upload(served.factor((3,), 6, k)), ValueError, "x has 2 matrices in axis 3 from .* w has 3"),
        (0, served.device.empty((2, 5, k), served.dtype, strides=(10 * k, 2 * k, 2)), ValueError, "x has inner stride 2"),
        (2, served.device.empty((2, 5, 7), served.dtype), ValueError, "out has extent 7 on axis n, w has 6"),
        (2, served.device.empty((2, 5, 6), served.dtype, strides=(30, 0, 1)), ValueError, "out"),
        (2, good[0], ValueError, "out"),
        (0, [1.0], TypeError, "x is a list; pass a tensor of the pack's device"),
    ):  # fmt: skip
        operands = [*good]
        operands[index] = wrong
        with pytest.raises(kind, match=words) as raised:
            served.op.run(*operands[:2], out=operands[2], stream=served.stream)
        assert str(raised.value).startswith(f"{served.op.name}: "), str(raised.value)
    empty, dtype = served.device.empty, served.dtype
    for name, wrong, kind, words in (
        ("bias", empty((7,), dtype), ValueError, "bias has extent 7 in axis 0, where the output has 6"),
        ("bias", empty((1,), dtype), ValueError, "bias has the stride 0; expected 6 elements side by side"),
        ("bias", np.zeros(6, np.float32), ValueError, "bias lives on the CPU"),
        ("scale", empty((3,), "float32"), ValueError, "scale has extent 3 in axis 0, where the output has 2"),
        ("scale", empty((2,), "int32"), TypeError, "scale has dtype code 0 .* expected float32"),
        ("scale", np.zeros(2, np.float32), ValueError, "scale lives on the CPU"),
        ("scale", np.zeros((1,) * 9, np.float32), ValueError, "scale has rank 9, over the"),
        ("mask", empty((2, 4, 6), dtype), ValueError, "mask has extent 4 in axis 1, where the output has 5"),
        ("mask", empty((5, 6), "int32"), TypeError, "mask has dtype"),
        ("mask", np.zeros((1, 1), np.float32), ValueError, "mask lives on the CPU"),
        ("mask", good[2], ValueError, "out shares memory with mask"),
        ("mask", [1.0], TypeError, "mask is a list; pass a tensor of the pack's device"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words) as raised:
            served.op.run(*good[:2], out=good[2], stream=served.stream, **{name: wrong})
        assert str(raised.value).startswith(f"{served.op.name}: "), str(raised.value)
    with pytest.raises(TypeError, match=r"takes x, w, once each; got 2 in order and \['more'\]"):
        served.op.run(*good[:2], out=good[2], stream=served.stream, more=1)
    with pytest.raises(ValueError, match=r"batches \(2,\) of x and \(3,\) of w do not go together"):
        served.op.run(good[0], served.device.upload(served.factor((3,), 6, k)), stream=served.stream)
    served.right(x, w, "after the refusals")


def product_faults(path: str) -> None:
    """Strides that a kernel cannot take, and what the driver refuses, are said; the context is left as it was."""
    served, driver = Products(path), Driver()
    k, name = served.k or 16, served.op.name
    x, w = served.drawn(2, 5, k), served.factor((2,), 6, k)
    good = served.device.upload(x), served.device.upload(w), served.device.empty((2, 5, 6), served.dtype)
    shapes = (x.shape, w.shape, (2, 5, 6))

    def nowhere(index: int, *strides: int, device: int = 0) -> Any:
        """A factor, or the output, in memory that nobody has: it is refused before it is read."""
        return tvm_ffi.from_dlpack(Capsule(FAR + (index << 44), shapes[index], served.dtype, device, strides or None))

    wide = tuple(shapes[index][-1] for index in range(3))
    for index, wrong, words in (
        (0, nowhere(0, 8, 1 << 31, 1), "x has the row stride 2147483648; expected one in"),
        (0, nowhere(0, 8, -wide[0], 1), "x has the row stride -"),
        (1, nowhere(1, 8, 1 << 31, 1), "w has the row stride 2147483648; expected one in"),
        (1, nowhere(1, 8, 2 * wide[1], 2), "w has inner stride 2; expected 1 on a device"),
        (2, nowhere(2, 8, 1 << 31, 1), "out has the row stride 2147483648; expected one in"),
        (0, nowhere(0, 8, 1 << 30, 1), "holds over 2.31-1 elements"),
        (1, nowhere(1, 8, 1 << 30, 1), "holds over 2.31-1 elements"),
        (1, nowhere(1, device=1), "w lives on cuda:1, x on cuda:0: copy it there"),
        (2, nowhere(2, device=1), "out lives on cuda:1, x on cuda:0: copy it there"),
    ):
        operands: list[Any] = [*good]
        operands[index] = wrong
        with pytest.raises(ValueError, match=words):
            served.op.run(*operands[:2], out=operands[2], stream=served.stream)
    several = served.drawn(2, 1, 2, 1, 5, k), served.factor((1, 2, 1, 2), 6, k), np.zeros((2, 2, 2, 2, 5, 6), served.dtype)
    placed = [served.device.upload(array) for array in several]
    with pytest.raises(ValueError, match="its batch axes fold into 4; a device takes up to 3"):
        served.op.run(*placed[:2], out=placed[2], stream=served.stream)
    with pytest.raises(ValueError, match="there is no device cuda:99"):
        served.op.run(*(nowhere(index, device=99) for index in (0, 1)), out=nowhere(2, device=99), stream=served.stream)
    current = ctypes.c_void_p(0)
    for function in ("cuLaunchKernel", "cuCtxPushCurrent"):
        driver.fail(function, "2", 1)
        with pytest.raises(RuntimeError, match=r"\(2\)"):
            served.op.run(*good[:2], out=good[2], stream=served.stream)
        driver.fail(function, "")
        served.right(x, w, f"after {function}")
        served.device.call("cuCtxGetCurrent", ctypes.byref(current))
        assert current.value is None, "the thread came without a context"
    if len(served.op.entry.kernels) > 1:
        skewed(served, x, w, name)


def skewed(served: Products, x: Any, w: Any, name: str) -> None:
    """Off the wide loads of the planned kernel another one serves, and is counted."""

    def strides(values: Any, row: int, matrix: int) -> tuple[int, int, int]:
        apart = values.shape[-1] + row
        return (values.shape[1] * apart + matrix, apart, 1)

    upload = served.device.upload
    for what, placed_x, placed_w in (
        ("an odd address of x", upload(x, skip=1), upload(w)),
        ("odd rows of x", upload(x, strides=strides(x, 1, 3)), upload(w)),
        ("odd matrices of x", upload(x, strides=strides(x, 0, 1)), upload(w)),
        ("an odd address of w", upload(x), upload(w, skip=1)),
        ("odd rows of w", upload(x), upload(w, strides=strides(w, 1, 2))),
        ("odd matrices of w", upload(x), upload(w, strides=strides(w, 0, 1))),
    ):
        before = served.pack.stats()[name]["fallbacks"]
        y = upload(np.full((*x.shape[:-1], 6), UNTOUCHED, served.dtype))
        served.run(placed_x, placed_w, y)
        output = served.device.download(y, served.dtype).astype(np.float64)
        assert np.array_equal(output, served.exact(x, w)), what
        assert served.pack.stats()[name]["fallbacks"] == before + 1, what
