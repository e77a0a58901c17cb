"""Units of generated kernels on the stand-in, each case as a host launches it: ``python -m tests.standin.units JOB.json``.

A job names a cubin and cases of ``tests/emulator/run.py``; each runs in a process of its own. One JSON line a case: its
symbol, and the largest error as a share of the tolerance or how it failed.
"""

from __future__ import annotations

import ctypes
import functools
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.ops.epilogue import STEPS
from tests.emulator.calls import UNTOUCHED, after, stepped, y_type
from tests.emulator.memory import DTYPES
from tests.emulator.run import Call
from tests.standin.apart import failure_of
from tests.standin.client import Arguments, Driver, DriverError

MAX_DYNAMIC = 8  # CUfunction_attribute
MAP_TYPES, SWIZZLES = {"fp32": 7, "fp16": 6, "bf16": 9}, {0: 0, 32: 1, 64: 2, 128: 3}
REDUCE = (3, 256)  # blocks, any number is right, and threads
SECONDS = 30  # of processors, for a case; a kernel that hangs must end


class _TensorMap(ctypes.Structure):
    _fields_ = [("room", ctypes.c_byte * 256)]

    def opaque(self) -> Any:
        """The 128 bytes of it at a multiple of 64."""
        return (ctypes.c_byte * 128).from_address((ctypes.addressof(self) + 63) // 64 * 64)


class _Matrix:
    """Rows some elements apart on the device, its end at the end of its memory; ``offset`` bytes off 16."""

    def __init__(self, driver: Driver, values: np.ndarray[Any, Any], stride: int, offset: int = 0) -> None:
        self._driver, self._shape, self._stride, self._offset = driver, values.shape, stride, offset
        self._room = np.full((values.shape[0] - 1) * stride + values.shape[1], UNTOUCHED, values.dtype)
        self._view()[...] = values
        raw = np.concatenate([np.zeros(offset, np.uint8), self._room.view(np.uint8)])
        self.at = driver.upload(raw) + offset

    def _view(self) -> np.ndarray[Any, Any]:
        size = self._room.itemsize
        return np.lib.stride_tricks.as_strided(self._room, self._shape, (self._stride * size, size))

    def read(self) -> tuple[np.ndarray[Any, Any], bool]:
        """Its values as float64, and whether what lies between rows is as it was."""
        downloaded = self._driver.download(self.at, self._room.view(np.uint8)).view(self._room.dtype)
        gaps = np.ones(len(downloaded), bool)
        np.lib.stride_tricks.as_strided(gaps, self._shape, (self._stride, 1))[...] = False
        self._room = downloaded
        return self._view().astype(np.float64), bool((downloaded[gaps] == np.asarray(UNTOUCHED, downloaded.dtype)).all())


def share(driver: Driver, module: int, case: dict[str, Any], call: Call) -> float:
    """The largest error of one call as a share of its tolerance; infinite where something else was written, or nothing."""
    dtype, launch, m, n, k = DTYPES[case["dtype"]], case["launch"], call.m, call.n, call.k
    random = np.random.default_rng(m * n + k)
    out = call.out or case["dtype"]
    x, w = (random.standard_normal(shape).astype(dtype) for shape in ((m, k), (k, n) if case["kn"] else (n, k)))
    beside = {
        name: random.standard_normal((1, n) if name != "residual" else (m, n))
        for step in call.steps
        for name, _ in STEPS[step].operands
    }
    if "low" in beside:
        beside["low"], beside["high"] = np.sort([beside["low"], beside["high"]], axis=0)
    beside = {name: values.astype(DTYPES[out] if name == "residual" else dtype) for name, values in beside.items()}
    offset, stride = call.y_alignment % 16, n + call.y_gap
    x_on, w_on = _Matrix(driver, x, k + call.x_gap), _Matrix(driver, w, w.shape[1])
    y_on = _Matrix(driver, np.full((m, n), np.nan, DTYPES[out]), stride, offset)
    read = {name: _Matrix(driver, values, stride if name == "residual" else n, offset).at for name, values in beside.items()}
    partial = driver.new("cuMemAlloc", 4 * call.splits * m * n) if call.splits > 1 else 0
    arguments = Arguments(
        x_on.at, w_on.at, read.get("bias", 0), read.get("residual", 0), y_on.at, partial, m, n, k, k + call.x_gap, stride,
        call.splits, y_type(call, case["dtype"]), 0, *(read.get(name, 0) for name in ("scale", "low", "high", "slope")),
        after(call),
    )  # fmt: skip
    tensor_maps = [_TensorMap() for _ in launch["maps"]]
    for map_spec, room in zip(launch["maps"], tensor_maps, strict=True):
        at, columns, rows, pitch = (
            (x_on.at, k, m, k + call.x_gap) if map_spec["operand"] == "x" else (w_on.at, *w.shape[::-1], w.shape[1])
        )
        driver.need(
            "cuTensorMapEncodeTiled", room.opaque(), MAP_TYPES[case["dtype"]], 2, at,
            (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(pitch * dtype.itemsize),
            (ctypes.c_uint32 * 2)(map_spec["columns"], map_spec["rows"]), (ctypes.c_uint32 * 2)(1, 1),
            0, SWIZZLES[map_spec["swizzle_bytes"]], 2, 0,
        )  # fmt: skip
    _launch(driver, module, case, arguments, [room.opaque() for room in tensor_maps])
    output, untouched = y_on.read()
    x64, w64 = x.astype(np.float64), w.astype(np.float64).T if case["kn"] else w.astype(np.float64)
    wide = {name: np.broadcast_to(values.astype(np.float64), (m, n)) for name, values in beside.items()}
    exact, allowed = stepped(x64 @ w64.T, np.abs(x64) @ np.abs(w64).T, wide, call, out)
    off = np.abs(output - exact) / allowed
    return float(np.where(np.isnan(off), np.inf, off).max()) if untouched else math.inf


def _launch(driver: Driver, module: int, case: dict[str, Any], arguments: Arguments, maps: list[Any]) -> None:
    launch, function = case["launch"], driver.new("cuModuleGetFunction", module, case["symbol"].encode())
    driver.need("cuFuncSetAttribute", function, MAX_DYNAMIC, launch["shared_bytes"])
    stream = driver.new("cuStreamCreate", 1)
    driver.need("cuCtxSynchronize")
    grid = (-(-arguments.m // launch["tile_m"]) * -(-arguments.n // launch["tile_n"]), arguments.splits, 1)
    settings = {"grid": grid, "block": launch["threads"], "shared": launch["shared_bytes"], "stream": stream}
    if code := driver.launch(function, [arguments, *maps], **settings):
        raise DriverError(f"cuLaunchKernel of {case['symbol']} answered {code}")
    if arguments.splits > 1:
        reduce = driver.new("cuModuleGetFunction", module, f"haotuner_reduce_{case['dtype']}".encode())
        assert driver.launch(reduce, [arguments], grid=REDUCE[0], block=REDUCE[1], stream=stream) == 0
    driver.need("cuStreamSynchronize", stream)
    driver.need("cuCtxSynchronize")


def judge(driver: Driver, cubin: bytes, case: dict[str, Any]) -> None:
    """AssertionError with the share unless every call of a case is right."""
    driver.open()
    module = driver.new("cuModuleLoadData", cubin)
    for fields in case["calls"]:
        call = Call(**fields)
        worst = share(driver, module, case, call)
        assert worst <= 1.0, f"{call}: {worst:.3g} of the tolerance"


def main(path: Path) -> None:
    """One JSON line a case."""
    job = json.loads(path.read_text())
    driver, cubin = Driver(), Path(job["cubin"]).read_bytes()
    for case in job["cases"]:
        failed = failure_of(functools.partial(judge, driver, cubin, case), seconds=SECONDS)
        print(json.dumps({"symbol": case["symbol"], "failed": failed}), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
