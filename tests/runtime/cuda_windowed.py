"""Windows read where they lie, on a CUDA device: images that kernels do not take. A scenario of cuda_scenarios.py."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm_ffi.core import DLTensorTestWrapper

from haotuner.backends.cuda.window_calls import phases_of
from haotuner.microkernels.cuda.direct import sides_of
from haotuner.ops.dtypes import DTYPES
from haotuner.runtime.device_convolution import DeviceConvolution
from haotuner.runtime.device_linear import DeviceBound, in_order
from haotuner.spec import numerics
from tests.runtime.cuda_framework import Allocator
from tests.runtime.cuda_memory import Capsule
from tests.runtime.cuda_served import counts
from tests.runtime.cuda_steps import SHAPES, Stepped
from tests.standin.client import Driver

FAR = 1 << 50  # an address that nobody has


def windowed(path: str) -> None:
    """Pixels apart are read as they lie; an image off 16 bytes by columns where the pack has kernels for them."""
    served, driver = Stepped(path), Driver()
    drawn, y, more = _drawn(served, SHAPES["image"][1])
    channels = drawn["x"].shape[-1]
    sizes = [int(np.prod(drawn["x"].shape[axis + 1 : -1])) for axis in range(drawn["x"].ndim - 1)]
    apart = served.device.upload(drawn["x"], strides=(*((channels + 32) * size for size in sizes), 1))
    before = served.pack.stats()[served.meaning.name]["fallbacks"]
    driver.library.standin_counts_reset()
    served.bound(apart, out=y, stream=served.stream, **more)
    served.device.wait(served.stream)
    served.judge(drawn, y)
    assert counts(driver)["cuLaunchKernel"] == 1, "products, of a weight that was turned when it was bound"
    assert served.pack.stats()[served.meaning.name]["fallbacks"] == before
    spread = [(channels + 32) * size for size in sizes]
    off = [served.device.upload(drawn["x"], skip=1)]
    for axis, extent in enumerate(drawn["x"].shape[:-1]):  # one more element from pixel to pixel, row to row, image to image
        if extent > 1:
            strides = [stride + (i == axis) for i, stride in enumerate(spread)]
            off.append(served.device.upload(drawn["x"], strides=(*strides, 1)))
    _off(served, drawn, y, more, off)
    elsewhere = served.placed | {"weight": served.device.upload(served.constants["weight"], skip=1)}
    served.op.bind(**elsewhere)(served.device.upload(drawn["x"]), out=y, stream=served.stream, **more)
    served.device.wait(served.stream)
    served.judge(drawn, y)
    _axes_of_one(served)
    _channels_apart(served, drawn, y, more)
    _turned_once(served, drawn, y, more)
    _turned_each_time(served, drawn, y, more)


def phased(path: str) -> None:
    """Transposed: one launch reads pixels apart as they lie; images off 16 bytes go by products, where the pack has them."""
    served, driver = Stepped(path), Driver()
    drawn, y, more = _drawn(served, SHAPES["image"][1])
    channels, before = drawn["x"].shape[-1], served.pack.stats()[served.meaning.name]["fallbacks"]
    spread = [(channels + 32) * int(np.prod(drawn["x"].shape[axis + 1 : -1])) for axis in range(drawn["x"].ndim - 1)]
    uneven = [stride + 32 * (axis == 0) for axis, stride in enumerate(spread)]
    for strides in (spread, uneven):
        driver.library.standin_counts_reset()
        served.bound(served.device.upload(drawn["x"], strides=(*strides, 1)), out=y, stream=served.stream, **more)
        served.device.wait(served.stream)
        served.judge(drawn, y)
        assert counts(driver)["cuLaunchKernel"] == 1
    assert served.pack.stats()[served.meaning.name]["fallbacks"] == before
    _off(served, drawn, y, more, [served.device.upload(drawn["x"], skip=1)])
    _axes_of_one(served)
    _turned_once(served, drawn, y, more)
    _turned_each_time(served, drawn, y, more)


def images(path: str) -> None:
    """Channels first: any strides and addresses are read as they lie, by two launches; weights lie anywhere."""
    served, driver = Stepped(path), Driver()
    drawn, y, more = _drawn(served, SHAPES["image"][1])
    x, before = drawn["x"], served.pack.stats()[served.meaning.name]["fallbacks"]
    sizes = [int(np.prod(x.shape[axis + 1 : -1])) for axis in range(x.ndim - 1)]
    rows = [(x.shape[-1] + 3) * size for size in sizes]
    wide = served.device.upload(np.repeat(x, 2, axis=-1))
    steps = [2 * int(np.prod(x.shape[axis + 1 :])) for axis in range(x.ndim)]
    for image in (
        served.device.upload(x, skip=1),
        served.device.upload(x, strides=(*rows, 1)),
        served.device.upload(x, strides=(rows[0] + 7, *rows[1:], 1)),
        served.device.upload(x, strides=(rows[0] * 2, rows[1] + 1, *rows[2:], 1)),
        tvm_ffi.from_dlpack(Capsule(wide.data_ptr(), x.shape, x.dtype.name, 0, tuple(steps))),
    ):
        driver.library.standin_counts_reset()
        served.bound(image, out=y, stream=served.stream, **more)
        served.device.wait(served.stream)
        served.judge(drawn, y)
        assert counts(driver)["cuLaunchKernel"] == 1, "products, of a weight that was turned when it was bound"
    assert served.pack.stats()[served.meaning.name]["fallbacks"] == before
    elsewhere = served.placed | {"weight": served.device.upload(served.constants["weight"], skip=1)}
    served.op.bind(**elsewhere)(served.device.upload(x), out=y, stream=served.stream, **more)
    served.device.wait(served.stream)
    served.judge(drawn, y)
    if len(served.op.entry.kernels) == 1:
        groups = int(served.meaning.option("groups"))
        last = served.meaning["c"] // groups - 1
        for channel in (-(-(1 << 31) // last), 1 << 31):  # the last one lies at 2^31 elements
            far = [channel * served.meaning["c"], channel, *steps[2:-1], 1]
            with pytest.raises(ValueError, match=f"^{served.meaning.name}: x .*holds over 2.31-1 elements an image"):
                served.bound(
                    tvm_ffi.from_dlpack(Capsule(FAR, x.shape, x.dtype.name, 0, tuple(far))), out=y, stream=served.stream
                )
    _axes_of_one(served)
    _turned_once(served, drawn, y, more)
    _turned_each_time(served, drawn, y, more)


def _drawn(served: Stepped, shape: tuple[int, ...]) -> tuple[Any, Any, Any]:
    """Inputs of a shape, memory for the result, and what a call takes beside x."""
    drawn = served.drawn(shape)
    y = served.out(numerics.reference(served.meaning, drawn | served.constants))
    return drawn, y, {"residual": served.device.upload(drawn["residual"])} if "residual" in drawn else {}


def _off(served: Stepped, drawn: Any, y: Any, more: Any, images: Sequence[Any]) -> None:
    """Images off 16 bytes go by products, where the pack has them; else they are refused."""
    before = served.pack.stats()[served.meaning.name]["fallbacks"]
    for count, image in enumerate(images, 1):
        if len(served.op.entry.kernels) > 1:
            served.bound(image, out=y, stream=served.stream, **more)
            served.device.wait(served.stream)
            served.judge(drawn, y)
            assert served.pack.stats()[served.meaning.name]["fallbacks"] == before + count
        else:
            with pytest.raises(ValueError, match=f"^{served.meaning.name}: x begins at an address, or has a stride"):
                served.bound(image, out=y, stream=served.stream, **more)


def _channels_apart(served: Stepped, drawn: Any, y: Any, more: Any) -> None:
    """Columns are laid out of them where the pack can; and no kernel reads beyond 2^31 elements of an image."""
    name, x = served.meaning.name, drawn["x"]
    dtype = x.dtype.name
    wide = served.device.upload(np.repeat(x, 2, axis=-1))
    steps = [2 * int(np.prod(x.shape[axis + 1 :])) for axis in range(x.ndim)]
    apart = tvm_ffi.from_dlpack(Capsule(wide.data_ptr(), x.shape, dtype, 0, tuple(steps)))
    if len(served.op.entry.kernels) > 1:
        served.bound(apart, out=y, stream=served.stream, **more)
        served.device.wait(served.stream)
        served.judge(drawn, y)
        return
    far = [*steps[:-2], 1 << 31, 1]
    for image in (apart, tvm_ffi.from_dlpack(Capsule(FAR, x.shape, dtype, 0, tuple(far)))):
        with pytest.raises(ValueError, match=f"^{name}: x has its channels apart, or holds over"):
            served.bound(image, out=y, stream=served.stream, **more)


def _turning(served: Stepped) -> int:
    """Launches that turn the weight: of a transposed convolution one for each group of each phase that taps reach."""
    if "transpose" not in served.meaning.kind:
        return 1
    of_sides = [sum(bool(phase.taps) for phase in phases_of(side, 0)) for side in sides_of(served.meaning)]
    return int(served.meaning.option("groups")) * int(np.prod(of_sides))


def _turned_once(served: Stepped, drawn: Any, y: Any, more: Any) -> None:
    """A bound weight is turned into memory of its own, which goes with it unless a graph may read it."""
    driver, x, stream = Driver(), served.device.upload(drawn["x"]), served.device.stream()
    weight = served.constants["weight"]
    other = served.placed | {"weight": served.device.upload(weight[::-1].copy())}

    def freed() -> int:
        gc.collect()
        return counts(driver).get("cuMemFree", 0)

    gc.collect()  # what scenarios before this one left
    driver.library.standin_counts_reset()
    bound = served.op.bind(**served.placed)
    assert counts(driver)["cuLaunchKernel"] == _turning(served) and bound.packed_bytes == weight.nbytes
    bound(x, out=y, stream=stream, **more)
    served.device.wait(stream)
    served.judge(drawn, y)
    first = bound.bound
    bound.rebind(**other)
    assert freed() == 0 and first.record is not None, "somebody may call with it"
    del first
    assert freed() == 1
    bound.close()
    assert freed() == 2 and bound.packed_bytes == 0
    captured = served.op.bind(**served.placed)
    served.device.begin(stream)
    captured(x, out=y, stream=stream, **more)
    graph = served.device.end(stream)
    captured.rebind(**other)
    del captured
    assert freed() == 3, "what a graph may read stays"
    served.device.put(y, np.zeros(tuple(y.shape), DTYPES[served.written].numpy))
    served.device.replay(graph, stream)
    served.device.wait(stream)
    served.judge(drawn, y)
    _refused(served, driver)


def _refused(served: Stepped, driver: Driver) -> None:
    """What the driver refuses while a weight is turned is said, and what was taken is given back."""
    driver.library.standin_counts_reset()
    for at, name in enumerate(("cuMemAlloc", "cuCtxSynchronize", "cuLaunchKernel", "cuStreamSynchronize")):
        driver.fail(name, "2", 1)
        with pytest.raises(RuntimeError, match=rf"^{served.meaning.name}: .*\(2\)"):
            served.op.bind(**served.placed)
        driver.fail(name, "")
        assert counts(driver).get("cuMemFree", 0) == at, name


def _turned_each_time(served: Stepped, drawn: Any, y: Any, more: Any) -> None:
    """A weight that may change is turned by each call: in memory of the framework, which goes back to it."""
    entry, stream, framework = served.op.entry, served.device.stream(), Allocator(served.device)
    beside = {name: tensor for name, tensor in served.placed.items() if name not in ("weight", "bias")}
    channels = in_order(entry, served.placed.get("bias"), beside)
    bound = DeviceConvolution(DeviceBound.of(served.pack, entry, served.placed["weight"], channels))
    driver = Driver()
    driver.library.standin_counts_reset()
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), stream):
        bound(DLTensorTestWrapper(served.device.upload(drawn["x"])), out=y, **more)
    served.device.wait(stream)
    served.judge(drawn, y)
    assert counts(driver)["cuLaunchKernel"] == 1 + _turning(served) and bound.packed_bytes == 0
    assert len(framework.given) == 1 and framework.returned == 1


def _axes_of_one(served: Stepped) -> None:
    """An axis of one element says nothing of its stride."""
    drawn, y, more = _drawn(served, (1,) * len(served.meaning.dynamic))
    before = served.pack.stats()[served.meaning.name]["fallbacks"]
    odd = [drawn["x"].shape[-1] + 1 + 2 * i for i in range(drawn["x"].ndim - 1)]
    if served.meaning.option("layout") in ("nchw", "ncw"):
        odd[1] = int(np.prod(drawn["x"].shape[2:])) + 1  # the one axis of several elements
    served.bound(served.device.upload(drawn["x"], strides=(*odd, 1)), out=y, stream=served.stream, **more)
    served.device.wait(served.stream)
    served.judge(drawn, y)
    assert served.pack.stats()[served.meaning.name]["fallbacks"] == before


def windows_beside_columns(path: str) -> None:
    """A weight that no kernel of columns takes is refused: windows, which take it, read no columns."""
    served = Stepped(path)
    drawn = served.drawn(SHAPES["image"][1])
    y = served.out(numerics.reference(served.meaning, drawn | served.constants))
    bound = served.op.bind(served.device.upload(served.constants["weight"], skip=4))
    bound.prepare(served.stream)
    with pytest.raises(ValueError, match=f"^{served.meaning.name}: weight begins at an address"):
        bound(served.device.upload(drawn["x"]), out=y, stream=served.stream)
