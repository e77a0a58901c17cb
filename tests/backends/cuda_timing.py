"""What a timing process does with its library, over the stand-in: ``python -m tests.backends.cuda_timing timing CUBIN OP``.

Every call of the driver is made to fail once; it must be said in words, and the next must be right.
"""

from __future__ import annotations

import ctypes
import os
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from haotuner.backends.cuda import timing_library
from haotuner.backends.cuda.timing_library import ArgsWords, CallWords, Loaded, TimingLibrary, call_words, kernel_words
from haotuner.isolate.answers import Refusal
from haotuner.microkernels.cuda.launch import reduce_symbol
from haotuner.spec.op import Op
from tests.runtime.cuda_doors import lacking
from tests.runtime.cuda_packs import PICKS, Pick, family
from tests.standin.client import Driver

ROWS, CUT, WEIGHTS, LAUNCHES = 70, 64, 3, 5  # CUT: where a second region begins, a multiple of every tile
# Calls of htt_open in their order; the n-th of a function, where it is called more than once.
OPENING = (
    ("cuInit", 1), ("cuDriverGetVersion", 1), ("cuDeviceGetCount", 1), ("cuDeviceGet", 1), ("cuDeviceGetAttribute", 4),
    ("cuDevicePrimaryCtxRetain", 1), ("cuCtxGetCurrent", 1), ("cuCtxPushCurrent", 1), ("cuDeviceGet", 1),
    ("cuDeviceGetAttribute", 1), ("cuStreamCreate", 1), ("cuEventCreate", 1), ("cuEventCreate", 2),
)  # fmt: skip


class Timed:
    """A library with one product on the device: kernels, operands, several weights."""

    def __init__(self, cubin: Path, pick: Pick, units: int = 0) -> None:
        self.driver = Driver()
        for name, nth in () if units else OPENING:
            self.driver.fail(name, "2", nth)
            with pytest.raises(Refusal, match=r"\(2\)"):
                TimingLibrary(0)
            self.driver.fail(name, "")
        self.library = TimingLibrary(0, units)
        self.pick, op = pick, Op.parse(pick.op)
        self.n, self.k = op["n"], op["k"]
        self.module = self.library.load(cubin)
        self.loaded = [self._kernel(index) for index in range(len(pick.kernels))]
        self.reduce, _ = self.library.function(self.module, reduce_symbol(op.dtype))
        draw = np.random.default_rng(1)
        self.x = draw.standard_normal((ROWS, self.k)).astype(pick.dtype)
        self.weights = [draw.standard_normal((self.n, self.k)).astype(pick.dtype) for _ in range(WEIGHTS)]
        self.at_x, self.at_y = self._put(self.x), self.library.allocate(ROWS * self.n * self.x.itemsize)
        self.at_w = np.array([self._put(weight) for weight in self.weights], np.uint64)
        self.partial = self.library.allocate(4 * ROWS * self.n * 4)

    def _kernel(self, index: int) -> Loaded:
        kernel = self.pick.kernels[index]
        launch = family(kernel).launch(kernel)
        words = kernel_words(kernel.name, launch, family(kernel).dtype, kn=False)
        function, (registers, local, shared) = self.library.function(self.module, kernel.name, launch.shared_bytes)
        assert 16 <= registers <= 255 and local == 0 and shared >= 0, "facts of the compiled kernel"
        return Loaded(
            words=words, function=function, registers=registers, local_bytes=local, shared_bytes=launch.shared_bytes
        )

    def _put(self, values: Any) -> int:
        address = self.library.allocate(values.nbytes)
        self.library.put(address, values)
        return address

    def call(self, *regions: tuple[int, int], splits: int = 1, weights: int = WEIGHTS) -> CallWords:
        """Regions of (kernel, rows)."""
        args = ArgsWords(
            x=self.at_x, y=self.at_y, partial=self.partial if splits > 1 else 0, m=ROWS, n=self.n, k=self.k, ldx=self.k,
            ldy=self.n, splits=splits,
        )  # fmt: skip
        return call_words([(self.loaded[at], rows) for at, rows in regions], self.reduce, args, self.at_w[:weights])

    def found(self) -> Any:
        """What is in the output, poisoned afterwards."""
        y = np.zeros((ROWS, self.n), self.pick.dtype)
        self.library.get(self.at_y, y)
        self.library.poison(self.at_y, y.nbytes)
        return y

    def judge(self, weight: int = 0) -> None:
        """The output is that of the weight, within the rounding."""
        exact = self.x.astype(np.float64) @ self.weights[weight].astype(np.float64).T
        np.testing.assert_allclose(self.found(), exact, rtol=0, atol=2e-2 if self.pick.dtype == "float16" else 1e-4)


