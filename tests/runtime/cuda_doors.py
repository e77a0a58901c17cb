"""The first calls of a pack's library, without what Python checks before: no driver, one too old, too many devices.

Scenarios of cuda_scenarios.py; each begins with a process in which nothing of CUDA was used.
"""

from __future__ import annotations

import ctypes
import os
import resource
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

from haotuner.errors import EnvironmentMissing, PackMismatch
from haotuner.runtime.capture import Capture
from haotuner.spec.limits import MAX_THREADS
from tests.runtime.cuda_memory import Capsule
from tests.runtime.cuda_served import Served

SHT_DYNSYM = 11  # elf.h
MOST = 64  # devices that a pack looks at, as HT_CUDA_DEVICES


def library(path: str) -> Any:
    """The pack's library as tvm-ffi loads it."""
    return tvm_ffi.load_module(str(next(Path(path).resolve().glob("lib/*.so"))))


@contextmanager
def no_more_files() -> Iterator[None]:
    """Nothing can be opened."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def early(path: str) -> None:
    """No driver, no device, CUDA used before a fork, devices that are not there: said in words, and tried again."""
    os.environ["STANDIN_FAIL"] = "cuInit:1=100,cuInit:2=3,cuInit:3=2"
    opened = library(path)["ht_open"]
    with no_more_files(), pytest.raises(RuntimeError, match="no CUDA driver: .*libcuda.so.1.*; install the NVIDIA driver"):
        opened(0)
    for words in (r"shows no device \(CUDA_ERROR_NO_DEVICE, 100\); see nvidia-smi", "start it with spawn", "OUT_OF_MEMORY"):
        with pytest.raises(RuntimeError, match=words):
            opened(0)
    for ordinal in (MOST - 1, MOST, 1 << 20):
        with pytest.raises(ValueError, match=f"there is no device cuda:{ordinal}: the driver shows"):
            opened(ordinal)
    for wrong in (-1, (1 << 20) + 1, "0", None):
        with pytest.raises(TypeError, match="expected the number of a device"):
            opened(wrong)
    opened(0)
    served = Served(path)
    n, k, dtype = served.op.n, served.op.k, served.pick.dtype
    nowhere = tvm_ffi.from_dlpack(Capsule(served.linear.bound.weight.data_ptr(), (n, k), dtype, -1))
    with pytest.raises(ValueError, match="there is no device cuda:-1"):
        served.op.bind(nowhere)
    x, y = served.device.upload(served.rows(3)), served.out(3)
    served.call(x, y)
    served.judge(y, served.rows(3))


def crowd(path: str) -> None:
    """A machine of more devices than a pack looks at: the last of them is served, the next is not there."""
    os.environ["STANDIN_DEVICES"] = ";".join([os.environ["STANDIN_DEVICES"].split(";")[0]] * (MOST + 2))
    opened = library(path)["ht_open"]
    with pytest.raises(ValueError, match=f"there is no device cuda:{MOST}: the driver shows {MOST}"):
        opened(MOST)
    opened(MOST - 1)


def misuses(path: str) -> None:
    """Arguments that haotuner itself never passes: each an error in words, whatever their number and kind."""
    served = Served(path)
    opened, name = library(path), served.op.name
    bound = served.linear.bound
    record, weight, bias, planned = np.from_dlpack(bound.record), bound.weight, bound.channels[0], bound.setting
    x, y = served.device.upload(served.rows(3)), served.out(3)

    def refused(kind: type[Exception], function: str, words: str, *arguments: Any) -> None:
        with pytest.raises(kind, match=words):
            opened[function](*arguments)

    call = r"expected the arguments \(x, bound, out, setting"
    counts: tuple[tuple[Any, ...], ...] = (
        (x, record, y), (x, record, y, planned, 0, None, None), (x, record, y, "128"), (x, record, y, planned, "stream"), (),
    )  # fmt: skip
    for wrong in counts:
        refused(TypeError, name, call, *wrong)
    kinds: tuple[tuple[tuple[Any, ...], str], ...] = (
        ((None, record, y), "x"), ((x, None, y), "weight"), ((x, record, 1.0), "out"),
    )  # fmt: skip
    for operands, what in kinds:
        refused(TypeError, name, f"{what} is not a tensor", *operands, planned, served.stream)
    for setting in (-1, 0, 1, MAX_THREADS - 1, MAX_THREADS + 1, 2 * MAX_THREADS - 1, -MAX_THREADS, MAX_THREADS * 10**6):
        refused(ValueError, name, "names no plan of this pack", x, record, y, setting, served.stream)
    unlike: tuple[Any, ...] = (
        record[:-128], np.zeros(record.nbytes + 1, np.uint8)[1:], record.view(np.int16), record[None], weight, None, 3,
    )  # fmt: skip
    for other in unlike:
        refused((TypeError, ValueError), name, "not bound by this pack|is not a tensor", x, other, y, planned, served.stream)  # type: ignore[arg-type]
        refused(TypeError, "ht_bind", "expected .op, weight, bias or None, bytes", 0, weight, bias, other)
        refused(TypeError, "ht_prepare", "expected .op, bytes of a bound weight, stream", 0, other, served.stream)
    for op in (1, -1, "0"):
        refused(ValueError, "ht_bound_bytes", "no such op on a device", op)
        refused(TypeError, "ht_bind", "expected .op, weight", op, weight, bias, record)
        refused(TypeError, "ht_prepare", "expected .op, bytes", op, record, served.stream)
    refused(ValueError, "ht_bound_bytes", "no such op on a device")
    refused(TypeError, "ht_bind", "expected .op, weight", 0, weight, bias)
    refused(TypeError, "ht_bind", "expected .op, weight", 0, None, bias, record)
    refused(TypeError, "ht_bind", "expected .op, weight", 0, weight, 7, record)
    refused(TypeError, "ht_prepare", "expected .op, bytes", 0, record)
    refused(TypeError, "ht_prepare", "expected .op, bytes", 0, record, "stream")
    refused(TypeError, "ht_open", "expected the number of a device", 0, 0)
    blank = np.zeros(record.nbytes + 128, np.uint8)
    blank = blank[-blank.ctypes.data % 128 :][: record.nbytes]
    refused(ValueError, name, "was not bound by this pack for", x, blank, y, planned, served.stream)
    refused(ValueError, "ht_prepare", "was not bound by this pack", 0, blank, served.stream)
    served.call(x, y)
    served.judge(y, served.rows(3), "after all of them")


def settings(path: str) -> None:
    """What a call's setting means to the counters, and shapes that are captured: once each, and none of empty calls."""
    served = Served(path)
    opened, name = library(path), served.op.name
    record = np.from_dlpack(served.linear.bound.record)

    def call(m: int, setting: int, **grown: int) -> None:
        x, y = served.rows(m), served.out(m)
        before = served.stats()
        placed = served.device.upload(x) if m else served.device.empty((0, served.op.k), served.pick.dtype)
        opened[name](placed, record, y, setting, served.stream)
        served.device.wait(served.stream)
        if m:
            served.judge(y, x, f"setting {setting}")
        increments = {key: count - before[key] for key, count in served.stats().items()}
        assert increments == {"calls": 1, "fallbacks": 0, "out_of_range": 0} | grown, (m, setting, increments)

    planned, other = served.linear.bound.setting, 2 * MAX_THREADS
    call(50, planned)
    call(50, other, fallbacks=1)
    call(3, planned, fallbacks=1)  # no memory for partial sums
    call(3, other, fallbacks=1)
    call(0, planned)
    call(0, other)
    call(1, planned, out_of_range=1, fallbacks=1)
    with Capture(served.pack) as seen:
        for m in (50, 7, 50, 0):
            call(m, planned)
    call(50, planned)
    assert seen.counts() == {name: {50: 2, 7: 1}}, seen.counts()


