"""What no server should do to a CUDA device, done with an op of any kind: refused in words or computed right, and then all
is right. Scenarios of cuda_scenarios.py, for a stand-in of two devices.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Iterator
from typing import Any

import ml_dtypes  # noqa: F401  tells numpy of bf16
import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.ops.dtypes import DTYPES
from haotuner.spec import numerics
from haotuner.spec.op import Op
from haotuner.spec.shape import Shape
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_served import counts
from tests.standin.apart import failure_of
from tests.standin.client import Driver

SIZE = 9  # of every dynamic axis
FAR = 1 << 50  # an address that nobody has
PAST = 2**31
GLOBAL, BLOCKING, NON_BLOCKING, CAPTURE_INVALIDATED = 0, 0, 1, 901
NOT_TOO_LONG_S = 20.0  # of processors: a refusal takes milliseconds; what sleeps too long is ended
LOST = "the device is lost to this process, this call may not be the cause: end the process and start another"


class Called:
    """An op of any kind on a device, bound where its kind binds, and one call of it."""

    def __init__(self, path: str, ordinal: int = 0) -> None:
        self.device, self.pack = Device(ordinal), haotuner.load(path, device=f"cuda:{ordinal}")
        (name,) = self.pack.ops
        self.op, self.meaning, self.stream = self.pack.op(name), Op.parse(name), self.device.stream()
        self.values = numerics.draw(self.meaning, self.shape(), np.random.default_rng(7))
        self.kept = {
            operand: self.device.upload(self.values[operand]) for operand in self.constants if hasattr(self.op, "bind")
        }
        self.bound = self.op.bind(**self.kept) if self.kept else None
        product = self.op.entry.kind == "batch_matmul"  # has nothing to prepare
        self.prepares = self.bound is not None or (hasattr(self.op, "prepare") and not product)
        self.inputs = [operand for operand in self.values if self.bound is None or operand not in self.constants]
        self.placed = {operand: self.device.upload(self.values[operand]) for operand in self.inputs}
        self.y = self.out()
        self.prepare(self.stream)

    def prepare(self, stream: int) -> None:
        """Memory for a stream, where the kind wants any."""
        if self.prepares:
            (self.bound or self.op).prepare(stream)

    @property
    def constants(self) -> tuple[str, ...]:
        """What is bound."""
        return "weight", *self.meaning.channel_operands

    def shape(self, **sizes: int) -> Shape:
        """The shape of a call, every dynamic axis of one size but for these."""
        return Shape.of(dict.fromkeys(self.meaning.dynamic, SIZE) | sizes)

    @property
    def written(self) -> str:
        """The type of the output, as numpy names it."""
        return DTYPES[self.meaning.dtype_of(self.meaning.meaning.output)].numpy

    def extents(self, name: str, **sizes: int) -> tuple[int, ...]:
        """Of an operand; of the output where it has no name, and of what lies as the output does."""
        meaning = self.meaning.meaning
        operand = next((candidate for candidate in meaning.inputs if candidate.name == name), meaning.output)
        return self.meaning.operand_shape(operand, self.shape(**sizes))

    def out(self) -> Any:
        return self.device.empty(self.extents(""), self.written)

    def at(self, tensor: Any, dtype: str, shape: Any = None, strides: Any = None, ordinal: int | None = None) -> Any:
        """A tensor at another's address, or at an address, with another description."""
        data = tensor if isinstance(tensor, int) else tensor.data_ptr()
        where = self.device.ordinal if ordinal is None else ordinal
        return tvm_ffi.from_dlpack(Capsule(data, tuple(tensor.shape if shape is None else shape), dtype, where, strides))

    def call(self, out: Any = None, stream: int | None = None, **instead: Any) -> None:
        """Queue it with some operands, or the output, in another's place."""
        stream, operands, y = (
            self.stream if stream is None else stream,
            self.placed | instead,
            self.y if out is None else out,
        )
        if self.bound is not None:
            self.bound(operands.pop("x"), out=y, stream=stream, **operands)
        else:
            self.op.run(*operands.values(), out=y, stream=stream)

    def right(self, what: object, out: Any = None, values: Any = None, stream: int | None = None) -> None:
        """What was queued is what the judge expects."""
        self.device.wait(self.stream if stream is None else stream)
        output = self.device.download(self.y if out is None else out, self.written)
        verdict = numerics.check(self.meaning, self.values | (values or {}), output)
        assert not verdict.wrong, f"{what}: {verdict}"

    def again(self, what: object) -> None:
        """An ordinary call, behind something that was not."""
        self.device.put(self.y, np.zeros(self.extents(""), self.written))
        self.call()
        self.right(f"after {what}")

    def either(self, what: object, *, out: Any = None, values: Any = None, **instead: Any) -> None:
        """Right, or refused by the op's name without a launch."""
        driver = Driver()
        before = driver.count("cuLaunchKernel")
        try:
            self.call(out=out, **instead)
        except ValueError as error:
            assert str(error).startswith(f"{self.op.name}: "), error
            assert driver.count("cuLaunchKernel") == before, what
        else:
            self.right(what, out, values)
        self.again(what)

    def refused(self, what: object, words: str, out: Any = None, **instead: Any) -> None:
        """Refused by the op's name, without a launch."""
        driver = Driver()
        before = driver.count("cuLaunchKernel")
        with pytest.raises(ValueError, match=words) as raised:
            self.call(out=out, **instead)
        assert str(raised.value).startswith(f"{self.op.name}: "), raised.value
        assert driver.count("cuLaunchKernel") == before, what


