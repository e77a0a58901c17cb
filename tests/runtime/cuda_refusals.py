"""What is refused on a CUDA device, and in which words: tensors, devices, drivers, forks. Scenarios of cuda_scenarios.py."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi

import haotuner
from haotuner.errors import EnvironmentMissing, PackMismatch, UsageError
from haotuner.pack.manifest import read_manifest
from haotuner.pack.write import as_json, sealed
from haotuner.verify.device_numbers import unchecked
from tests.runtime.cuda_memory import Capsule
from tests.runtime.cuda_served import Served
from tests.standin.apart import failure_of
from tests.standin.client import Driver


def refusals(path: str) -> None:
    """What is wrong with a tensor is said by name, and nothing sticks."""
    served = Served(path)
    n, k, dtype = served.op.n, served.op.k, served.pick.dtype
    other = "float16" if dtype == "float32" else "float32"
    x, y = served.device.upload(served.rows(4)), served.out(4)
    empty = served.device.empty

    def refused(kind: type[Exception], words: str, x_: Any = x, y_: Any = y) -> None:
        with pytest.raises(kind, match=words) as raised:
            served.linear(x_, out=y_, stream=served.stream)
        assert str(raised.value).startswith(f"{served.op.name}: "), raised.value

    refused(ValueError, "x lives on the CPU; this pack computes on CUDA devices", served.rows(4))
    refused(ValueError, "out lives on the CPU", y_=np.zeros((4, n), dtype))
    refused(TypeError, f"x has dtype code 2 .* expected {dtype}", empty((4, k), other))
    refused(TypeError, "out has dtype", y_=empty((4, n), other))
    refused(TypeError, "x is a list; pass a tensor", [1.0])
    refused(ValueError, f"x has last extent {k - 1}; expected {k}", empty((4, k - 1), dtype))
    refused(ValueError, "out has last extent", y_=empty((4, n + 1), dtype))
    refused(ValueError, "out has extent 5 in axis 0, x has 4", y_=empty((5, n), dtype))
    refused(ValueError, "out has rank 3, x has rank 2", y_=empty((1, 4, n), dtype))
    refused(ValueError, "x has inner stride 2", empty((4, k), dtype, strides=(2 * k, 2)))
    refused(ValueError, "rows of out overlap: row stride 1", y_=empty((4, n), dtype, strides=(1, 1)))
    both = served.device.upload(np.zeros((4, max(n, k)), dtype))
    refused(ValueError, "out shares memory with x", _part(served, both, k), _part(served, both, n))
    for what, tensor in {"the weight": served.linear.bound.weight, "the bias": served.linear.bound.channels[0]}.items():
        inside = _at(served, tensor, (1, n))
        assert what
        refused(ValueError, "out shares memory with the weight or the bias", empty((1, k), dtype), inside)
    with pytest.raises(ValueError, match="does not say its current stream: pass stream="):
        served.linear(x, out=y)
    served.call(x, y)
    served.judge(y, served.rows(4), "after all refusals")

    def unbound(kind: type[Exception], words: str, weight: Any, bias: Any = None) -> None:
        with pytest.raises(kind, match=words) as raised:
            served.op.bind(weight, bias)
        assert str(raised.value).startswith(f"{served.op.name}: "), raised.value

    weight = served.linear.bound.weight
    unbound(ValueError, "weight lives on the CPU", served.weight)
    unbound(TypeError, "weight is a list", [1.0])
    unbound(TypeError, "weight has dtype", empty((n, k), other))
    unbound(ValueError, rf"weight has rank 2 and shape \({k}, {n}\); expected \({n}, {k}\)", empty((k, n), dtype))
    for shape in ((n + 1, k), (n, k + 1), (n, k, 1), (n,)):
        unbound(ValueError, rf"weight has rank {len(shape)} and shape .*; expected \({n}, {k}\)", empty(shape, dtype))
    for shape in ((n + 1,), (n, 1)):
        unbound(ValueError, f"bias has rank {len(shape)} and extent", weight, empty(shape, dtype))
    unbound(ValueError, "bias has rank 1 and extent", weight, empty((n,), dtype, strides=(2,)))
    unbound(ValueError, "weight must be contiguous", empty((n, k), dtype, strides=(k + 8, 1)))
    unbound(ValueError, "weight begins at an address", empty((n, k), dtype, skip=1))
    unbound(ValueError, "bias has rank 1 and extent", weight, empty((n + 1,), dtype))
    unbound(TypeError, "bias has dtype", weight, empty((n,), other))
    with pytest.raises(UsageError, match="a device has no thread counts"):
        served.op.bind(weight, threads=2)


def _part(served: Served, tensor: Any, columns: int) -> Any:
    return _at(served, tensor, (tensor.shape[0], columns), (tensor.shape[1], 1))


def _at(served: Served, tensor: Any, shape: tuple[int, ...], strides: tuple[int, ...] | None = None) -> Any:
    return tvm_ffi.from_dlpack(Capsule(tensor.data_ptr(), shape, served.pick.dtype, served.device.ordinal, strides))


def loading(path: str) -> None:
    """Devices that are not there, and packs that are not for the device."""
    with pytest.raises(EnvironmentMissing, match="there is no device cuda:9: the CUDA driver shows"):
        haotuner.load(path, device="cuda:9")
    with pytest.raises(UsageError, match="name cuda, cuda:0"):
        haotuner.load(path, device="gpu")
    with pytest.raises(PackMismatch, match="holds code for sm_.* and none for CPUs; name the device"):
        haotuner.load(path)


def mismatch(path: str) -> None:
    """A pack of another architecture."""
    with pytest.raises(
        PackMismatch, match=r"cuda:0 is .*compute capability.*the pack holds code for .*Tune for this device"
    ):
        haotuner.load(path, device="cuda:0")


def cannot(path: str, kind: str, words: str) -> None:
    """Loading fails in these words, twice, and neither time with anything but an error."""
    for _ in range(2):
        with pytest.raises((EnvironmentMissing, PackMismatch), match=words) as raised:
            haotuner.load(path, device="cuda:0")
        assert type(raised.value).__name__ == kind


def too_old(path: str) -> None:
    """An older driver is refused by name before any of the pack is mapped; a pack that does not say what it needs tries."""
    for _ in range(2):
        with pytest.raises(PackMismatch, match="needs a driver for CUDA 13.0 .* serves CUDA 12.4: update the NVIDIA driver"):
            haotuner.load(path, device="cuda:0")
    library = str(next(Path(path).resolve().glob("lib/*.so")))
    assert library not in Path("/proc/self/maps").read_text()
    assert unchecked(read_manifest(Path(path))).startswith("its sm_80 code needs a driver for CUDA 13.0")
    with tempfile.TemporaryDirectory() as folder:
        older = Path(folder) / "older"
        shutil.copytree(path, older)
        document = json.loads((older / "manifest.json").read_text())
        del document["driver"]
        for name, data in sealed(as_json(document)).items():
            (older / name).write_bytes(data)
        with pytest.raises(PackMismatch, match="the driver serves CUDA 12.4, this pack's code wants 13.0 or later"):
            haotuner.load(older, device="cuda:0")


def forked(path: str) -> None:
    """A child that was forked after CUDA began is refused in words, at every door; the parent goes on."""
    served = Served(path)
    x, y = served.device.upload(served.rows(4)), served.out(4)

    def refused() -> None:
        with pytest.raises(RuntimeError, match="a fork cannot use it: start the process with spawn"):
            served.linear(x, out=y, stream=served.stream)
        with pytest.raises(RuntimeError, match="a fork cannot use it"):
            served.linear.prepare(served.stream)
        with pytest.raises(RuntimeError, match="a fork cannot use it"):
            served.op.bind(served.linear.bound.weight)
        with pytest.raises((PackMismatch, EnvironmentMissing), match="forked"):
            haotuner.load(path, device="cuda:0")

    assert not failure_of(refused)
    served.call(x, y)
    served.judge(y, served.rows(4))


def failing(path: str, function: str, code: str, words: str) -> None:
    """A call whose driver call fails is an error in these words; the next one is right again."""
    served = Served(path)
    driver = Driver()
    x, y = served.rows(50), served.out(50)
    on_device = served.device.upload(x)
    driver.fail(function, code)
    with pytest.raises(RuntimeError, match=words) as raised:
        served.linear(on_device, out=y, stream=served.stream)
    assert str(raised.value).startswith(f"{served.op.name}: ")
    served.call(on_device, y)
    served.judge(y, x, "after the error")


def preparing(path: str) -> None:
    """No memory for partial sums: said, and calls go on without."""
    served = Served(path)
    driver = Driver()
    driver.fail("cuMemAlloc", "2")
    with pytest.raises(
        RuntimeError, match=r"memory for partial sums: CUDA_ERROR_OUT_OF_MEMORY \(2\): free memory of the device"
    ):
        served.linear.prepare(served.stream)
    x, y = served.rows(3), served.out(3)
    served.call(served.device.upload(x), y)
    served.judge(y, x)
    served.linear.prepare(served.stream)
    served.call(served.device.upload(x), y)
    assert served.stats() == {"calls": 2, "fallbacks": 1, "out_of_range": 0}


# Of a load: which call of the function is the library's, for the first ones are made in Python; and what is then said.
LOADING = (
    ("cuInit", 1, "cuInit answers CUDA error 2"),
    ("cuInit", 2, r"cuInit: CUDA_ERROR_OUT_OF_MEMORY \(2\)"),
    ("cuDriverGetVersion", 1, "cuDriverGetVersion answers CUDA error 2"),
    ("cuDriverGetVersion", 2, r"cuDriverGetVersion: .* \(2\)"),
    ("cuDeviceGet", 1, "cuDeviceGet answers CUDA error 2"),
    ("cuDeviceGetCount", 2, r"cuDeviceGetCount: .* \(2\)"),
    ("cuDeviceGet", 2, r"cuDeviceGet: .* \(2\)"),
    ("cuDeviceGetAttribute", 6, r"cuDeviceGetAttribute: .* \(2\)"),
    ("cuDevicePrimaryCtxRetain", 1, r"cuDevicePrimaryCtxRetain: .* \(2\)"),
    ("cuCtxGetCurrent", 1, r"cuCtxGetCurrent: .* \(2\)"),
    ("cuCtxPushCurrent", 1, r"cuCtxPushCurrent: .* \(2\)"),
    ("cuModuleLoadData", 1, r"cuModuleLoadData: .* \(2\): free memory"),
    ("cuModuleGetFunction", 1, r"cuModuleGetFunction: .* \(2\)"),
    ("cuModuleGetFunction", 3, r"cuModuleGetFunction: .* \(2\)"),
    ("cuFuncGetAttribute", 1, r"loading a kernel: .* \(2\)"),
    ("cuFuncLoad", 2, r"loading a kernel: .* \(2\)"),
)
OPTING_IN = ("cuFuncSetAttribute", 1, r"cuFuncSetAttribute: .* \(2\)")  # of kernels with over 48 KB of shared memory
CALLING = {
    "cuCtxGetCurrent": "cuCtxGetCurrent",
    "cuCtxPushCurrent": "cuCtxPushCurrent",
    "cuLaunchKernel": "launching a kernel",
}


def faults(path: str) -> None:
    """Every call of the driver fails once: an error in words each, useless modules go, and then all is right."""
    driver = Driver()
    loading = (*LOADING, *([OPTING_IN] if "sm_90a" in path else []))
    for name, nth, words in loading:
        driver.fail(name, "2", nth)
        with pytest.raises((EnvironmentMissing, PackMismatch), match=words):
            haotuner.load(path, device="cuda:0")
        driver.fail(name, "")
    failed = sum(name.startswith(("cuModuleGet", "cuFunc")) for name, _, _ in loading)
    assert driver.count("cuModuleUnload") == failed, "those whose kernels were not found"
    served = Served(path)
    x, y = served.device.upload(served.rows(3)), served.out(3)
    served.linear.prepare(served.stream)
    for name, words in CALLING.items():
        driver.fail(name, "2")
        with pytest.raises(RuntimeError, match=words):
            served.linear(x, out=y, stream=served.stream)
        served.call(x, y)
    longer, wide = served.device.upload(served.rows(150)), served.out(150)
    for nth in (1, 2):  # of two regions
        driver.fail("cuLaunchKernel", "2", nth)
        with pytest.raises(RuntimeError, match="launching a kernel"):
            served.linear(longer, out=wide, stream=served.stream)
    served.call(longer, wide)
    served.judge(wide, served.rows(150), "after a region failed")
    driver.fail("cuLaunchKernel", "2", 2)
    with pytest.raises(RuntimeError, match="launching the sum of the parts"):
        served.linear(x, out=y, stream=served.stream)
    driver.fail("cuCtxGetCurrent", "2")
    with pytest.raises(RuntimeError, match="cuCtxGetCurrent"):
        served.linear.prepare(served.device.stream())
    if served.pick.dtype == "float16":
        driver.fail("cuTensorMapEncodeTiled", "2")
        with pytest.raises(RuntimeError, match="cuTensorMapEncodeTiled"):
            served.linear(x, out=y, stream=served.stream)
        driver.fail("cuTensorMapEncodeTiled", "2")
        with pytest.raises(RuntimeError, match="cuTensorMapEncodeTiled"):
            served.op.bind(served.linear.bound.weight)
    served.call(x, y)
    served.judge(y, served.rows(3), "after all faults")
