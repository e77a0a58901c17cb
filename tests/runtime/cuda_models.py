"""What a server does with whole models on CUDA, in a process whose driver is the stand-in: ``python -m … NAME PACK``."""

from __future__ import annotations

import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.errors import HaotunerError, PackClosed, PackInvalid, UsageError
from haotuner.graph.interpret import interpret
from tests.runtime import empty_models
from tests.runtime.cuda_memory import Capsule, Device
from tests.runtime.cuda_model_packs import GRAPHS, given
from tests.runtime.cuda_odd_models import SAME
from tests.runtime.cuda_served import counts
from tests.standin.apart import failure_of
from tests.standin.client import Driver

NAME = "encoder"
ALLOWED = 2e-4


class Server:
    """A model of a pack on one device, a stream, and the reference."""

    def __init__(self, path: str, ordinal: int = 0, name: str = NAME) -> None:
        self.device, self.graph = Device(ordinal), GRAPHS[SAME.get(name, name)]
        self.pack = haotuner.load(path, device=f"cuda:{ordinal}")
        self.model = self.pack.model(name)
        self.stream = self.device.stream()

    def inputs(self, batch: int, seq: int) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays of a request, and as tensors of the device."""
        arrays = given(self.graph, batch, seq)
        return arrays, {name: self.device.upload(array) for name, array in arrays.items()}

    def outputs(self, batch: int, seq: int) -> dict[str, Any]:
        """Room for the results."""
        shapes = interpret(self.graph, given(self.graph, batch, seq))
        return {name: self.device.empty(shapes[name].shape, shapes[name].dtype.name) for name in self.graph.outputs}

    def judge(self, arrays: dict[str, Any], outputs: dict[str, Any], what: object = "") -> None:
        """The device's numbers beside the reference's."""
        expected = interpret(self.graph, arrays)
        for name, tensor in outputs.items():
            got = self.device.download(tensor, expected[name].dtype.name)
            far = np.abs(got.astype(np.float64) - expected[name]) / np.maximum(1, np.abs(expected[name]))
            assert np.max(far, initial=0) <= ALLOWED, f"{what} {name}: {np.max(far):.2g} away"

    def ask(self, batch: int, seq: int) -> None:
        """One request, judged."""
        arrays, tensors = self.inputs(batch, seq)
        outputs = self.model.run(tensors, out=self.outputs(batch, seq), stream=self.stream)
        self.device.wait(self.stream)
        self.judge(arrays, outputs, f"{batch} x {seq}")


def numbers(path: str) -> None:
    """Requests of many sizes, small and large in turns: products by their kernels, an empty batch, sizes out of range."""
    server = Server(path)
    for batch, seq in ((1, 1), (2, 7), (4, 64), (1, 33), (3, 5), (2, 70)):
        server.ask(batch, seq)
    stats = server.model.stats()
    assert (stats["out_of_range"], stats["calls"], stats["contexts"], stats["plans"]) == (1, 6, 1, 6), stats
    of_model, of_pack = {step["op"] for step in server.model.schedule.steps if "op" in step}, server.pack.stats()
    assert all(of_pack[name]["calls"] >= 6 for name in of_model), of_pack
    assert stats["arena_bytes"] >= server.model.memory_bytes(batch=4, seq=64)
    empty = {name: server.device.empty((0, 5), "int64") for name in ("ids", "mask")}
    shapes = server.model.shapes(empty)
    out = {name: server.device.empty(shapes[name], server.graph.types[name].dtype.replace("fp", "float")) for name in shapes}
    server.model.run(empty, out=out, stream=server.stream)
    assert [shape[0] for shape in shapes.values()] == [0, 0, 0]


def loops(path: str) -> None:
    """Models of all that groups are made of, in one pack."""
    for name in haotuner.load(path, device="cuda:0").models:
        server = Server(path, name=name)
        for batch, seq in ((1, 2), (3, 7), (2, 33)):
            server.ask(batch, seq)


def sequences(path: str) -> None:
    """A block of threads goes along a sequence, wider than a warp, however few sequences there are."""
    server = Server(path, name="lstm_wide")
    for batch, seq in ((1, 2), (3, 7)):
        server.ask(batch, seq)


def empty(path: str) -> None:
    """Nothing is read of what has no elements, which lies where nobody may read; outputs without elements go there, too."""
    server = Server(path, name=empty_models.NAME)
    page, kinds = empty_models.nowhere(), {"fp32": "float32", "int64": "int64"}

    def tensor(shape: tuple[int, ...], dtype: str) -> Any:
        return server.device.empty(shape, dtype) if 0 not in shape else tvm_ffi.from_dlpack(Capsule(page, shape, dtype, 0))

    for sizes in empty_models.SIZES:
        arrays = empty_models.given(sizes)
        inputs = {name: tensor(array.shape, array.dtype.name) for name, array in arrays.items()}
        for name, array in arrays.items():
            if array.size:
                server.device.put(inputs[name], array)
        shapes = server.model.shapes(inputs)
        out = {name: tensor(tuple(shapes[name]), kinds[server.graph.types[name].dtype]) for name in shapes}
        outputs = server.model.run(inputs, out=out, stream=server.stream)
        server.device.wait(server.stream)
        server.judge(arrays, {name: output for name, output in outputs.items() if 0 not in output.shape}, sizes)


def steady(path: str) -> None:
    """A call of sizes that its stream has had asks the driver for launches alone."""
    server, driver = Server(path), Driver()
    server.ask(4, 40)
    for batch, seq in ((4, 40), (2, 9)):
        _, tensors = server.inputs(batch, seq)
        out = server.outputs(batch, seq)
        driver.library.standin_counts_reset()
        server.model.run(tensors, out=out, stream=server.stream)
        calls = counts(driver)
        allowed = {"cuLaunchKernel", "cuStreamIsCapturing", "cuCtxGetCurrent", "cuCtxPushCurrent", "cuCtxPopCurrent"}
        assert calls.keys() <= allowed and calls["cuLaunchKernel"] >= 10, calls
    server.device.wait(server.stream)


def captured(path: str) -> None:
    """Graphs of two sizes replay new inputs, beside calls of the stream and after the pack was closed; none allocates."""
    server = Server(path)
    device, graphs = server.device, []
    sizes = ((2, 9), (1, 30))
    _, tensors = server.inputs(*sizes[0])
    out = server.outputs(*sizes[0])
    device.begin(server.stream)
    with pytest.raises(HaotunerError, match="may allocate nothing; call the model once at these sizes on this stream"):
        server.model.run(tensors, out=out, stream=server.stream)
    device.end(server.stream)
    server.ask(2, 20)
    for batch, seq in sizes:
        _, tensors = server.inputs(batch, seq)
        out = server.outputs(batch, seq)
        device.begin(server.stream)
        server.model.run(tensors, out=out, stream=server.stream)
        graphs.append((tensors, out, device.end(server.stream)))
    server.ask(4, 50)
    _, tensors = server.inputs(4, 64)
    out = server.outputs(4, 64)
    device.begin(server.stream)
    with pytest.raises(HaotunerError, match="one of these sizes needs"):
        server.model.run(tensors, out=out, stream=server.stream)
    device.end(server.stream)

    def replay(what: str) -> None:
        for (batch, seq), (tensors, out, graph) in zip(sizes, graphs, strict=True):
            arrays = given(server.graph, batch, seq)
            arrays["ids"] = np.random.default_rng(len(what)).integers(0, 50, (batch, seq))
            device.put(tensors["ids"], arrays["ids"])
            device.replay(graph, server.stream)
            server.judge(arrays, out, f"{what} {batch} x {seq}")

    replay("once")
    server.ask(3, 11)
    assert server.model.stats()["contexts"] == 2, server.model.stats()
    replay("and again")
    server.model.trim()
    server.pack.close()
    with pytest.raises(PackClosed):
        server.model.run(tensors, stream=server.stream)
    del server.model
    gc.collect()
    replay("after the pack was closed")


def streams(path: str) -> None:
    """Threads with streams of their own and one stream that two threads share: no call uses another's memory."""
    server = Server(path)
    shared, errors = server.device.stream(), list[str]()
    sizes = ((1, 9), (3, 5), (2, 33), (4, 12))

    def serve(index: int) -> None:
        try:
            stream = shared if index < 2 else server.device.stream()
            requests = []
            for batch, seq in (sizes[index:] + sizes[:index]) * 2:
                arrays, tensors = server.inputs(batch, seq)
                requests.append((arrays, server.model.run(tensors, out=server.outputs(batch, seq), stream=stream)))
            server.device.wait(stream)
            for arrays, outputs in requests:
                server.judge(arrays, outputs, f"thread {index}")
        except Exception as error:  # told by the main thread
            errors.append(repr(error)[:400])

    running = [threading.Thread(target=serve, args=(index,)) for index in range(4)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert not errors, errors
    assert 3 <= server.model.stats()["contexts"] <= 4, server.model.stats()


def many(path: str) -> None:
    """More streams than a model keeps memory for: one that rests gives its up."""
    server = Server(path)
    arrays, tensors = server.inputs(1, 2)
    out = server.outputs(1, 2)
    for _ in range(260):
        stream = server.device.stream()
        server.model.run(tensors, out=out, stream=stream)
        server.device.wait(stream)
    server.judge(arrays, out)
    assert server.model.stats()["contexts"] == 256, server.model.stats()
    server.model.trim()
    assert server.model.stats()["contexts"] == server.model.stats()["arena_bytes"] == 0
    server.ask(2, 7)


def refusals(path: str) -> None:
    """What does not fit is said, with the input's name, and the next call is right."""
    server = Server(path)
    arrays, tensors = server.inputs(2, 7)
    out, device = server.outputs(2, 7), server.device
    wrong: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
        "of the host": ({**tensors, "ids": arrays["ids"]}, out, "ids must be an array of int64 on cuda:0, got int64 on the"),
        "another type": ({**tensors, "mask": device.empty((2, 7))}, out, "must be an array of int64 on cuda:0, got float32"),
        "another rank": ({**tensors, "ids": device.empty((14,), "int64")}, out, "ids has 2 axes"),
        "a dimension twice": ({**tensors, "mask": device.empty((2, 8), "int64")}, out, "but seq is 7 before"),
        "an input less": ({"ids": tensors["ids"]}, out, "mask is missing"),
        "an input more": ({**tensors, "more": tensors["ids"]}, out, "there is no more"),
        "no tensor": ({**tensors, "ids": 3}, out, "ids is not a tensor"),
        "an output more": (tensors, {**out, "more": tensors["ids"]}, "no output 'more'"),
        "an output of another shape": (tensors, {**out, "c": device.empty((2, 8, 32))}, "is of another type or shape"),
        "no output of that kind": (tensors, {}, "no output can be made for a Tensor; pass out="),
        "rows apart": ({**tensors, "ids": device.empty((2, 7), "int64", strides=(9, 1))}, out, "ids must be contiguous"),
    }  # fmt: skip
    name = next(iter(out))
    for what, (inputs, results, words) in wrong.items():
        results = {name if key == "c" else key: tensor for key, tensor in results.items()}
        with pytest.raises(UsageError) as refused:
            server.model.run(inputs, out=results, stream=server.stream)
        assert words in str(refused.value), f"{what}: {refused.value}"
    server.ask(2, 7)


