"""What a server does on CUDA with models whose sizes depend on data, in a process whose driver is the stand-in."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.errors import HaotunerError, PackClosed, UsageError
from haotuner.graph.interpret import interpret
from haotuner.runtime.native_library import PLACE
from haotuner.verify.device_numbers import answered_chain
from haotuner.verify.pack_check import verify
from tests.runtime.chain_graphs import ON_DEVICE as GRAPHS
from tests.runtime.cuda_memory import KDL_CUDA, Capsule, Device
from tests.runtime.cuda_models import free_bytes
from tests.runtime.cuda_served import counts
from tests.standin.apart import failure_of
from tests.standin.client import Driver

SEED = 12
SIZES = ((5, 7), (1, 0), (9, 2), (0, 3), (4, 1), (9, 9))  # rows, and what the numbers of a length say


def given(name: str, rows: int, length: int) -> dict[str, Any]:
    """Arrays of a request."""
    x = np.random.default_rng(10 * rows + length).standard_normal((rows, 8)).astype(np.float32)
    return {"x": x} if name in ("chosen", "noisy") else {"x": x, "long": np.full(2, length)}


class Server:
    """A model of a pack on one device, and a stream."""

    def __init__(self, path: str, name: str, ordinal: int = 0) -> None:
        self.name, self.graph, self.device = name, GRAPHS[name], Device(ordinal)
        self.pack = haotuner.load(path, device=f"cuda:{ordinal}")
        self.model = self.pack.model(name)
        self.stream = self.device.stream()

    def tensors(self, arrays: Mapping[str, Any]) -> dict[str, Any]:
        """The same on the device."""
        return {name: self.device.upload(array) for name, array in arrays.items()}

    def queue(self, tensors: Mapping[str, Any], stream: int | None = None) -> dict[str, Any]:
        """A call whose outputs get memory when their shapes are known."""
        ends = self.model.outputs

        def made(index: int, shape: tuple[int, ...]) -> Any:
            return self.device.empty(shape, ends[index].dtype.name)

        given = [tensors[end.name] for end in self.model.inputs]
        outputs: dict[str, Any] = self.model.placed(given, SEED, self.stream if stream is None else stream, made)
        return outputs

    def values(self, tensor: Any, like: Any) -> Any:
        """What a contiguous tensor holds, of any rank."""
        array = np.zeros_like(like)
        if array.size:
            arguments = ctypes.c_void_p(array.ctypes.data), ctypes.c_uint64(tensor.data_ptr()), ctypes.c_size_t(array.nbytes)
            self.device.inside("cuMemcpyDtoH_v2", *arguments)
        return array

    def judge(self, arrays: Mapping[str, Any], outputs: Mapping[str, Any], what: object) -> None:
        """The device's numbers beside the reference's."""
        expected = interpret(self.graph, dict(arrays), SEED)
        for name, tensor in outputs.items():
            assert tuple(tensor.shape) == expected[name].shape, (
                f"{what} {name}: {tuple(tensor.shape)}, {expected[name].shape}"
            )
            got = self.values(tensor, expected[name])
            np.testing.assert_allclose(got, expected[name], rtol=3e-4, atol=3e-4, err_msg=f"{what} {name}")

    def ask(self, rows: int, length: int) -> None:
        """One request, judged."""
        arrays = given(self.name, rows, length)
        outputs = self.queue(self.tensors(arrays))
        self.device.wait(self.stream)
        self.judge(arrays, outputs, f"{self.name} {rows} {length}")


def numbers(path: str) -> None:
    """Requests of sizes that grow and shrink: counts, random numbers, loops and branches, each as the reference has it."""
    for name in GRAPHS:
        server = Server(path, name)
        for rows, length in SIZES:
            server.ask(rows, length)
        stats = server.model.stats()
        assert stats["contexts"] == 1 + sum(segment.stats()["contexts"] for segment in server.model.segments.values()), stats
        arrays = given(name, 5, 7)
        outputs = answered_chain(server.model, arrays, SEED)
        for end, expected in interpret(GRAPHS[name], arrays, SEED).items():
            np.testing.assert_allclose(outputs[end], expected, rtol=3e-4, atol=3e-4)


def sound(path: str) -> None:
    """The pack passes its check."""
    assert not verify(Path(path))


class Kept:
    """A request again and again, whose outputs lie where they lay at its first call."""

    def __init__(self, server: Server, arrays: Mapping[str, Any]) -> None:
        self.server, tensors = server, server.tensors(arrays)
        self._given = [tensors[end.name] for end in server.model.inputs]
        self._places: dict[tuple[int, tuple[int, ...]], Any] = {}

    def queue(self) -> dict[str, Any]:
        """A call."""
        outputs: dict[str, Any] = self.server.model.placed(self._given, SEED, self.server.stream, self._made)
        return outputs

    def wait(self) -> None:
        """A call, done."""
        self.queue()
        self.server.device.wait(self.server.stream)

    def _made(self, index: int, shape: tuple[int, ...]) -> Any:
        if (index, shape) not in self._places:
            self._places[index, shape] = self.server.device.empty(shape, self.server.model.outputs[index].dtype.name)
        return self._places[index, shape]


def steady(path: str) -> None:
    """A call of sizes that its stream has had takes no memory, and reads of the device what the host must know, no more."""
    driver = Driver()
    for name, reads in {"noisy": 0, "chosen": 2, "grown": 1, "branched": 1}.items():
        request = Kept(Server(path, name), given(name, 9, 9))
        request.wait()
        request.wait()
        driver.library.standin_counts_reset()
        request.queue()
        calls = counts(driver)
        assert not calls.keys() & {"cuMemAlloc", "cuMemFree", "cuCtxSynchronize"}, (name, calls)
        assert calls.get("cuMemcpyDtoHAsync", 0) == reads, (name, calls)
        writes = calls.get("cuMemcpyHtoDAsync", 0)
        assert calls.get("cuStreamSynchronize", 0) <= reads + writes, (name, calls)
        request.server.device.wait(request.server.stream)


def captured(path: str) -> None:
    """A captured stream is refused before anything is queued, and the capture goes on."""
    driver = Driver()
    for name in GRAPHS:
        server = Server(path, name)
        server.ask(5, 7)
        tensors = server.tensors(given(name, 5, 7))
        server.device.begin(server.stream)
        driver.library.standin_counts_reset()
        with pytest.raises(HaotunerError, match="asks the device for sizes in the midst of a call, which no graph can hold"):
            server.queue(tensors)
        calls = counts(driver)
        assert calls.keys() <= {"cuStreamIsCapturing", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}, calls
        server.device.end(server.stream)
        server.ask(5, 7)


def streams(path: str) -> None:
    """Threads with streams of their own and one stream that two threads share: no call uses another's memory."""
    server, errors = Server(path, "looped"), list[str]()
    shared = server.device.stream()

    def serve(index: int) -> None:
        try:
            stream = shared if index < 2 else server.device.stream()
            requests = []
            for rows, length in SIZES[index:] + SIZES[:index]:
                arrays = given("looped", rows, length)
                requests.append((arrays, server.queue(server.tensors(arrays), stream)))
            server.device.wait(stream)
            for arrays, outputs in requests:
                server.judge(arrays, outputs, f"thread {index}")
        except BaseException as error:  # told by the main thread
            errors.append(repr(error)[:600])

    _together([partial(serve, index) for index in range(4)])
    assert not errors, errors