def misfortunes(path: str) -> None:
    """Tensors where and as no kernel reads them, other devices and streams, no memory, captures, a fork, a lost device."""
    case = Called(path)
    case.again("nothing")
    for scenario in (_elsewhere, _off, _apart, _overlapping, _nothing, _past, _no_memory, _captures, _forked, _lost):
        scenario(case)


def _tensors(case: Called) -> Iterator[tuple[str, Any, str]]:
    """What a call is given: operand (none for the output), tensor and type."""
    for name in case.inputs:
        yield name, case.placed[name], case.values[name].dtype.name
    yield "", case.y, case.written


def _elsewhere(case: Called) -> None:
    """A tensor on another GPU, on the host, and a stream of another context."""
    for name, tensor, dtype in _tensors(case):
        there = case.at(tensor, dtype, ordinal=1)
        case.refused(name, "cuda:1", **{name or "out": there})
        case.refused(
            name, "lives on the CPU|does not live on a CUDA device", **{name or "out": _on_host(case, tensor, dtype)}
        )
    if case.bound is not None:
        far = {
            name: case.at(FAR, case.values[name].dtype.name, case.values[name].shape, ordinal=7) for name in case.constants
        }
        with pytest.raises(ValueError, match="cuda:7"):
            case.op.bind(**far)
    other = Device(1).stream()
    case.prepare(other)
    with pytest.raises(RuntimeError, match="is the stream alive, and one of this device's primary context"):
        case.call(stream=other)
    case.again("another device")


def _on_host(case: Called, tensor: Any, dtype: str) -> Any:
    return np.zeros(tuple(tensor.shape), dtype) if dtype != "bfloat16" else np.zeros(tuple(tensor.shape), "float32")


def _off(case: Called) -> None:
    """Tensors that begin an element, and half a vector, off."""
    for name, _, dtype in _tensors(case):
        for skip in (1, 4):
            if name:
                case.either((name, skip), **{name: case.device.upload(case.values[name], skip=skip)})
            else:
                off = case.device.empty(case.extents(""), dtype, skip=skip)
                case.either(("out", skip), out=off)


def _apart(case: Called) -> None:
    """Each axis a little apart; elements apart; and negative strides."""
    for name, tensor, dtype in _tensors(case):
        shape = case.extents(name)
        steps = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
        for axis in range(len(shape) - 1):
            wide = [step + (3 * (axis >= i)) * int(np.prod(shape[i + 1 : -1])) for i, step in enumerate(steps)]
            wide = [*wide[:-1], 1]
            if not name:
                case.either(("out", wide), out=case.device.empty(shape, dtype, strides=wide))
            else:
                case.either((name, wide), **{name: case.device.upload(case.values[name], strides=wide)})
        twice = tuple(2 * step for step in steps)
        if name:
            spread = case.device.upload(np.repeat(case.values[name], 2, axis=-1))
            case.either((name, "twice"), **{name: case.at(spread, dtype, shape, twice)})
            back = case.at(tensor, dtype, shape, tuple(-step for step in steps))
            case.refused((name, "back"), "stride|contiguous|gaps", **{name: back})


def _overlapping(case: Called) -> None:
    """An output on what is read, beside where it lies; and one whose rows lie on each other."""
    size = np.dtype(case.written).itemsize
    for name in case.inputs:
        tensor = case.placed[name]
        if np.prod(tensor.shape) > 1:
            behind = case.at(tensor.data_ptr() + size, case.written, case.extents(""))
            case.refused(name, "shares (some of its )?memory", out=behind)
    shape = case.extents("")
    if len(shape) > 1:
        same = case.at(case.y, case.written, shape, (0,) * (len(shape) - 1) + (1,))
        case.refused("out", "overlap|stride|unevenly apart", out=same)
    case.again("overlaps")