def faults(path: str) -> None:
    """Memory that cannot be had, a launch that fails and weights that find no room are said; then all is right."""
    server, driver = Server(path), Driver()
    _, tensors = server.inputs(4, 30)
    out = server.outputs(4, 30)
    server.ask(1, 9)
    driver.fail("cuMemAlloc", "2")
    with pytest.raises(UsageError, match="bytes of working memory on cuda:0, which cannot be had"):
        server.model.run(tensors, out=out, stream=server.stream)
    server.ask(2, 9)
    driver.fail("cuLaunchKernel", "1", nth=3)
    with pytest.raises(HaotunerError, match=r"step \d+, .*CUDA_ERROR_INVALID_VALUE"):
        server.model.run(tensors, out=out, stream=server.stream)
    server.ask(4, 30)
    driver.fail("cuMemAlloc", "2")
    other = haotuner.load(path, device="cuda:0")
    with pytest.raises(PackInvalid, match="memory for a model's weights: CUDA_ERROR_OUT_OF_MEMORY"):
        other.model(NAME)
    assert other.model(NAME).name == NAME


def driven(path: str) -> None:
    """Every other call of the driver fails once and is said; the thread keeps its context; a fork is refused."""
    server, driver, current = Server(path), Driver(), ctypes.c_void_p(0)
    server.ask(1, 9)
    _, tensors = server.inputs(4, 40)
    out = server.outputs(4, 40)
    for name, code, words in (
        ("cuStreamIsCapturing", "2", r"asking whether the stream is captured: .*\(2\)"),
        ("cuStreamSynchronize", "1", r"working memory of a model: .*\(1\)"),
        ("cuMemAlloc", "1", r"working memory of a model: .*\(1\)"),
        ("cuCtxPushCurrent", "2", r"cuCtxPushCurrent: .*\(2\)"),
    ):
        driver.fail(name, code)
        with pytest.raises(HaotunerError, match=words):
            server.model.run(tensors, out=out, stream=server.stream)
        driver.fail(name, "")
        server.device.call("cuCtxGetCurrent", ctypes.byref(current))
        assert not current.value, f"after {name}"
    server.ask(4, 40)
    server.device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, "a thread without a context has none afterwards"

    def refused() -> None:
        with pytest.raises(HaotunerError, match="a fork cannot use it: start the process with spawn"):
            server.model.run(tensors, out=out, stream=server.stream)

    assert not failure_of(refused)
    server.ask(2, 3)