def _together(calls: Sequence[Callable[[], None]]) -> None:
    running = [threading.Thread(target=call) for call in calls]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()


def refusals(path: str) -> None:
    """What does not fit is said, with its name, and the next call is right."""
    server = Server(path, "grown")
    arrays = given("grown", 5, 7)
    tensors, device = server.tensors(arrays), server.device
    first = server.graph.outputs[0]
    wrong: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
        "of the host": ({**tensors, "x": arrays["x"]}, {}, "x must be an array of float32 on cuda:0, got float32 on the"),
        "another type": ({**tensors, "long": device.empty((2,))}, {}, "long must be an array of int64 on cuda:0"),
        "an input less": ({"x": tensors["x"]}, {}, "long is missing"),
        "no tensor": ({**tensors, "x": 3}, {}, "x is not a tensor"),
        "an output more": (tensors, {"more": tensors["x"]}, "no output 'more'"),
        "an output of another size": (tensors, {first: device.empty((7, 8))}, f"out[{first}] is of another type or shape"),
        "an output of another type": (tensors, {first: device.empty((8, 8), "int64")}, "is of another type or shape"),
        "an output of the host": (tensors, {first: np.zeros((8, 8), np.float32)}, "is of another type or shape"),
        "an output apart": (tensors, {first: device.empty((8, 8), strides=(9, 1))}, "must be contiguous"),
        "an output of no kind": (tensors, {first: "y"}, "is no tensor: pass one of the pack's device"),
        "no output of that kind": (tensors, {}, f"pass out=: {first}, float32 (8, 8)"),
        "a size below 0": ({**tensors, "long": device.upload(np.array([-7, -9]))}, {}, "a size of -6"),
    }  # fmt: skip
    for what, (inputs, out, words) in wrong.items():
        with pytest.raises(UsageError) as refused:
            server.model.run(inputs, out=out, seed=SEED, stream=server.stream)
        assert words in str(refused.value), f"{what}: {refused.value}"
    ends = {first: device.empty((8, 8)), server.graph.outputs[1]: device.empty((8, 2))}
    outputs = server.model.run(tensors, out=ends, seed=SEED, stream=server.stream)
    device.wait(server.stream)
    assert all(outputs[name] is tensor for name, tensor in ends.items())
    server.judge(arrays, outputs, "in place")
    with pytest.raises(UsageError, match="steps are timed on CPUs"):
        server.model.step_times(tensors)
    bound = Server(path, "branched")
    with pytest.raises(UsageError, match="batch is above 9"):
        bound.queue(bound.tensors(given("branched", 10, 1)))
    server.pack.close()
    with pytest.raises(PackClosed):
        server.queue(tensors)


