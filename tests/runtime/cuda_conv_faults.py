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
    conv = Convolved(path)
    x, expected = conv.image(2, 6, 9)
    placed = conv.device.upload(x)
    _records(conv, placed, expected)
    _images(conv, placed, expected)
    _outputs(conv, placed, expected)
    _weights(conv)
    conv.right(x, expected, placed, "after all refusals")
    assert conv.pack.stats()[conv.op.name]["fallbacks"] == 0
    _odd_weight(conv, x, expected)
    _driver(conv, x, expected)
    _forked(conv, placed, expected)
    conv.right(x, expected, placed, "after a fork")


def _out(conv: Convolved, expected: Any) -> Any:
    return conv.device.upload(np.zeros(expected.shape, conv.dtype))


def _aligned(data: Any) -> Any:
    """A copy that begins where records do."""
    memory = np.zeros(data.nbytes + ALIGNMENT, np.uint8)
    begin = -memory.ctypes.data % ALIGNMENT
    copy = memory[begin : begin + data.nbytes]
    copy[:] = data.reshape(-1).view(np.uint8)
    return copy


def _records(conv: Convolved, placed: Any, expected: Any) -> None:
    """Tensors that are no record of a bound weight, and records that this op did not fill."""
    call, record, setting = conv.served.bound.call, conv.served.bound.record, conv.served.bound.setting
    data = np.from_dlpack(record)
    size, out = data.size, _out(conv, expected)
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
            call(placed, bad, out, setting, conv.stream)
    prepare, index = conv.pack.library().function("ht_prepare"), conv.pack.table_index(conv.op.entry)
    for bad in (other_mark, other_op):
        with pytest.raises(ValueError, match="the weight was not bound by this pack"):
            prepare(index, tvm_ffi.from_dlpack(bad), conv.stream)
    bind = conv.pack.library().function("ht_bind")
    again = tvm_ffi.from_dlpack(_aligned(data))
    with pytest.raises(ValueError, match="weight must be contiguous"):
        bind(index, conv.device.upload(conv.weight[:1]), conv.placed[1], again)
    with pytest.raises(ValueError, match="weight was not bound by this pack"):  # a record of a weight that was refused
        call(placed, again, out, setting, conv.stream)


def _images(conv: Convolved, placed: Any, expected: Any) -> None:
    """Extents and strides that no image has, and those that say nothing."""
    name, out = conv.op.name, _out(conv, expected)
    c, rank = conv.meaning["c"], 4

    def image(b: int, h: int, w: int, channels: int = c) -> tuple[int, ...]:
        return (b, h, w, channels) if conv.last else (b, channels, h, w)

    row, column = (1, 2) if conv.last else (2, 3)

    def refused(words: str, x: Any = placed, out: Any = out, kind: type[Exception] = ValueError) -> None:
        with pytest.raises(kind, match=words) as raised:
            conv.served(x, out=out, stream=conv.stream)
        assert str(raised.value).startswith(f"{name}: "), raised.value

    def capsule(shape: tuple[int, ...], strides: tuple[int, ...] | None = None, data: int = FAR) -> Any:
        return tvm_ffi.from_dlpack(Capsule(data, shape, conv.dtype, 0, strides))

    refused(f"x has extent -1 in axis {row}", capsule(image(2, -1, 9)))
    refused(f"x has extent {LIMIT + 1} in axis {row}", capsule(image(2, LIMIT + 1, 9)))
    steps = [int(np.prod(image(2, 6, 9)[axis + 1 :])) for axis in range(rank)]
    back = [-step if axis == row else step for axis, step in enumerate(steps)]
    refused(f"x has stride -{steps[row]} in axis {row}", capsule(image(2, 6, 9), tuple(back)))
    refused("x is an image of 0 x 9; expected at least one element", capsule(image(2, 0, 9)))
    refused("x is an image of 6 x 0; expected at least one element", capsule(image(2, 6, 0)))
    refused("out is 2 images of", out=conv.device.upload(np.zeros(_taller(conv, expected), conv.dtype)))
    refused("x has no data", capsule(image(2, 6, 9), data=0))
    refused("out has no data", out=capsule(expected.shape, data=0))
    stride, reach = int(str(conv.meaning.all_options()["stride"]).partition(",")[0]), 60000
    large = conv.meaning.operand_shape(conv.meaning.meaning.output, _shape(conv, 1, reach * stride, reach * stride))
    refused("the output has .* pixels; an image may have", capsule(image(1, reach * stride, reach * stride)), capsule(large))
    for h, w in ((1, 9), (6, 1)):
        if not conv.fits(h, w):
            refused("pads smaller than the window: nothing is left", capsule(image(1, h, w)))
    # The stride of an axis of one element says nothing, whatever it is.
    for b, h, w in ((1, 6, 9), (1, 4, 9), (1, 6, 5)):
        x, expected_image = conv.image(b, h, w)
        uploaded = conv.device.upload(x)
        for odd in (-5, 1 << 40):
            steps = [int(np.prod(x.shape[axis + 1 :])) for axis in range(rank)]
            steps = [odd if extent == 1 else step for extent, step in zip(x.shape, steps, strict=True)]
            conv.right(x, expected_image, capsule(x.shape, tuple(steps), uploaded.data_ptr()), (b, h, w, odd))
    nothing = conv.meaning.operand_shape(conv.meaning.meaning.output, _shape(conv, 2, 6, 9))
    conv.served(capsule(image(0, 6, 9), data=0), out=capsule((0, *nothing[1:]), data=0), stream=conv.stream)
    assert column != row