def described(changes: dict[str, str]) -> None:
    """Other answers of the stand-in's first device, as ATTRIBUTE=VALUE in the words of STANDIN_DEVICES."""
    first, *_ = os.environ["STANDIN_DEVICES"].split(";")
    facts = dict(fact.split("=") for fact in first.split(","))
    os.environ["STANDIN_DEVICES"] = ",".join(f"{key}={value}" for key, value in (facts | changes).items())


def other_major(path: str) -> None:
    """Another compute capability."""
    described({"75": "7", "76": "5"})
    for _ in range(2):
        with pytest.raises(
            RuntimeError, match=r"cuda:0 has compute capability 7.5, this pack's code is for sm_.*: tune for"
        ):
            library(path)["ht_open"](0)


def other_minor(path: str) -> None:
    """A later minor of the same major runs code of any but an architecture of its own (sm_90a)."""
    described({"76": "9"})
    opened = library(path)["ht_open"]
    if "fp16" in path:
        with pytest.raises(
            RuntimeError, match=r"cuda:0 has compute capability 9.9, this pack's code is for sm_90a: tune for"
        ):
            opened(0)
    else:
        opened(0)


def other_shared(path: str) -> None:
    """Less shared memory than a kernel wants."""
    described({"97": "1024"})
    with pytest.raises(
        RuntimeError, match=r"wants \d+ bytes of shared memory, cuda:0 has 1024 a block: tune for this device"
    ):
        library(path)["ht_open"](0)