class Array:
    """What CuPy's array is to a pack."""

    def __init__(self, tensor: Any, dtype: str) -> None:
        self.tensor, self.shape, self.dtype = tensor, tuple(tensor.shape), np.dtype(dtype)
        self.device = SimpleNamespace(id=0)

    def __dlpack_device__(self) -> tuple[int, int]:
        return KDL_CUDA, 0

    def __dlpack__(self, **_: Any) -> Any:
        return Capsule(self.tensor.data_ptr(), self.shape, self.dtype.name, 0).__dlpack__()


def framework(path: str) -> None:
    """The framework of the first input makes the outputs, on its current stream."""
    server, ordinals = Server(path, "branched"), list[int]()
    arrays = given("branched", 6, 7)

    def empty(shape: tuple[int, ...], dtype: Any) -> Array:
        return Array(server.device.empty(shape, np.dtype(dtype).name), dtype)

    def current(ordinal: int) -> Any:
        ordinals.append(ordinal)
        return SimpleNamespace(ptr=server.stream)

    attributes = {"ndarray": Array, "empty": empty, "cuda": SimpleNamespace(get_current_stream=current)}
    sys.modules["cupy"] = SimpleNamespace(**attributes)  # type: ignore[assignment]
    inputs = {name: Array(tensor, arrays[name].dtype.name) for name, tensor in server.tensors(arrays).items()}
    output = Array(server.device.empty((5, 8)), "float32")
    outputs = server.model.run(inputs, seed=SEED, out={server.graph.outputs[1]: output})
    server.device.wait(server.stream)
    assert ordinals == [0] and outputs[server.graph.outputs[1]] is output
    server.judge(arrays, {name: array.tensor for name, array in outputs.items()}, "a framework's")


def doors(path: str) -> None:
    """The native functions take what they say and nothing else; no stream is the one that tvm-ffi was told."""
    server = Server(path, "grown")
    arrays = given("grown", 5, 7)
    tensors = server.tensors(arrays)
    model, room, buffers = (
        server.model.bound._native.address,
        np.zeros(2, int),
        [server.device.empty((8, 8)) for _ in range(2)],
    )
    queue, place_output = server.model.bound._queue, server.model.bound._placement
    ends = [tensors[end.name] for end in server.model.inputs]
    addresses = list[int]()

    def there(_: int | None, output: int, call_address: int) -> int:
        addresses.append(call_address)
        return int(buffers[output].data_ptr())

    back = PLACE(there)
    address = ctypes.cast(back, ctypes.c_void_p).value
    for wrong in (
        (), (None, 0, 0, address, room, *ends), (model, 0, 0, address, room), (model, 0, 0, address, room, *ends, 0),
        (model, "0", 0, address, room, *ends), (model, 0, "0", address, room, *ends), (model, 0, 0, "0", room, *ends),
        (model, 0, 0, address, 0, *ends), (model, 0, 0, address, room[:1], *ends), (model, 0, 0, address, room[None], *ends),
        (model, 0, 0, address, room.view(np.int32), *ends),
        (model, 0, 0, address, server.device.empty((2,), "int64"), *ends),
    ):  # fmt: skip
        with pytest.raises(
            TypeError, match=r"model_queue_placed: expected \(model, stream, seed, address, int64 array, inputs\)"
        ):
            queue(*wrong)
    with pytest.raises(TypeError, match="input x is not a tensor"):
        queue(model, 0, 0, address, room, 3, ends[1])
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), server.stream):
        queue(model, None, SEED, address, room, *ends)
    server.device.wait(server.stream)
    assert room.tolist() == [5, 8] and len(addresses) == 2
    server.judge(arrays, {server.graph.outputs[0]: buffers[0]}, "tvm-ffi's stream")
    for wrong in ((), (None, 0, addresses[0], buffers[0]), (model, 2, addresses[0], buffers[0]), (model, 0, "0", buffers[0]),
                  (model, 0, addresses[0]), (model, 0, addresses[0], buffers[0], 0)):  # fmt: skip
        with pytest.raises(TypeError, match=r"model_place: expected \(model, output, address, tensor\)"):
            place_output(*wrong)