def _shape(conv: Convolved, b: int, h: int, w: int) -> Any:
    return Shape.of({"b": b, "h": h, "w": w})


def _taller(conv: Convolved, expected: Any) -> tuple[int, ...]:
    shape = list(expected.shape)
    shape[1 if conv.last else 2] += 1
    return tuple(shape)


def _outputs(conv: Convolved, placed: Any, expected: Any) -> None:
    """Outputs whose pixels no product writes, or that lie where something is read."""
    for axis in range(3):
        strides = [int(np.prod(expected.shape[at + 1 :])) for at in range(4)]
        strides[axis] = strides[axis] + (3 if axis else -1)
        if conv.last and axis == 2:  # pixels apart are served where rows and images follow
            continue
        if not conv.last and axis == 1:  # features apart, too
            strides[1] = int(np.prod(expected.shape[2:])) - 1
        apart = conv.device.empty(expected.shape, conv.dtype, strides=strides)
        with pytest.raises(ValueError, match="out has its pixels unevenly apart, or overlapping"):
            conv.served(placed, out=apart, stream=conv.stream)
    if conv.last:
        close = conv.device.empty(
            expected.shape, conv.dtype, strides=[*(s for s in _steps(expected.shape, expected.shape[3] - 1)), 1]
        )
        with pytest.raises(ValueError, match="out has its pixels unevenly apart, or overlapping"):
            conv.served(placed, out=close, stream=conv.stream)
    for operand in conv.placed:
        there = tvm_ffi.from_dlpack(Capsule(operand.data_ptr(), expected.shape, conv.dtype, 0))
        with pytest.raises(ValueError, match="out shares memory with the weight or the bias"):
            conv.served(placed, out=there, stream=conv.stream)


def _steps(shape: Any, pixel: int) -> list[int]:
    """Strides of images, rows and pixels that lie so far apart."""
    return [pixel * shape[1] * shape[2], pixel * shape[2], pixel]