def doors(path: str) -> None:
    """The native functions take what they say and nothing else; no stream is the one that tvm-ffi was told."""
    server = Server(path)
    arrays, tensors = server.inputs(2, 7)
    out, address = server.outputs(2, 7), server.model.bound._native.address
    queue, shapes = server.model.bound._queue, server.model.bound._shaping
    ranks = sum(len(tensor.shape) for tensor in out.values())
    room, ends = np.zeros(ranks, np.int64), (*tensors.values(), *out.values())
    shapes(address, room, *tensors.values())
    assert room.tolist() == [extent for tensor in out.values() for extent in tensor.shape]
    first = next(iter(tensors.values()))
    for wrong in (
        (), (None, room, *tensors.values()), (address, room), (address, room, *ends), (address, None, *tensors.values()),
        (address, room[:-1], *tensors.values()), (address, room.reshape(-1, 1), *tensors.values()),
        (address, server.device.empty((ranks,), "int64"), *tensors.values()),
        (address, np.zeros(2 * ranks, np.int32), *tensors.values()), (address, first, *tensors.values()),
    ):  # fmt: skip
        with pytest.raises(TypeError, match=r"model_shapes: expected \(model, int64 array, inputs\)"):
            shapes(*wrong)
    for wrong in ((), (None, 0, *ends), (address, 0, *ends[:-1]), (address, 0, *ends, first), (address, "0", *ends),
                  (address, 1.5, *ends)):  # fmt: skip
        with pytest.raises(TypeError, match=r"model_queue: expected \(model, stream, inputs, outputs\)"):
            queue(*wrong)
    names = [*(f"input {name}" for name in tensors), *(f"out {name}" for name in out)]
    for index, name in enumerate(names):
        with pytest.raises(TypeError, match=f"{name} is not a tensor: pass a tensor of the pack's device"):
            queue(address, server.stream, *ends[:index], 3, *ends[index + 1 :])
    server.ask(2, 7)
    with tvm_ffi.use_raw_stream(tvm_ffi.Device(2, 0), server.stream):
        server.device.begin(server.stream)
        queue(address, None, *ends)
        graph = server.device.end(server.stream)
    server.device.put(out[next(iter(out))], np.zeros(out[next(iter(out))].shape, np.float32))
    server.device.replay(graph, server.stream)
    server.judge(arrays, out, "tvm-ffi's stream")