def faults(path: str) -> None:
    """Each call of the driver fails at several places of a call: it is said, and the model serves what comes next."""
    driver, current, seen = Driver(), ctypes.c_void_p(0), dict[str, set[str]]()
    kinds = {
        "cuMemAlloc": ("2", ("which cannot be had", "memory for partial sums")),
        "cuLaunchKernel": ("1", ("CUDA_ERROR_INVALID_VALUE",)),
        "cuMemcpyDtoHAsync": ("1", ("reading what tells a size or a branch",)),
        "cuMemcpyHtoDAsync": ("1", ("copying what the host makes",)),
        "cuMemcpyDtoDAsync": ("1", ("copying an output", "working memory of a model")),
        "cuMemsetD32Async": ("1", ("saying which turn of a loop it is",)),
        "cuCtxPushCurrent": ("2", ("cuCtxPushCurrent",)),
        "cuStreamIsCapturing": ("2", ("asking whether the stream is captured",)),
    }
    for name in ("grown", "looped", "branched"):
        server = Server(path, name)
        request = Kept(server, given(name, 9, 9))
        request.wait()
        for called, (code, words) in kinds.items():
            for nth in (1, 2, 5):
                server.model.trim()
                server.ask(1, 1)
                driver.fail(called, code, nth=nth)
                try:
                    request.queue()
                except HaotunerError as error:
                    matches = [word for word in words if word in str(error)]
                    assert matches, f"{name} {called} {nth}: {error}"
                    seen.setdefault(called, set()).update(matches)
                driver.fail(called, "")
                server.device.call("cuCtxGetCurrent", ctypes.byref(current))
                assert not current.value, f"after {called}"
        server.ask(9, 9)
    assert seen.keys() == kinds.keys(), seen


def forked(path: str) -> None:
    """A fork cannot use the device, and says so; the parent goes on."""
    server = Server(path, "chosen")
    server.ask(5, 7)
    tensors = server.tensors(given("chosen", 5, 7))

    def refused() -> None:
        with pytest.raises(HaotunerError, match="a fork cannot use it: start the process with spawn"):
            server.queue(tensors)

    assert not failure_of(refused)
    server.ask(9, 2)


def freed(path: str) -> None:
    """What a model had on the device is free once it is closed."""
    device = Device()
    for name in GRAPHS:
        left = []
        for _ in range(2):  # what a stream has for parts of sums stays
            server = Server(path, name)
            tensors = server.tensors(given(name, 9, 9))
            server.queue(tensors)
            server.device.wait(server.stream)
            own = free_bytes(device)
            server.model.trim()
            assert free_bytes(device) > own
            server.pack.close()
            del server.model
            gc.collect()
            left.append(free_bytes(device) - own)
        assert left[0] > 0 and left[1] > 0, left


def devices(path: str) -> None:
    """The second device serves its own tensors, and refuses those of the first."""
    first, second = Server(path, "looped"), Server(path, "looped", 1)
    first.ask(5, 7)
    second.ask(5, 7)
    with pytest.raises(UsageError, match="x must be an array of float32 on cuda:1, got float32 on cuda:0"):
        second.queue(first.tensors(given("looped", 5, 7)))


ALL = (numbers, sound, steady, captured, streams, refusals, framework, doors, faults, forked, freed, devices)
SCENARIOS: dict[str, Callable[[str], None]] = {scenario.__name__: scenario for scenario in ALL}


def run(name: str, *words: str) -> None:
    """A scenario by its name."""
    SCENARIOS[name](*words)


if __name__ == "__main__":
    run(*sys.argv[1:])
