"""Rows in groups, each with a matrix of its own, served on a CUDA device. A scenario of cuda_scenarios.py."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.errors import PackClosed
from haotuner.ops.dtypes import DTYPES
from haotuner.spec.op import Op
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_served import counts
from tests.standin.client import Driver

EPS = {dtype.numpy: dtype.eps for dtype in DTYPES.values()}
UNTOUCHED = -7.0


class Groups:
    """A grouped op on device 0, its operands, and the numbers to judge it by."""

    def __init__(self, path: str) -> None:
        self.device, self.pack = Device(), haotuner.load(path, device="cuda:0")
        (name,) = self.pack.ops
        self.op, op = self.pack.op(name), Op.parse(name)
        self.count, self.dtype = op["g"], DTYPES[op.dtype].numpy
        draw = np.random.default_rng(3)
        self.weight = draw.standard_normal((self.count, op["n"], op["k"])).astype(self.dtype)
        self.bias = draw.standard_normal((self.count, op["n"])).astype(self.dtype)
        stored = self.weight.transpose(0, 2, 1) if op.option("weight") == "kn" else self.weight
        self.stored = np.ascontiguousarray(stored)
        self.linear = self.op.bind(self.device.upload(self.stored), self.device.upload(self.bias))
        self.stream = self.device.stream()

    def ends(self, *ends: int) -> Any:
        """Offsets on the device; whole numbers lie there as floats of the same bytes do."""
        tensor = self.device.empty((len(ends),), "int32")
        self.device.put(tensor, np.array(ends, np.int32))
        return tensor

    def rows(self, m: int) -> Any:
        return np.random.default_rng(m).standard_normal((m, self.op.k)).astype(self.dtype)

    def out(self, m: int) -> Any:
        return self.device.upload(np.full((m, self.op.n), UNTOUCHED, self.dtype))

    def call(self, x: Any, ends: Any, y: Any) -> None:
        self.linear(self.device.upload(x), ends, out=y, stream=self.stream)
        self.device.wait(self.stream)

    def judge(self, y: Any, x: Any, ends: tuple[int, ...], what: str) -> None:
        """Within the rounding of the sum and of the result; rows of no group as they were."""
        output = self.device.download(y, self.dtype).astype(np.float64)
        x64, w64, b64 = (values.astype(np.float64) for values in (x, self.weight, self.bias))
        for group, (first, last) in enumerate(pairwise((0, *ends))):
            exact = x64[first:last] @ w64[group].T + b64[group]
            size = np.abs(x64[first:last]) @ np.abs(w64[group]).T + np.abs(b64[group])
            allowed = (self.op.k + 8) * 2.0**-24 * size + EPS[self.dtype] * np.abs(exact)
            assert (np.abs(output[first:last] - exact) <= allowed).all(), f"{what}, group {group}"
        assert (output[ends[-1] :] == UNTOUCHED).all(), what


def grouped(path: str) -> None:
    """Any cut of the rows, in one launch each; offsets that are no cut; a graph that replays with what they hold then."""
    served = Groups(path)
    driver, g = Driver(), served.count
    cuts: dict[str, Callable[[int], tuple[int, ...]]] = {
        "even": lambda m: tuple(m * (at + 1) // g for at in range(g)),
        "all in the first": lambda m: (m,) * g,
        "all in the last": lambda m: (*(0,) * (g - 1), m),
        "every second empty": lambda m: tuple(m * (at // 2 + 1) // -(-g // 2) for at in range(g)),
        "rows behind the last": lambda m: tuple((m - 1) * (at + 1) // (g + 1) for at in range(g)),
    }
    for what, cut in cuts.items():
        for m in (1, 3, 40, 150, 333):
            x, y, ends = served.rows(m), served.out(m), cut(m)
            placed, offsets = served.device.upload(x), served.ends(*ends)
            driver.library.standin_counts_reset()
            served.linear(placed, offsets, out=y, stream=served.stream)
            assert counts(driver)["cuLaunchKernel"] == 1
            served.device.wait(served.stream)
            served.judge(y, x, ends, f"{what}, m={m}")
    x, y = served.rows(40), served.out(40)
    served.call(x, served.ends(*(20, 5, 99, -3, 2**31 - 1, 7)[:g]), y)
    served.judge(y, x, (20, 20, *(40,) * (g - 2)), "offsets that go back and outside")
    served.linear(
        served.device.empty((0, served.op.k), served.dtype), served.ends(*(0,) * g), out=served.out(0), stream=served.stream
    )
    assert served.pack.stats()[served.op.name]["fallbacks"] == 0
    placed, offsets = served.device.upload(x), served.ends(*cuts["even"](40))
    served.device.begin(served.stream)
    served.linear(placed, offsets, out=y, stream=served.stream)
    graph = served.device.end(served.stream)
    new = haotuner.load(path, device="cuda:0")
    served.pack.hand_over(new)
    for cut in cuts.values():
        served.device.put(y, np.full((40, served.op.n), UNTOUCHED, served.dtype))
        served.device.put(offsets, np.array(cut(40), np.int32))
        served.device.replay(graph, served.stream)
        served.judge(y, x, cut(40), "replayed")
    new.close()
    with pytest.raises(PackClosed, match="load the pack again"):
        served.linear(placed, offsets, out=y, stream=served.stream)


def grouped_refusals(path: str) -> None:
    """What is wrong with offsets, weights and biases is said by name."""
    served = Groups(path)
    g, n, k = served.count, served.op.n, served.op.k
    x, y = served.device.upload(served.rows(4)), served.out(4)
    ends = served.ends(*(4,) * g)
    for wrong, kind, words in (
        (None, TypeError, "pass offsets, the row where each of the groups ends"),
        (np.zeros(g, np.int32), ValueError, "offsets lives on the CPU"),
        (served.ends(*(4,) * (g + 1)), ValueError, f"offsets has rank 1 and extent {g + 1}; expected one .* {g}"),
        (served.device.empty((g,), "float32"), TypeError, "offsets has dtype code 2 .* expected int32"),
        ([4] * g, TypeError, "offsets is a list; pass a tensor"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words) as raised:
            served.linear(x, wrong, out=y, stream=served.stream)
        assert str(raised.value).startswith(f"{served.op.name}: ")
    matrix = served.device.upload(np.zeros((n, k), served.dtype))
    with pytest.raises(ValueError, match=rf"weight has rank 2 .* expected \({g}, .* a matrix for each group"):
        served.op.bind(matrix)
    with pytest.raises(ValueError, match=rf"bias has rank 1 .* expected a contiguous \({g}, {n}\), a row for each group"):
        served.op.bind(served.device.upload(served.stored), served.device.empty((n,), served.dtype))

    def nowhere(shape: tuple[int, ...], dtype: str) -> Any:
        return tvm_ffi.from_dlpack(Capsule(0, shape, dtype, 0))

    empty, dtype = served.device.empty, served.dtype
    with pytest.raises(ValueError, match="expected one contiguous axis"):
        served.linear(x, nowhere((g,), "int32"), out=y, stream=served.stream)
    with pytest.raises(ValueError, match="offsets has rank 2"):
        served.linear(x, empty((g, 1), "int32"), out=y, stream=served.stream)
    *_, rows, columns = served.stored.shape
    for shape in ((g + 1, rows, columns), (g, rows + 1, columns), (g, rows, columns + 1), (g, rows, columns, 1)):
        with pytest.raises(ValueError, match=rf"weight has rank {len(shape)} .* a matrix for each group"):
            served.op.bind(empty(shape, dtype))
    for wrong in (
        nowhere((g, rows, columns), dtype),
        empty((g, rows, columns), dtype, strides=(rows * columns + 8, columns, 1)),
    ):
        with pytest.raises(ValueError, match="weight must be contiguous and have data"):
            served.op.bind(wrong)
    biases = [empty(shape, dtype) for shape in ((g + 1, n), (g, n + 1), (g, n, 1))]
    for wrong in (*biases, nowhere((g, n), dtype), empty((g, n), dtype, strides=(n + 1, 1))):
        with pytest.raises(ValueError, match="bias has rank . and first extent .* a row for each group"):
            served.op.bind(served.device.upload(served.stored), wrong)
    if served.dtype == "float32":  # no kernel of this op has tensor maps, and groups are one launch
        far = tvm_ffi.from_dlpack(Capsule(1 << 45, (4, k), served.dtype, 0, (2**30, 1)))
        with pytest.raises(ValueError, match=r"over 2\^31-1 elements: pass fewer rows at a time"):
            served.linear(far, ends, out=y, stream=served.stream)
        with pytest.raises(ValueError, match="x begins at an address"):  # nor any that takes every alignment
            served.linear(served.device.upload(served.rows(4), skip=1), ends, out=y, stream=served.stream)
    odd = served.device.empty((g,), "int32")
    misplaced = tvm_ffi.from_dlpack(Capsule(odd.data_ptr() + 2, (g,), "int32", 0))
    with pytest.raises(ValueError, match="offsets begins at an address that is no multiple of 4"):
        served.linear(x, misplaced, out=y, stream=served.stream)
    inside = tvm_ffi.from_dlpack(Capsule(y.data_ptr(), (g,), "int32", 0))
    with pytest.raises(ValueError, match="out shares memory with offsets, which is read meanwhile"):
        served.linear(x, inside, out=y, stream=served.stream)
    strided = served.device.empty((g,), "int32", strides=(2,))
    with pytest.raises(ValueError, match="expected one contiguous axis"):
        served.linear(x, strided, out=y, stream=served.stream)
    served.call(served.rows(4), ends, y)
    served.judge(y, served.rows(4), (4,) * g, "after the refusals")