def _nothing(case: Called) -> None:
    """No rows are no work."""
    driver, axis = Driver(), case.meaning.dynamic[0]
    before = driver.count("cuLaunchKernel")
    empty = {name: case.device.empty(case.extents(name, **{axis: 0}), case.values[name].dtype.name) for name in case.inputs}
    if "offsets" in empty:
        empty["offsets"] = case.device.upload(np.zeros(empty["offsets"].shape, np.int32))
    case.call(out=case.device.empty(case.extents("", **{axis: 0}), case.written), **empty)
    assert driver.count("cuLaunchKernel") == before
    case.again("no rows")


def _past(case: Called) -> None:
    """Extents past 2^31, and strides past 2^40."""
    for axis in case.meaning.dynamic:
        for extent in (PAST, 2**40, 2**62):

            def large(name: str, axis: str = axis, extent: int = extent) -> tuple[int, ...]:
                most = PAST - 1  # of a shape in words
                sizes = case.extents(name, **{axis: most})
                return tuple(each + extent - most if each > most // 8 else each for each in sizes)

            operands = {name: case.at(FAR, case.values[name].dtype.name, large(name)) for name in case.inputs}
            case.refused(
                (axis, extent), "extent|elements|over 2", out=case.at(FAR << 2, case.written, large("")), **operands
            )
    case.again("large extents")


def _no_memory(case: Called) -> None:
    """Memory of a stream that cannot be had: said, and a call goes without it or says what it lacks."""
    driver, stream = Driver(), case.device.stream()
    driver.library.standin_counts_reset()
    driver.fail("cuMemAlloc", "2", 1)
    try:
        case.prepare(stream)
    except RuntimeError as error:
        assert "CUDA_ERROR_OUT_OF_MEMORY (2): free memory of the device" in str(error), error
    else:
        assert not any(name.startswith("cuMemAlloc") for name in counts(driver)), "nobody said that there was no memory"
    driver.fail("cuMemAlloc", "")
    try:
        case.call(stream=stream)
    except RuntimeError as error:
        assert "call prepare(stream) of the bound weight first" in str(error), error
    else:
        case.right("without memory", stream=stream)
    case.prepare(stream)
    case.call(stream=stream)
    case.right("with memory", stream=stream)


def _captures(case: Called) -> None:
    """Memory asked for inside a capture of the strictest mode, and the legacy stream beside one."""
    device, driver, other = case.device, Driver(), case.device.stream()

    def during(act: Callable[[], Any], *, blocking: bool) -> str:
        stream, graph, message = ctypes.c_void_p(0), ctypes.c_void_p(0), ""
        device.inside("cuStreamCreate", ctypes.byref(stream), BLOCKING if blocking else NON_BLOCKING)
        device.inside("cuStreamBeginCapture_v2", stream, GLOBAL)
        try:
            act()
        except RuntimeError as error:
            message = str(error)
            assert "a stream is being captured: load, bind and warm up before the capture" in message, message
        if message:
            with pytest.raises(AssertionError, match=str(CAPTURE_INVALIDATED)):
                device.inside("cuStreamEndCapture", stream, ctypes.byref(graph))
        else:
            device.inside("cuStreamEndCapture", stream, ctypes.byref(graph))
        case.again("a capture")
        return message

    driver.library.standin_counts_reset()
    message = during(lambda: case.prepare(other), blocking=False)
    assert bool(message) == any(name.startswith("cuMemAlloc") for name in counts(driver)), message
    case.prepare(0)
    assert "(906)" in during(lambda: case.call(stream=0), blocking=True)
    case.prepare(other)
    device.begin(other)
    case.call(stream=other)
    graph = device.end(other)
    device.put(case.y, np.zeros(case.extents(""), case.written))
    device.replay(graph, other)
    case.right("a graph", stream=other)


def _forked(case: Called) -> None:
    """A child that was forked after CUDA began."""

    acts: list[Callable[[], Any]] = [case.call]
    acts += [lambda: case.prepare(case.stream)] if case.prepares else []
    acts += [lambda: case.op.bind(**case.kept)] if case.kept else []

    def refused() -> None:
        for act in acts:
            with pytest.raises(RuntimeError, match="a fork cannot use it"):
                act()

    failure = failure_of(refused)
    assert not failure, failure
    case.again("a fork")


def _lost(case: Called) -> None:
    lost(case.call, case.device, case.stream, case.pack, RuntimeError)


def lost(call: Callable[[], Any], device: Device, stream: int, pack: Any, error: type[Exception]) -> None:
    """After a fault every call says that the device is lost, at once, and closing is quiet."""
    Driver().fail("cuLaunchKernel", "async:700")
    call()
    begin = time.process_time()
    with pytest.raises(AssertionError, match="CUDA error 700"):
        device.wait(stream)
    for _ in range(2):
        with pytest.raises(error, match=LOST):
            call()
    pack.close()
    assert time.process_time() - begin < NOT_TOO_LONG_S