def _weights(conv: Convolved) -> None:
    """Weights and biases that are not as the op says."""
    weight, bias = conv.placed
    empty, dtype, f = conv.device.empty, conv.dtype, conv.meaning["f"]
    shape = tuple(weight.shape)
    nowhere = [tvm_ffi.from_dlpack(Capsule(0, size, dtype, 0)) for size in (shape, (f,))]
    contiguous, channels = "weight must be contiguous", "bias has rank . and extent .*; expected one contiguous axis of"
    for operands, words, kind in (
        ((conv.weight.astype(np.float32), bias), "weight lives on the CPU", ValueError),
        ((empty(shape, "int32"), bias), "weight has dtype", TypeError),
        ((empty((*shape, 1), dtype), bias), contiguous, ValueError),
        ((empty(shape, dtype, strides=[*(2 * s for s in _strides(shape))][:3] + [2]), bias), contiguous, ValueError),
        ((nowhere[0], bias), contiguous, ValueError),
        ((weight, conv.bias.astype(np.float32)), "bias lives on the CPU", ValueError),
        ((weight, empty((f,), "int32")), "bias has dtype", TypeError),
        ((weight, empty((f, 1), dtype)), channels, ValueError),
        ((weight, empty((f + 1,), dtype)), channels, ValueError),
        ((weight, empty((f,), dtype, strides=[2])), channels, ValueError),
        ((weight, nowhere[1]), channels, ValueError),
    ):
        with pytest.raises(kind, match=words):
            conv.op.bind(*operands)
    if conv.meaning.epilogue:
        with pytest.raises(ValueError, match="its epilogue adds a bias: bind one"):
            conv.op.bind(weight)
    other = Device(1)
    driver = Driver()
    driver.fail("cuModuleLoadData", "2", 1)
    with pytest.raises((RuntimeError, ValueError)):
        slot, record = (
            conv.pack.table_index(conv.op.entry),
            tvm_ffi.from_dlpack(_aligned(np.from_dlpack(conv.served.bound.record))),
        )
        there = tvm_ffi.from_dlpack(Capsule(other.empty(shape, dtype).data_ptr(), shape, dtype, 1))
        conv.pack.library().function("ht_bind")(slot, there, other.upload(conv.bias), record)
    driver.fail("cuModuleLoadData", "")


def _odd_weight(conv: Convolved, x: Any, expected: Any) -> None:
    """A weight at an address that wide copies do not take: another kernel serves it, and is counted; or none does."""
    weight, name = conv.device.empty(conv.weight.shape, conv.dtype, skip=1), conv.op.name
    conv.device.put(weight, conv.weight)
    served, placed, y = conv.op.bind(weight, conv.placed[1]), conv.device.upload(x), _out(conv, expected)
    served.prepare(conv.stream)
    before = conv.pack.stats()[name]["fallbacks"]
    copies = [dict(MicroKernel.parse(kernel).params)["v"] for kernel in conv.op.entry.kernels]
    if min(copies) > 1:
        with pytest.raises(ValueError, match=r"multiple of|aligned|address"):
            served(placed, out=y, stream=conv.stream)
        return
    served(placed, out=y, stream=conv.stream)
    conv.device.wait(conv.stream)
    assert np.array_equal(conv.device.download(y, conv.dtype).astype(np.float64), expected), "a weight at an odd address"
    assert conv.pack.stats()[name]["fallbacks"] - before == (max(copies) > 1)


def _strides(shape: Any) -> list[int]:
    return [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]


def _driver(conv: Convolved, x: Any, expected: Any) -> None:
    """Every launch fails once; the thread keeps its context; the framework's memory goes back to it."""
    driver, placed, out, current = Driver(), conv.device.upload(x), _out(conv, expected), ctypes.c_void_p(0)
    for nth in range(1, 2 if conv.plain else 3):
        driver.fail("cuLaunchKernel", "2", nth)
        with pytest.raises(RuntimeError, match=r"\(2\)"):
            conv.served(placed, out=out, stream=conv.stream)
        driver.fail("cuLaunchKernel", "")
    driver.fail("cuCtxPushCurrent", "2", 1)
    with pytest.raises(RuntimeError, match=r"cuCtxPushCurrent: .*\(2\)"):
        conv.served(placed, out=out, stream=conv.stream)
    driver.fail("cuCtxPushCurrent", "")
    conv.served.prepare(conv.device.stream())
    conv.right(x, expected, placed, "after the driver's refusals")
    conv.device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, "the thread had no context"
    if not conv.plain:
        framework = Allocator(conv.device)
        with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), conv.device.stream()):
            conv.served(DLTensorTestWrapper(placed), out=out)
        assert len(framework.given) == 1 and framework.returned == 1, "the columns' memory went back"


def _forked(conv: Convolved, placed: Any, expected: Any) -> None:
    """A child that was forked after CUDA began is refused in words."""
    out = _out(conv, expected)

    def refused() -> None:
        with pytest.raises(RuntimeError, match="a fork cannot use it: start the process with spawn"):
            conv.served(placed, out=out, stream=conv.stream)
        with pytest.raises(RuntimeError, match="a fork cannot use it"):
            conv.served.prepare(conv.stream)

    assert not failure_of(refused)