def copies(timed: Timed) -> None:
    """What is put, copied and filled is there when the call returns."""
    library, values = timed.library, np.arange(1000, dtype=np.float32)
    source, target, back = library.allocate(4000), library.allocate(4000), np.zeros(1000, np.float32)
    library.put(source, values)
    values[:] = -1  # the device has it already
    library.copy(target, source, 4000)
    library.poison(source, 4000)
    library.get(target, back)
    assert (back == np.arange(1000)).all()
    library.get(source, back)
    assert np.isnan(back).all()
    before = timed.driver.count("cuMemFree")
    library.free(source)
    library.free(target)
    assert timed.driver.count("cuMemFree") == before + 2


def times(timed: Timed) -> None:
    """Right results, from one region and two, split and whole; times on the device's clock, of one call and of a graph."""
    library, names = timed.library, ("cuGraphExecDestroy", "cuGraphDestroy")
    shapes = {
        "one": timed.call((0, ROWS)),
        "two": timed.call((0, CUT), (1, ROWS - CUT)),
        "split": timed.call((0, ROWS), splits=3),
    }
    for call in shapes.values():
        library.run(call)
        timed.judge()
        once = library.once_us(call)
        timed.judge(1)
        library.prepare(call, LAUNCHES)
        timed.judge((LAUNCHES - 1) % WEIGHTS)
        gone = [timed.driver.count(name) for name in names]
        library.prepare(call, LAUNCHES)
        assert [timed.driver.count(name) for name in names] == [gone[0] + 1, gone[1] + 1], (
            "one graph is kept, and its template not"
        )
        timed.found()
        replay = library.replay_us()
        timed.judge((LAUNCHES - 1) % WEIGHTS)
        assert 0 < once < replay and 0.5 < replay / (LAUNCHES * once) < 2, (once, replay)
    library.once_us(timed.call((0, ROWS), weights=1))
    timed.judge()


def fails(timed: Timed) -> None:
    """Every call of the driver fails once: a refusal in words that says which, and then all is right."""
    library, call = timed.library, timed.call((0, CUT), (1, ROWS - CUT))
    address, values = library.allocate(64), np.zeros(16, np.float32)
    cubin = b"no cubin at all"

    def loads() -> None:
        library.ask("load", "htt_load", cubin, (np.zeros(1, np.uint64)).ctypes)

    def function() -> None:
        library.function(timed.module, timed.pick.kernels[0].name, 64)

    cases: tuple[tuple[str, int, Callable[[], object]], ...] = (
        ("cuModuleGetFunction", 1, function),
        ("cuFuncGetAttribute", 1, function), ("cuFuncGetAttribute", 2, function), ("cuFuncGetAttribute", 3, function),
        ("cuFuncGetAttribute", 4, function),
        ("cuMemAlloc", 1, lambda: library.allocate(64)), ("cuMemFree", 1, lambda: library.free(address)),
        ("cuMemcpyHtoDAsync", 1, lambda: library.put(address, values)),
        ("cuMemcpyDtoHAsync", 1, lambda: library.get(address, values)),
        ("cuMemcpyDtoDAsync", 1, lambda: library.copy(address, address + 32, 32)),
        ("cuMemsetD8Async", 1, lambda: library.poison(address, 64)),
        *(("cuStreamSynchronize", 1, action) for action in (
            lambda: library.put(address, values), lambda: library.get(address, values),
            lambda: library.copy(address, address + 32, 32), lambda: library.poison(address, 64),
            lambda: library.run(call), lambda: library.once_us(call), lambda: library.prepare(call, LAUNCHES),
        )),
        *(("cuLaunchKernel", nth, lambda: library.run(call)) for nth in (1, 2)),
        *(("cuLaunchKernel", nth, lambda: library.once_us(call)) for nth in (1, 2, 3, 4)),
        *(("cuLaunchKernel", nth, lambda: library.prepare(call, LAUNCHES)) for nth in (1, 2, 3)),
        *(("cuEventRecord", nth, lambda: library.once_us(call)) for nth in (1, 2)),
        ("cuEventSynchronize", 1, lambda: library.once_us(call)), ("cuEventElapsedTime", 1, lambda: library.once_us(call)),
        ("cuStreamBeginCapture", 1, lambda: library.prepare(call, LAUNCHES)),
        ("cuGraphInstantiate", 1, lambda: library.prepare(call, LAUNCHES)),
        ("cuGraphLaunch", 1, lambda: library.prepare(call, LAUNCHES)),
        ("cuGraphLaunch", 2, lambda: ready() and library.replay_us()),
        ("cuEventRecord", 1, lambda: ready() and library.replay_us()),
        ("cuEventRecord", 2, lambda: ready() and library.replay_us()),
    )  # fmt: skip
    if timed.pick.dtype == "float16":  # the emulator needs a while for each; the rest is as with the other type
        doing = (lambda: library.run(call), lambda: library.once_us(call), lambda: library.prepare(call, LAUNCHES))
        cases = tuple(("cuTensorMapEncodeTiled", nth, action) for nth in (1, 1 + WEIGHTS) for action in doing)

    def ready() -> bool:
        library.prepare(call, LAUNCHES)
        return True

    for name, nth, action in cases:
        timed.driver.fail(name, "2", nth)
        with pytest.raises(Refusal, match=r"CUDA_ERROR_OUT_OF_MEMORY \(2\)") as raised:
            action()
            raise AssertionError(f"call {nth} of {name} failed, and nobody was told")
        assert raised.value.reason == "memory" and not raised.value.fatal, (name, nth)
        timed.driver.fail(name, "")
        library.run(call)
        timed.judge()
    with pytest.raises(Refusal, match="cuModuleLoadData"):
        loads()
    args = timed.call((0, ROWS))
    args.args.x += 4
    for odd in (lambda: library.run(args), lambda: library.once_us(args), lambda: library.prepare(args, LAUNCHES)):
        with pytest.raises(Refusal, match="x begins at an address"):
            odd()
    library.run(call)
    timed.judge()