def freed(path: str) -> None:
    """What a model had on the device is free once it is closed, but for what a graph may replay."""
    device = Device()
    for captures in (False, True):
        gc.collect()
        before = free_bytes(device)
        server = Server(path)
        server.ask(1, 2)  # what a stream has for parts of sums and folds stays
        server.model.trim()
        arrays, tensors = server.inputs(4, 50)
        out = server.outputs(4, 50)
        own = before - free_bytes(device)
        server.model.run(tensors, out=out, stream=server.stream)
        device.wait(server.stream)
        used = before - free_bytes(device) - own
        assert used > 0
        if captures:
            device.begin(server.stream)
            server.model.run(tensors, out=out, stream=server.stream)
            graph = device.end(server.stream)
        server.model.trim()
        server.pack.close()
        del server.model
        gc.collect()
        left = before - free_bytes(device) - own
        assert (left > 0) == captures, (captures, used, left)
        if captures:
            device.replay(graph, server.stream)
            server.judge(arrays, out, "a graph of a model that is gone")


def free_bytes(device: Device) -> int:
    """Free bytes of a device."""
    free, total = ctypes.c_size_t(0), ctypes.c_size_t(0)
    device.inside("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
    return free.value


def devices(path: str) -> None:
    """The second device serves its own tensors, and refuses those of the first."""
    first, second = Server(path), Server(path, 1)
    first.ask(2, 7)
    second.ask(2, 7)
    _, tensors = first.inputs(2, 7)
    with pytest.raises(UsageError, match="ids must be an array of int64 on cuda:1, got int64 on cuda:0"):
        second.model.run(tensors, out=second.outputs(2, 7), stream=second.stream)


ALL = (numbers, loops, empty, steady, captured, streams, many, refusals, faults, doors, driven, freed, devices, sequences)
SCENARIOS: dict[str, Callable[[str], None]] = {scenario.__name__: scenario for scenario in ALL}


def run(name: str, *words: str) -> None:
    """A scenario by its name."""
    SCENARIOS[name](*words)


if __name__ == "__main__":
    run(*sys.argv[1:])