def other_driver(path: str) -> None:
    """A driver older than the code's compiler."""
    os.environ["STANDIN_DRIVER"] = "12040"
    with pytest.raises(RuntimeError, match="the driver serves CUDA 12.4, this pack's code wants 13.0 or later: update"):
        library(path)["ht_open"](0)


def lacking(symbol: str) -> None:
    """Load the stand-in without one of its functions, as an older driver; later loads by its name find this one."""
    whole = Path(os.environ["STANDIN_DRIVER_FOLDER"], "libcuda.so.1").read_bytes()
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder, "libcuda.so.1")
        other.write_bytes(without(whole, symbol))
        ctypes.CDLL(str(other), ctypes.RTLD_GLOBAL)


def without(library: bytes, symbol: str) -> bytes:
    """A 64-bit ELF file in whose dynamic symbol table a symbol counts as undefined."""
    (start,), (size, count) = struct.unpack_from("<Q", library, 40), struct.unpack_from("<HH", library, 58)
    sections = [struct.unpack_from("<IIQQQQIIQQ", library, start + index * size) for index in range(count)]
    symbols = next(section for section in sections if section[1] == SHT_DYNSYM)
    names = sections[symbols[6]][4]
    for at in range(symbols[4], symbols[4] + symbols[5], symbols[9]):
        name = names + struct.unpack_from("<I", library, at)[0]
        if library[name : library.index(b"\0", name)] == symbol.encode():
            return library[: at + 6] + bytes(10) + library[at + 16 :]  # section and value
    raise ValueError(f"the library has no {symbol}")


def older(path: str, symbol: str) -> None:
    """A driver without a function: what does not need it goes on, and what does is refused by its name."""
    lacking(symbol)
    if symbol == "cuFuncLoad":  # of CUDA 12.4
        served = Served(path)
    elif symbol == "cuTensorMapEncodeTiled":  # of CUDA 12
        if "fp16" in path or "sm_90a" in path:
            with pytest.raises(RuntimeError, match="too old: it lacks cuTensorMapEncodeTiled; install one for CUDA 12"):
                Served(path)
            return
        served = Served(path)
    else:
        with pytest.raises(
            (EnvironmentMissing, PackMismatch), match=f"too old: it lacks {symbol}; install one for CUDA 11.4"
        ):
            Served(path)
        return
    x, y = served.device.upload(served.rows(3)), served.out(3)
    served.call(x, y)
    served.judge(y, served.rows(3))


def older_load(path: str) -> None:
    """Before CUDA 12.4."""
    older(path, "cuFuncLoad")


def older_maps(path: str) -> None:
    """Before CUDA 12."""
    older(path, "cuTensorMapEncodeTiled")


def older_still(path: str) -> None:
    """Before CUDA 11.4, or no driver of NVIDIA's."""
    older(path, "cuGraphLaunch")
