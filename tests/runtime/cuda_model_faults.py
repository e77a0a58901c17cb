"""What can go wrong below a whole model on CUDA, one thing after the other: the driver, memory, a damaged schedule."""

from __future__ import annotations

import contextlib
import ctypes
import gc
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi

import haotuner
from haotuner.errors import HaotunerError, PackInvalid
from haotuner.runtime.native_library import NativeLibrary, NativeModel
from tests.runtime import empty_models
from tests.runtime.cuda_generated_ops import FAR, MULTIPROCESSORS, PARTS_LANES, RESIDENT
from tests.runtime.cuda_memory import CODES, Capsule, Device, DLTensor
from tests.runtime.cuda_models import Server, free_bytes
from tests.runtime.cuda_odd_models import ALIASED, CUT, MISSING, SMALL, TWICE, WEIGHTS
from tests.runtime.cuda_packs import PARTS_PICK
from tests.runtime.cuda_served import counts
from tests.runtime.memory_refused import Memory
from tests.standin.apart import failure_of
from tests.standin.client import Driver

CALLS = ("cuCtxGetCurrent", "cuCtxPushCurrent", "cuStreamIsCapturing", "cuMemAlloc", "cuLaunchKernel", "cuMemcpyDtoDAsync",
         "cuStreamSynchronize")  # fmt: skip
MOST = 80  # calls of one function in a request


def without_context(device: Device, what: str) -> None:
    """A thread that had no context current has none afterwards."""
    current = ctypes.c_void_p(0)
    device.call("cuCtxGetCurrent", ctypes.byref(current))
    assert not current.value, f"after {what}"


def repeated(path: str) -> None:
    """Weights that several layers read with one bias, another or none; outputs that are shapes of others."""
    for name in (TWICE, ALIASED):
        server = Server(path, name=name)
        for batch, seq in ((1, 2), (3, 7)):
            server.ask(batch, seq)
        stats = server.pack.stats()
        assert not any(op_stats["fallbacks"] for op_stats in stats.values()), (
            f"memory for parts of a sum is made ready: {stats}"
        )
    driver = Driver()  # rows that leave threads for two parts each; nothing is computed while captured
    many = driver.attribute(MULTIPROCESSORS) * RESIDENT // PARTS_LANES // 2
    x, y = (tvm_ffi.from_dlpack(Capsule(FAR + (i << 40), of, "bfloat16", 0)) for i, of in enumerate(((many, 1000), (many,))))
    driver.library.standin_counts_reset()
    server.device.begin(server.stream)
    server.pack.op(PARTS_PICK.op).run(x, out=y, stream=server.stream)
    assert _called(driver, "cuLaunchKernel") == 2, "and for folds that blocks share"
    server.device.end(server.stream)


def walked(path: str) -> None:
    """Every call of the driver in a stream's first request and in one that needs more memory fails; nothing is left."""
    device, driver = Device(), Driver()
    server = Server(path, name=ALIASED)
    arrays, tensors = server.inputs(3, 9)
    _, small = server.inputs(1, 2)
    out, less = server.outputs(3, 9), server.outputs(1, 2)
    for name, fresh in ((name, fresh) for name in CALLS for fresh in (True, False)):
        for nth in range(1, MOST):
            stream = device.stream()
            driver.library.standin_counts_reset()
            if not fresh:
                server.model.run(small, out=less, stream=stream)
                assert not _called(driver, "cuStreamSynchronize"), "a stream's first call waits for nothing"
                device.wait(stream)
                driver.library.standin_counts_reset()
            driver.fail(name, "1", nth)
            try:
                server.model.run(tensors, out=out, stream=stream)
            except HaotunerError as error:
                driver.fail(name, "")
                assert "CUDA_ERROR_INVALID_VALUE (1)" in str(error), f"{name} {nth}: {error}"
                assert _called(driver, "cuMemFree") <= 1, f"{name} {nth}"
                without_context(device, f"{name} {nth}")
                server.model.run(tensors, out=out, stream=stream)
                device.wait(stream)
                server.judge(arrays, out, f"{name} {nth}")
                continue
            called = _called(driver, name)
            driver.fail(name, "")
            device.wait(stream)
            assert called < nth, f"{name}: nobody said that call {nth} of {called} failed"
            break
        assert 1 + (not fresh or name != "cuStreamSynchronize") <= nth < MOST, f"{name} was never called"
    server.model.run(small, out=less, stream=server.stream)
    server.model.trim()
    before = free_bytes(device)
    for inputs, outputs in ((small, less), (tensors, out)):  # the second grows the memory of the first
        server.model.run(inputs, out=outputs, stream=server.stream)
    assert free_bytes(device) < before
    server.model.trim()
    assert free_bytes(device) == before, "memory that grew is left"


def _called(driver: Driver, name: str) -> int:
    calls = counts(driver)
    return calls.get(name, 0) + calls.get(f"{name}_v2", 0)


def loaded(path: str) -> None:
    """Every kernel that cannot be had is said, and the modules are given back."""
    _opened(path, "cuModuleGetFunction")


def opened(path: str) -> None:
    """Every call of the driver fails once while code is loaded and a model opened; the next try finds all in order."""
    for name in ("cuModuleLoadData", "cuCtxPushCurrent", "cuMemAlloc", "cuMemcpyHtoD"):
        assert not failure_of(partial(_opened, path, name)), name  # code is loaded once in a process