def lost(timed: Timed) -> None:
    """A device that is lost while a kernel runs is fatal, at every wait."""
    call = timed.call((0, ROWS))
    timed.driver.fail("cuLaunchKernel", "async:700")
    with pytest.raises(Refusal, match=r"\(700\): the device is lost") as raised:
        timed.library.run(call)
    assert raised.value.fatal and raised.value.reason == "crash"
    for again in (lambda: timed.library.once_us(call), lambda: timed.library.get(timed.at_y, timed.x)):
        with pytest.raises(Refusal) as raised:
            again()
        assert raised.value.fatal


def _begin(cubin: str, op: str, library: str, units: int = 0) -> Timed:
    if library:
        timing_library.built = lambda folder: Path(library)
    return Timed(Path(cubin), next(pick for pick in PICKS if pick.op == op), units)


def timing(cubin: str, op: str, library: str = "") -> None:
    """All of the above with one library: the project's own, or another build of it."""
    timed = _begin(cubin, op, library)
    with pytest.raises(Refusal, match="there is no device cuda:9"):
        TimingLibrary(9)
    for scenario in (copies, times, fails, lost):
        scenario(timed)


PART = 16  # multiprocessors, a multiple of what any of the devices can be split into
PARTING = (
    "cuDeviceGetDevResource", "cuDevSmResourceSplitByCount", "cuDevResourceGenerateDesc", "cuGreenCtxCreate",
    "cuCtxFromGreenCtx", "cuGreenCtxStreamCreate",
)  # fmt: skip


def apart(look: Callable[[], object]) -> None:
    """In a process of its own, since a driver is opened once; CUDA must not have begun here."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            look()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    assert os.waitpid(child, 0)[1] == 0


def parted(cubin: str, op: str, library: str = "") -> None:
    """A part of a device: refused by older drivers, each of its calls may fail, and then it computes what the whole does."""
    if library:
        timing_library.built = lambda folder: Path(library)

    def old(symbol: str) -> None:
        if symbol:
            lacking(symbol)
        else:
            os.environ["STANDIN_DRIVER"] = "12030"
        with pytest.raises(Refusal, match="a part of a device wants a driver for CUDA 12.4 or later"):
            TimingLibrary(0, PART)

    for symbol in ("", *PARTING):
        apart(lambda symbol=symbol: old(symbol))  # type: ignore[misc]

    def second() -> None:
        TimingLibrary(1, PART)
        device = ctypes.c_int(-1)
        Driver().need("cuCtxGetDevice", ctypes.byref(device))
        assert device.value == 1

    apart(second)
    driver = Driver()
    with pytest.raises(Refusal, match=f"has no part of {PART + 1} multiprocessors; .* ask for cuda:0/"):
        TimingLibrary(0, PART + 1)
    for name, nth in (("cuDeviceGet", 1), *((name, 1) for name in PARTING)):
        driver.fail(name, "2", nth)
        with pytest.raises(Refusal, match=r"CUDA_ERROR_OUT_OF_MEMORY \(2\)"):
            TimingLibrary(0, PART)
            raise AssertionError(f"call {nth} of {name} failed, and nobody was told")
        driver.fail(name, "")
    timed = _begin(cubin, op, library, PART)
    assert timed.library.device.units == PART
    call = timed.call((0, ROWS))
    timed.library.run(call)
    timed.judge()
    assert timed.library.once_us(call) > 0


def unended(cubin: str, op: str, library: str = "") -> None:
    """A capture that the driver does not end is said, and no graph of it is used."""
    timed = _begin(cubin, op, library)
    instantiations = timed.driver.count("cuGraphInstantiate")
    timed.driver.fail("cuStreamEndCapture", "901")
    with pytest.raises(Refusal, match=r"ending a capture: .* \(901\)"):
        timed.library.prepare(timed.call((0, ROWS)), LAUNCHES)
    assert timed.driver.count("cuGraphInstantiate") == instantiations


if __name__ == "__main__":
    {"timing": timing, "unended": unended, "parted": parted}[sys.argv[1]](*sys.argv[2:])
