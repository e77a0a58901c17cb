"""What a convolution on a CUDA device refuses, before it launches anything, and what the driver refuses it. A scenario."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from tvm_ffi.core import DLTensorTestWrapper

from haotuner.runtime.device_linear import ALIGNMENT
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.shape import Shape
from tests.runtime.cuda_convolutions import Convolved
from tests.runtime.cuda_framework import Allocator
from tests.runtime.cuda_memory import KDL_CPU, Capsule, Device
from tests.standin.apart import failure_of
from tests.standin.client import Driver

FAR = 1 << 50  # an address that nobody has
LIMIT = (1 << 31) - 1


class _OnHost(Capsule):
    """A producer over memory of the host."""

    def __init__(self, data: int, shape: tuple[int, ...], dtype: str) -> None:
        super().__init__(data, shape, dtype, 0)
        self.managed.tensor.device_type = KDL_CPU

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_CPU, 0


def convolution_faults(path: str) -> None:
    """Records of weights, images, outputs, weights, memory, the driver, a fork; and all is right behind each."""
    one = Convolved(path)
    x, want = one.image(2, 6, 9)
    placed = one.device.upload(x)
    _records(one, placed, want)
    _images(one, placed, want)
    _outputs(one, placed, want)
    _weights(one)
    one.right(x, want, placed, "after all refusals")
    assert one.pack.stats()[one.op.name]["fallbacks"] == 0
    _odd_weight(one, x, want)
    _driver(one, x, want)
    _forked(one, placed, want)
    one.right(x, want, placed, "after a fork")


def _out(one: Convolved, want: Any) -> Any:
    return one.device.upload(np.zeros(want.shape, one.dtype))


def _aligned(data: Any) -> Any:
    """A copy that begins where records do."""
    memory = np.zeros(data.nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    copy = memory[begin : begin + data.nbytes]
    copy[:] = data.reshape(-1).view(np.uint8)
    return copy


def _records(one: Convolved, placed: Any, want: Any) -> None:
    """Tensors that are no record of a bound weight, and records that this op did not fill."""
    call, record, setting = one.served.bound.call, one.served.bound.record, one.served.bound.setting
    data = np.from_dlpack(record)
    size, out = data.size, _out(one, want)
    longer = _aligned(np.concatenate([data, data]))
    other_mark, other_op = _aligned(data), _aligned(data)
    other_mark.view(np.uint64)[0] ^= 1
    other_op.view(np.uint64)[1] += 8
    off = np.zeros(size + 64, np.uint8)
    begin = 4 + (-off.ctypes.data % 8)
    off[begin : begin + size] = data
    wrong = (
        longer.view(np.uint16)[:size],
        _aligned(data).reshape(size, 1),
        longer[: size + 16],
        other_mark,
        other_op,
        off[begin : begin + size],
    )
    on_device = Capsule(_aligned(data).ctypes.data, (size,), "uint8", 0)  # the stand-in and the host read each other's
    for bad in (
        *map(tvm_ffi.from_dlpack, wrong),
        tvm_ffi.from_dlpack(on_device),
        tvm_ffi.from_dlpack(_OnHost(0, (size,), "uint8")),
        None,
    ):
        with pytest.raises((ValueError, TypeError), match="weight was not bound by this pack|weight"):
            call(placed, bad, out, setting, one.stream)
    prepare, place = one.pack.library().function("ht_prepare"), one.pack.table_index(one.op.entry)
    for bad in (other_mark, other_op):
        with pytest.raises(ValueError, match="the weight was not bound by this pack"):
            prepare(place, tvm_ffi.from_dlpack(bad), one.stream)
    bind = one.pack.library().function("ht_bind")
    again = tvm_ffi.from_dlpack(_aligned(data))
    with pytest.raises(ValueError, match="weight must be contiguous"):
        bind(place, one.device.upload(one.weight[:1]), one.placed[1], again)
    with pytest.raises(ValueError, match="weight was not bound by this pack"):  # a record of a weight that was refused
        call(placed, again, out, setting, one.stream)


def _images(one: Convolved, placed: Any, want: Any) -> None:
    """Extents and strides that no image has, and those that say nothing."""
    name, out = one.op.name, _out(one, want)
    c, rank = one.meaning["c"], 4

    def image(b: int, h: int, w: int, channels: int = c) -> tuple[int, ...]:
        return (b, h, w, channels) if one.last else (b, channels, h, w)

    row, column = (1, 2) if one.last else (2, 3)

    def refused(words: str, x: Any = placed, out: Any = out, kind: type[Exception] = ValueError) -> None:
        with pytest.raises(kind, match=words) as raised:
            one.served(x, out=out, stream=one.stream)
        assert str(raised.value).startswith(f"{name}: "), raised.value

    def capsule(shape: tuple[int, ...], strides: tuple[int, ...] | None = None, data: int = FAR) -> Any:
        return tvm_ffi.from_dlpack(Capsule(data, shape, one.dtype, 0, strides))

    refused(f"x has extent -1 in axis {row}", capsule(image(2, -1, 9)))
    refused(f"x has extent {LIMIT + 1} in axis {row}", capsule(image(2, LIMIT + 1, 9)))
    steps = [int(np.prod(image(2, 6, 9)[axis + 1 :])) for axis in range(rank)]
    back = [-step if axis == row else step for axis, step in enumerate(steps)]
    refused(f"x has stride -{steps[row]} in axis {row}", capsule(image(2, 6, 9), tuple(back)))
    refused("x is an image of 0 x 9; expected at least one element", capsule(image(2, 0, 9)))
    refused("x is an image of 6 x 0; expected at least one element", capsule(image(2, 6, 0)))
    refused("out is 2 images of", out=one.device.upload(np.zeros(_taller(one, want), one.dtype)))
    refused("x has no data", capsule(image(2, 6, 9), data=0))
    refused("out has no data", out=capsule(want.shape, data=0))
    stride, reach = int(str(one.meaning.all_options()["stride"]).partition(",")[0]), 60000
    large = one.meaning.operand_shape(one.meaning.meaning.output, _shape(one, 1, reach * stride, reach * stride))
    refused("the output has .* pixels; an image may have", capsule(image(1, reach * stride, reach * stride)), capsule(large))
    for h, w in ((1, 9), (6, 1)):
        if not one.fits(h, w):
            refused("pads smaller than the window: nothing is left", capsule(image(1, h, w)))
    # The stride of an axis of one element says nothing, whatever it is.
    for b, h, w in ((1, 6, 9), (1, 4, 9), (1, 6, 5)):
        x, wanted = one.image(b, h, w)
        kept = one.device.upload(x)
        for odd in (-5, 1 << 40):
            steps = [int(np.prod(x.shape[axis + 1 :])) for axis in range(rank)]
            steps = [odd if extent == 1 else step for extent, step in zip(x.shape, steps, strict=True)]
            one.right(x, wanted, capsule(x.shape, tuple(steps), kept.data_ptr()), (b, h, w, odd))
    nothing = one.meaning.operand_shape(one.meaning.meaning.output, _shape(one, 2, 6, 9))
    one.served(capsule(image(0, 6, 9), data=0), out=capsule((0, *nothing[1:]), data=0), stream=one.stream)
    assert column != row


def _shape(one: Convolved, b: int, h: int, w: int) -> Any:
    return Shape.of({"b": b, "h": h, "w": w})


def _taller(one: Convolved, want: Any) -> tuple[int, ...]:
    shape = list(want.shape)
    shape[1 if one.last else 2] += 1
    return tuple(shape)


def _outputs(one: Convolved, placed: Any, want: Any) -> None:
    """Outputs whose pixels no product writes, or that lie where something is read."""
    for axis in range(3):
        strides = [int(np.prod(want.shape[at + 1 :])) for at in range(4)]
        strides[axis] = strides[axis] + (3 if axis else -1)
        if one.last and axis == 2:  # pixels apart are served where rows and images follow
            continue
        if not one.last and axis == 1:  # features apart, too
            strides[1] = int(np.prod(want.shape[2:])) - 1
        apart = one.device.empty(want.shape, one.dtype, strides=strides)
        with pytest.raises(ValueError, match="out has its pixels unevenly apart, or overlapping"):
            one.served(placed, out=apart, stream=one.stream)
    if one.last:
        close = one.device.empty(want.shape, one.dtype, strides=[*(s for s in _steps(want.shape, want.shape[3] - 1)), 1])
        with pytest.raises(ValueError, match="out has its pixels unevenly apart, or overlapping"):
            one.served(placed, out=close, stream=one.stream)
    for kept in one.placed:
        there = tvm_ffi.from_dlpack(Capsule(kept.data_ptr(), want.shape, one.dtype, 0))
        with pytest.raises(ValueError, match="out shares memory with the weight or the bias"):
            one.served(placed, out=there, stream=one.stream)


def _steps(shape: Any, pixel: int) -> list[int]:
    """Strides of images, rows and pixels that lie so far apart."""
    return [pixel * shape[1] * shape[2], pixel * shape[2], pixel]


def _weights(one: Convolved) -> None:
    """Weights and biases that are not as the op says."""
    weight, bias = one.placed
    empty, dtype, f = one.device.empty, one.dtype, one.meaning["f"]
    shape = tuple(weight.shape)
    nowhere = [tvm_ffi.from_dlpack(Capsule(0, size, dtype, 0)) for size in (shape, (f,))]
    contiguous, channels = "weight must be contiguous", "bias has rank . and extent .*; expected one contiguous axis of"
    for given, words, kind in (
        ((one.weight.astype(np.float32), bias), "weight lives on the CPU", ValueError),
        ((empty(shape, "int32"), bias), "weight has dtype", TypeError),
        ((empty((*shape, 1), dtype), bias), contiguous, ValueError),
        ((empty(shape, dtype, strides=[*(2 * s for s in _strides(shape))][:3] + [2]), bias), contiguous, ValueError),
        ((nowhere[0], bias), contiguous, ValueError),
        ((weight, one.bias.astype(np.float32)), "bias lives on the CPU", ValueError),
        ((weight, empty((f,), "int32")), "bias has dtype", TypeError),
        ((weight, empty((f, 1), dtype)), channels, ValueError),
        ((weight, empty((f + 1,), dtype)), channels, ValueError),
        ((weight, empty((f,), dtype, strides=[2])), channels, ValueError),
        ((weight, nowhere[1]), channels, ValueError),
    ):
        with pytest.raises(kind, match=words):
            one.op.bind(*given)
    if one.meaning.epilogue:
        with pytest.raises(ValueError, match="its epilogue adds a bias: bind one"):
            one.op.bind(weight)
    other = Device(1)
    driver = Driver()
    driver.fail("cuModuleLoadData", "2", 1)
    with pytest.raises((RuntimeError, ValueError)):
        slot, record = (
            one.pack.table_index(one.op.entry),
            tvm_ffi.from_dlpack(_aligned(np.from_dlpack(one.served.bound.record))),
        )
        there = tvm_ffi.from_dlpack(Capsule(other.empty(shape, dtype).data_ptr(), shape, dtype, 1))
        one.pack.library().function("ht_bind")(slot, there, other.upload(one.bias), record)
    driver.fail("cuModuleLoadData", "")


def _odd_weight(one: Convolved, x: Any, want: Any) -> None:
    """A weight at an address that wide copies do not take: another kernel serves it, and is counted; or none does."""
    weight, name = one.device.empty(one.weight.shape, one.dtype, skip=1), one.op.name
    one.device.put(weight, one.weight)
    served, placed, y = one.op.bind(weight, one.placed[1]), one.device.upload(x), _out(one, want)
    served.prepare(one.stream)
    before = one.pack.stats()[name]["fallbacks"]
    copies = [dict(MicroKernel.parse(kernel).params)["v"] for kernel in one.op.entry.kernels]
    if min(copies) > 1:
        with pytest.raises(ValueError, match=r"multiple of|aligned|address"):
            served(placed, out=y, stream=one.stream)
        return
    served(placed, out=y, stream=one.stream)
    one.device.wait(one.stream)
    assert np.array_equal(one.device.download(y, one.dtype).astype(np.float64), want), "a weight at an odd address"
    assert one.pack.stats()[name]["fallbacks"] - before == (max(copies) > 1)


def _strides(shape: Any) -> list[int]:
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


def _driver(one: Convolved, x: Any, want: Any) -> None:
    """Every launch fails once; the thread keeps its context; the framework's memory goes back to it."""
    driver, placed, out, current = Driver(), one.device.upload(x), _out(one, want), ctypes.c_void_p(0)
    for nth in range(1, 2 if one.plain else 3):
        driver.fail("cuLaunchKernel", "2", nth)
        with pytest.raises(RuntimeError, match=r"\(2\)"):
            one.served(placed, out=out, stream=one.stream)
        driver.fail("cuLaunchKernel", "")
    driver.fail("cuCtxPushCurrent", "2", 1)
    with pytest.raises(RuntimeError, match=r"cuCtxPushCurrent: .*\(2\)"):
        one.served(placed, out=out, stream=one.stream)
    driver.fail("cuCtxPushCurrent", "")
    one.served.prepare(one.device.stream())
    one.right(x, want, placed, "after the driver's refusals")
    one.device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, "the thread had no context"
    if not one.plain:
        framework = Allocator(one.device)
        with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), one.device.stream()):
            one.served(DLTensorTestWrapper(placed), out=out)
        assert len(framework.given) == 1 and framework.returned == 1, "the columns' memory went back"


def _forked(one: Convolved, placed: Any, want: Any) -> None:
    """A child that was forked after CUDA began is refused in words."""
    out = _out(one, want)

    def refused() -> None:
        with pytest.raises(RuntimeError, match="a fork cannot use it: start the process with spawn"):
            one.served(placed, out=out, stream=one.stream)
        with pytest.raises(RuntimeError, match="a fork cannot use it"):
            one.served.prepare(one.stream)

    assert not failure_of(refused)