def _opened(path: str, name: str) -> None:
    driver, device, memory = Driver(), Device(), Memory(path)
    memory.refuse(0)
    for nth in range(1, MOST):
        gc.collect()
        pieces = memory.held
        before = free_bytes(device)
        driver.library.standin_counts_reset()
        driver.fail(name, "1", nth)
        try:
            haotuner.load(path, device="cuda:0").model(TWICE)
        except HaotunerError as error:
            assert "CUDA_ERROR_INVALID_VALUE (1)" in str(error), f"{name} {nth}: {error}"
        else:
            assert _called(driver, name) < nth, f"{name}: nobody said that call {nth} failed"
            break
        driver.fail(name, "")
        loaded, unloaded = _called(driver, "cuModuleLoadData"), _called(driver, "cuModuleUnload")
        refused = name == "cuModuleLoadData"
        assert loaded in (unloaded + refused, unloaded + 2), f"{name} {nth}: of {loaded} modules {unloaded} were given back"
        without_context(device, f"{name} {nth}")
        gc.collect()
        assert free_bytes(device) == before, f"{name} {nth}: memory of the device is left"
        assert loaded > unloaded + refused or memory.held == pieces, f"{name} {nth}: memory of the host is left"
    assert 1 < nth < MOST, f"{name} was never called"
    driver.fail(name, "")
    Server(path, name=TWICE).ask(2, 5)


def damaged(path: str) -> None:
    """Damaged schedules are refused in words, and leave nothing; one without weights asks for no memory of the device."""
    mapped = NativeLibrary(next(Path(path, "lib").iterdir()))
    memory = Memory(path)
    haotuner.load(path, device="cuda:0").model(SMALL)

    def refused(name: str, words: str) -> None:
        memory.refuse(0)
        before = memory.held
        with Path(path, "models", f"{name}.weights").open("rb") as weights, pytest.raises(PackInvalid, match=words):
            NativeModel(mapped, name, Path(path, "models", f"{name}.bytecode").read_bytes(), weights.fileno(), 1, device=0)
        assert memory.held == before, f"{name}: {memory.held - before} pieces of memory are left"

    for name in WEIGHTS:
        refused(name, "schedule is damaged: dense_n32_k32 is given another weight than it takes")
    refused(MISSING, "schedule is damaged at word [0-9]+: a group reads more sizes than there are; restore the pack")
    refused(CUT, "its head or its checksum is wrong")
    server = Server(path, name=empty_models.NAME)
    assert server.model.stats()["packed_bytes"] == 0


def starved(path: str) -> None:
    """Every piece of the host's memory is refused once, while code is loaded, a model opened and a request served."""
    memory, models = Memory(path), list[Any]()

    def load() -> None:
        haotuner.load(path, device="cuda:0").close()

    assert memory.each_refused(load, HaotunerError, "no memory for the table of") >= 2

    def open_model() -> None:
        models.append(haotuner.load(path, device="cuda:0").model(TWICE))
        models[-1].stats()

    refusals = memory.each_refused(open_model, HaotunerError, "no memory|weights cannot be mapped")
    assert refusals >= 15, refusals
    models.clear()
    gc.collect()
    assert memory.held == 2, f"{memory.held} pieces are left beside the tables of kernels"
    server = Server(path, name=TWICE)
    arrays, tensors = server.inputs(2, 7)
    out = server.outputs(2, 7)

    def serve() -> None:
        with _fresh(server):
            server.model.run(tensors, out=out, stream=server.stream)

    memory.refuse(0)
    assert memory.each_refused(serve, HaotunerError, "no memory for") >= 3
    server.ask(2, 7)


@contextlib.contextmanager
def _fresh(server: Server) -> Iterator[None]:
    """A request that finds nothing of those before, and whose context goes where it fails."""
    server.model.bound._known.clear()
    try:
        yield
    except HaotunerError:
        server.model.trim()
        raise


def timed(path: str) -> None:
    """Steps are timed one by one on the legacy stream, and a wait that fails is said."""
    server, driver = Server(path, name=ALIASED), Driver()
    arrays, tensors = server.inputs(2, 7)
    out = server.outputs(2, 7)
    steps = len(server.model.schedule.steps)
    durations = (ctypes.c_int64 * steps)()
    native = server.model.bound._native
    inputs, outputs = (_described(ends) for ends in (tensors, out))

    def ask() -> None:
        native._call(
            lambda handle, inputs, outputs, *error: native._mapped.times(handle, inputs, outputs, durations, *error),
            inputs,
            outputs,
        )

    ask()
    server.judge(arrays, out, "timed")
    assert [duration > 0 for duration in durations] == [step["do"] != "alias" for step in server.model.schedule.steps]
    for name in ("cuStreamSynchronize", "cuCtxGetCurrent", "cuCtxPushCurrent"):
        for nth in range(1, MOST):
            driver.library.standin_counts_reset()
            driver.fail(name, "1", nth)
            try:
                ask()
            except HaotunerError as error:
                driver.fail(name, "")
                assert "(1)" in str(error), error
                without_context(server.device, f"{name} {nth}")
                continue
            driver.fail(name, "")
            break
        assert 1 < nth < MOST, name
    ask()
    server.judge(arrays, out, "timed again")


def _described(ends: dict[str, Any]) -> Any:
    """Tensors of the device as a C caller passes them."""
    table = (DLTensor * len(ends))()
    for i, tensor in enumerate(ends.values()):
        shape = (ctypes.c_int64 * len(tensor.shape))(*tensor.shape)
        code, bits = CODES["float32"]
        table[i] = DLTensor(tensor.data_ptr(), 2, 0, len(tensor.shape), code, bits, 1, shape, None, 0)
        _KEPT.append(shape)
    _KEPT.append(table)
    return ctypes.addressof(table)


_KEPT: list[Any] = []
ALL = (repeated, walked, loaded, opened, damaged, starved, timed)
SCENARIOS: dict[str, Callable[[str], None]] = {scenario.__name__: scenario for scenario in ALL}


def run(name: str, *words: str) -> None:
    """A scenario by its name."""
    SCENARIOS[name](*words)
