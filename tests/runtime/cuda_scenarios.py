"""What a server does with CUDA packs, in a process of its own whose driver is the stand-in (or a real one).

``python -m tests.runtime.cuda_scenarios NAME PACK...`` ends with 0 if everything was right.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm_ffi.core import DLTensorTestWrapper

import haotuner
from haotuner.errors import PackClosed
from tests.runtime.cuda_bad_inputs import captures, extents, lost
from tests.runtime.cuda_conv_faults import convolution_faults
from tests.runtime.cuda_convolutions import convolution_refusals, convolutions
from tests.runtime.cuda_doors import (
    crowd,
    early,
    library,
    misuses,
    older_load,
    older_maps,
    older_still,
    other_driver,
    other_major,
    other_minor,
    other_shared,
    settings,
)
from tests.runtime.cuda_framework import allocating
from tests.runtime.cuda_fused import fused, fused_refusals, torch_fused
from tests.runtime.cuda_generated_ops import (
    generated,
    generated_faults,
    generated_keys,
    generated_parts,
    generated_refusals,
    generated_stages,
)
from tests.runtime.cuda_grouped import grouped, grouped_refusals
from tests.runtime.cuda_memory import Device
from tests.runtime.cuda_misfortunes import misfortunes
from tests.runtime.cuda_packs import LAST, PICKS, WGMMA
from tests.runtime.cuda_products import (
    product_faults,
    product_refusals,
    products,
    products_beside,
    products_elsewhere,
    turned,
)
from tests.runtime.cuda_refusals import cannot, failing, faults, forked, loading, mismatch, preparing, refusals, too_old
from tests.runtime.cuda_served import Served, counts
from tests.runtime.cuda_steps import stepped, stepped_faults, stepped_products
from tests.runtime.cuda_torch import torch_convolutions, torch_fakes, torch_generated, torch_groups, torch_products
from tests.runtime.cuda_windowed import images, phased, windowed, windows_beside_columns
from tests.standin.client import Driver

GRAPH_ROWS = 40


def numbers(path: str) -> None:
    """Every kind of cell, both ends and beyond; strided rows, leading axes, no rows, no bias."""
    served = Served(path)
    served.linear.prepare(served.stream)
    for m in (1, 2, 3, 4, 5, 33, 100, 101, 150, LAST, LAST + 1, LAST + 130):
        x, y = served.rows(m), served.out(m)
        served.call(served.device.upload(x), y)
        served.judge(y, x, f"m={m}")
    assert served.stats() == {"calls": 12, "fallbacks": 0, "out_of_range": 3}, served.stats()
    x = served.rows(3, 7)
    y = served.out(3, 7)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "two leading axes")
    n, k = served.op.n, served.op.k
    x, y = served.rows(37), served.out(37, strides=(n + 3, 1))
    served.call(served.device.upload(x, strides=(k + 8, 1)), y)
    served.judge(y, x, "strided rows")
    x, y = served.rows(6), served.out(6, skip=1)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "an output at an odd address")
    served.call(served.device.empty((0, k), served.pick.dtype), served.out(0))
    plain = Served(path, biased=False)
    x, y = plain.rows(9), plain.out(9)
    plain.call(plain.device.upload(x), y)
    plain.judge(y, x, "no bias")


def alignment(path: str) -> None:
    """x at an odd address, or with an odd stride, is served by the kernel for any alignment, and counted."""
    served = Served(path)
    placed: dict[str, dict[str, Any]] = {"address": {"skip": 1}, "stride": {"strides": (served.op.k + 1, 1)}}
    for what, how in placed.items():
        x, y = served.rows(33), served.out(33)
        served.call(served.device.upload(x, **how), y)
        served.judge(y, x, what)
    assert served.stats()["fallbacks"] == 2
    if served.pick in PICKS:
        overlapping(served)
        apart(served)


def apart(served: Served) -> None:
    """Rows so far apart that few of them have 32-bit offsets; a split of k with a kernel for any alignment."""
    x, y = served.rows(2), served.out(2)
    served.call(served.device.upload(x, strides=(1 << 22, 1)), y)
    served.judge(y, x, "rows far apart")
    served.linear.prepare(served.stream)
    x, y = served.rows(3), served.out(3)
    served.call(served.device.upload(x, skip=1), y)
    served.judge(y, x, "a split at an odd address")


def overlapping(served: Served) -> None:
    """Rows of x that overlap are read by a kernel without tensor maps; a single row has no stride."""
    before = served.stats()["fallbacks"]
    x = served.device.upload(served.rows(33), strides=(8, 1))
    y = served.out(33)
    served.call(x, y)
    served.judge(y, served.device.download(x, served.pick.dtype), "overlapping rows")
    assert served.stats()["fallbacks"] == before + (served.pick is WGMMA)
    served.linear.prepare(served.stream)
    before = served.stats()["fallbacks"]
    row, y = served.rows(1), served.out(1)
    served.call(served.device.upload(row, strides=(served.op.k + 1, 1)), y)
    served.judge(y, row, "one row")
    assert served.stats()["fallbacks"] == before


def stored(path: str) -> None:
    """A weight of the other layout, of another type, strided or short is refused by name; the right one is served."""
    served = Served(path)
    rows, columns = served.stored.shape
    for wrong, words in (
        (served.device.upload(np.ascontiguousarray(served.stored.T)), "weight has rank 2 and shape"),
        (served.device.upload(served.stored.astype("float32")), "weight has dtype code 2 with 32 bits"),
        (served.device.upload(served.stored, strides=(columns + 8, 1)), "weight must be contiguous"),
        (served.device.upload(served.stored[: rows - 1]), "weight has rank 2 and shape"),
    ):
        with pytest.raises((TypeError, ValueError), match=words):
            served.op.bind(wrong)
    x, y = served.rows(9), served.out(9)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "after the refusals")


def looked(path: str) -> None:
    """What the library says it would launch for each m: the plan's cell, and beyond the last one it grown by whole tiles."""
    served = Served(path)
    look_up, output = library(path)["ht_look_up"], np.zeros(10, np.int64)
    tiles = [int(dict(kernel.params)["bm"]) for kernel in served.pick.kernels]
    for m in range(1, LAST + 130):
        bound, entry = next((cell for cell in served.pick.cells if cell[0] >= m), served.pick.cells[-1])
        first = entry.regions[0][1] * tiles[entry.regions[0][0]]
        if m > bound:
            first += -(-(m - bound) // tiles[0]) * tiles[0]
        parts = [(entry.regions[0][0], m)]
        if entry.regions[0][1] and first < m:
            parts = [(entry.regions[0][0], first), (entry.regions[1][0], m - first)]
        output[:] = -1
        look_up(0, 0, m, output)
        expected = [len(parts), entry.splits, *(n for kernel, rows in parts for n in (kernel, -(-rows // tiles[kernel])))]
        assert output[: len(expected)].tolist() == expected, (m, output, expected)


def unprepared(path: str) -> None:
    """Without memory for partial sums k is not split: right, counted, and by the book once there is memory."""
    served = Served(path)
    x, y = served.rows(3), served.out(3)
    served.call(served.device.upload(x), y)
    served.judge(y, x)
    assert served.stats()["fallbacks"] == 1
    served.linear.prepare(served.stream)
    served.call(served.device.upload(x), y)
    served.judge(y, x)
    assert served.stats()["fallbacks"] == 1
    other = served.device.stream()
    served.linear(served.device.upload(x), out=y, stream=other)
    served.device.wait(other)
    served.judge(y, x)
    assert served.stats()["fallbacks"] == 2, "the memory of one stream is not another's"


def captured(path: str) -> None:
    """A captured call is replayed on new inputs, with and without a split, after hand-over and close as well."""
    served = Served(path)
    served.linear.prepare(served.stream)
    graphs = []
    for m in (3, GRAPH_ROWS, 150):
        x, y = served.device.upload(served.rows(m)), served.out(m)
        served.device.begin(served.stream)
        served.linear(x, out=y, stream=served.stream)
        graphs.append((m, x, y, served.device.end(served.stream)))

    def replay(seed: int) -> None:
        for m, x, y, graph in graphs:
            values = np.random.default_rng(seed + m).standard_normal((m, served.op.k)).astype(served.pick.dtype)
            served.device.put(x, values)
            served.device.replay(graph, served.stream)
            served.judge(y, values, f"replay {m}")

    replay(1)
    new = haotuner.load(path, device="cuda:0")
    served.pack.hand_over(new)
    replay(2)
    x, y = served.rows(5), served.out(5)
    served.call(served.device.upload(x), y)
    served.judge(y, x, "handed over")
    new.close()
    replay(3)
    with pytest.raises(PackClosed, match="load the pack again"):
        served.linear(served.device.upload(x), out=y, stream=served.stream)


def threads(path: str) -> None:
    """Eight threads on two streams each, all plans, while another thread hands the pack over."""
    served = Served(path)
    wrong: list[str] = []
    streams = [(served.device.stream(), served.device.stream()) for _ in range(8)]
    for pair in streams:
        for stream in pair:
            served.linear.prepare(stream)
    packs = [served.pack]

    def serve(index: int) -> None:
        try:
            for turn in range(6):
                stream = streams[index][turn % 2]
                x = served.rows((3, 17, 120)[turn % 3] + index)
                y = served.out(x.shape[0])
                served.linear(served.device.upload(x), out=y, stream=stream)
                served.device.wait(stream)
                served.judge(y, x, f"thread {index}, turn {turn}")
        except BaseException as error:  # told by the main thread
            wrong.append(repr(error))

    workers = [threading.Thread(target=serve, args=(index,)) for index in range(8)]
    for worker in workers:
        worker.start()
    for _ in range(3):
        packs.append(haotuner.load(path, device="cuda:0"))
        packs[-2].hand_over(packs[-1])
    for worker in workers:
        worker.join()
    assert not wrong, wrong


def devices(path: str) -> None:
    """Two devices in one process, a tensor of the one to the other, and the caller's own context left as it was."""
    first, second = Served(path), Served(path, ordinal=1)
    for served in (first, second, first):
        x, y = served.rows(20), served.out(20)
        served.call(served.device.upload(x), y)
        served.judge(y, x, f"device {served.device.ordinal}")
    x, y = first.device.upload(first.rows(4)), first.out(4)
    with pytest.raises(ValueError, match=r"x lives on cuda:0, the weight on cuda:1: copy it there"):
        second.linear(x, out=y, stream=second.stream)
    with pytest.raises(ValueError, match="out lives on cuda:1, the weight on cuda:0"):
        first.linear(x, out=second.out(4), stream=first.stream)
    with pytest.raises(RuntimeError, match="is the stream alive, and one of this device's primary context"):
        first.linear(x, out=y, stream=second.stream)
    first.call(x, y)
    first.judge(y, first.rows(4), "after the refusals")
    with pytest.raises(ValueError, match="bias lives on cuda:1, the weight on cuda:0"):
        first.op.bind(first.device.upload(first.weight), second.device.upload(second.bias))


def context(path: str) -> None:
    """A call leaves the thread with the context that it came with: none, its own, or another device's."""
    served = Served(path)
    x, y = served.device.upload(served.rows(20)), served.out(20)
    other, driver = Device(1), Driver()
    current = ctypes.c_void_p(0)
    for handle in (None, served.device.context.value, other.context.value):
        if handle is not None:
            served.device.call("cuCtxPushCurrent_v2", ctypes.c_void_p(handle))
        pushed = driver.count("cuCtxPushCurrent")
        served.linear(x, out=y, stream=served.stream)
        assert (driver.count("cuCtxPushCurrent") == pushed) == (handle == served.device.context.value), "it is current"
        out = served.out(4, 5)
        with pytest.raises(ValueError, match="rank"):
            served.linear(x, out=out, stream=served.stream)
        served.device.call("cuCtxGetCurrent", ctypes.byref(current))
        assert current.value == handle
        if handle is not None:
            served.device.call("cuCtxPopCurrent_v2", ctypes.byref(current))


def frameworks(path: str) -> None:
    """Tensors of a class that tells its stream and gives memory; of one that only has DLPack; tvm-ffi's own stream."""
    served = Served(path)
    x, y = served.rows(20), served.out(20)
    on_device = served.device.upload(x)
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), served.stream):
        served.linear(on_device, out=y)
    served.device.wait(served.stream)
    served.judge(y, x, "tvm-ffi's stream")
    streams: list[Any] = []

    class Foreign:
        """An array of a library that hands tensors over by DLPack alone."""

        def __init__(self, inner: Any) -> None:
            self.inner, self.shape = inner, inner.shape

        def __dlpack_device__(self) -> Any:
            return self.inner.__dlpack_device__()

        def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
            streams.append(stream)
            return self.inner.__dlpack__()

    y = served.out(20)
    served.linear(Foreign(on_device), out=Foreign(y), stream=served.stream)
    served.device.wait(served.stream)
    served.judge(y, x, "another library")
    assert streams == [served.stream] * 2, "the producer makes the tensor ready on our stream, not on the legacy one"
    with pytest.raises(ValueError, match="does not say its current stream"):
        served.linear(Foreign(on_device), out=y)
    with pytest.raises(ValueError, match="no output can be made for a Foreign; pass out="):
        served.linear(Foreign(on_device), stream=served.stream)
    y = served.out(20)
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), served.stream):
        served.linear(DLTensorTestWrapper(on_device), out=y)
    served.device.wait(served.stream)
    served.judge(y, x, "an exchange table")


def counted(path: str) -> None:
    """One launch a region, two with a split, one map at most; beside them only looks at the context."""
    served = Served(path)
    driver = Driver()
    served.linear.prepare(served.stream)
    for name in counts(driver):
        driver.fail(name, "")  # plans go by the number of a call, and calls are counted anew below
    maps = int(served.pick is WGMMA)
    allowed = {"cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent", "cuLaunchKernel", "cuTensorMapEncodeTiled"}
    for m, launches, encodes in ((3, 2, maps), (50, 1, maps), (150, 2, maps), (0, 0, 0)):
        x, y = (
            served.device.upload(served.rows(m)) if m else served.device.empty((0, served.op.k), served.pick.dtype),
            served.out(m),
        )
        driver.library.standin_counts_reset()
        served.linear(x, out=y, stream=served.stream)
        calls = counts(driver)
        served.device.wait(served.stream)
        assert calls.get("cuLaunchKernel", 0) == launches and calls.get("cuTensorMapEncodeTiled", 0) == encodes, (m, calls)
        assert set(calls) <= allowed, calls


def several(path: str, *names: str) -> None:
    """Scenarios one after the other, in one process."""
    for name in names:
        SCENARIOS[name](path)


SCENARIOS: dict[str, Callable[..., None]] = {
    scenario.__name__: scenario
    for scenario in (
        numbers, alignment, looked, stored, unprepared, captured, threads, devices, context, refusals, loading, mismatch,
        cannot, forked, grouped, grouped_refusals,
        products, products_beside, products_elsewhere, turned, product_refusals, product_faults, frameworks, counted,
        failing, preparing,
        fused, fused_refusals, torch_fused, stepped, stepped_faults, stepped_products, windowed, images, phased,
        windows_beside_columns, misfortunes,
        convolutions, convolution_faults, convolution_refusals, generated, generated_faults, generated_keys,
        generated_parts, generated_refusals, generated_stages,
        torch_convolutions, torch_fakes, torch_generated, torch_groups, torch_products,
        several, faults, allocating, too_old, early, crowd,
        older_load, older_maps, older_still,
        other_major, other_minor, other_shared, other_driver, misuses, settings, extents, lost, captures,
    )
}  # fmt: skip


def run(name: str, *words: str) -> None:
    """The scenario of a name."""
    SCENARIOS[name](*words)


if __name__ == "__main__":
    run(*sys.argv[1:])
