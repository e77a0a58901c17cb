"""Units of generated kernels on the stand-in, each launched as a host does: ``python -m tests.standin.units JOB.json``."""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tests.emulator.memory import DTYPES
from tests.standin.client import Arguments, Driver, DriverError

MAX_DYNAMIC = 8  # CUfunction_attribute
ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
MAP_TYPES, SWIZZLES = {"fp32": 7, "fp16": 6, "bf16": 9}, {0: 0, 32: 1, 64: 2, 128: 3}
REDUCE = (3, 256)  # blocks, any number is right, and threads


class _TensorMap(ctypes.Structure):
    _fields_ = [("room", ctypes.c_byte * 256)]

    def opaque(self) -> Any:
        """The 128 bytes of it at a multiple of 64."""
        return (ctypes.c_byte * 128).from_address((ctypes.addressof(self) + 63) // 64 * 64)


def _bits(values: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    return np.ascontiguousarray(values).view(np.uint8)


def share(driver: Driver, module: int, kernel: dict[str, Any], m: int, n: int, k: int, splits: int) -> float:
    """The largest error of one product as a share of its tolerance; infinite where nothing was written."""
    dtype, launch, random = kernel["dtype"], kernel["launch"], np.random.default_rng(m * n + k)
    x, w = (random.standard_normal(shape).astype(DTYPES[dtype]) for shape in ((m, k), (k, n) if kernel["kn"] else (n, k)))
    y = np.empty((m, n), DTYPES[dtype])
    x_at, w_at, y_at = driver.upload(_bits(x)), driver.upload(_bits(w)), driver.new("cuMemAlloc", y.nbytes)
    partial = driver.new("cuMemAlloc", 4 * splits * m * n) if splits > 1 else 0
    arguments = Arguments(x_at, w_at, 0, 0, y_at, partial, m, n, k, k, n, splits, 0, 0)
    kept = [_TensorMap() for _ in launch["maps"]]
    for one, room in zip(launch["maps"], kept, strict=True):
        address, columns, rows = (x_at, k, m) if one["operand"] == "x" else (w_at, *((n, k) if kernel["kn"] else (k, n)))
        driver.need(
            "cuTensorMapEncodeTiled", room.opaque(), MAP_TYPES[dtype], 2, address,
            (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(columns * DTYPES[dtype].itemsize),
            (ctypes.c_uint32 * 2)(one["columns"], one["rows"]), (ctypes.c_uint32 * 2)(1, 1),
            0, SWIZZLES[one["swizzle_bytes"]], 2, 0,
        )  # fmt: skip
    function = driver.new("cuModuleGetFunction", module, kernel["symbol"].encode())
    driver.need("cuFuncSetAttribute", function, MAX_DYNAMIC, launch["shared_bytes"])
    stream = driver.new("cuStreamCreate", 1)
    driver.need("cuCtxSynchronize")
    tiles = -(-m // launch["tile_m"]) * -(-n // launch["tile_n"])
    parameters = [arguments, *(room.opaque() for room in kept)]
    grid = (tiles, splits, 1)
    if code := driver.launch(
        function, parameters, grid=grid, block=launch["threads"], shared=launch["shared_bytes"], stream=stream
    ):
        raise DriverError(f"cuLaunchKernel of {kernel['symbol']} answered {code}")
    if splits > 1:
        reduce = driver.new("cuModuleGetFunction", module, f"haotuner_reduce_{dtype}".encode())
        assert driver.launch(reduce, [arguments], grid=REDUCE[0], block=REDUCE[1], stream=stream) == 0
    driver.need("cuStreamSynchronize", stream)
    found = driver.download(y_at, _bits(y)).view(DTYPES[dtype]).reshape(m, n).astype(np.float64)
    x64, w64 = x.astype(np.float64), w.astype(np.float64).T if kernel["kn"] else w.astype(np.float64)
    exact = x64 @ w64.T
    allowed = ROUNDOFF[dtype] * np.abs(exact) + (k + 4 + splits) * ROUNDOFF["fp32"] * (np.abs(x64) @ np.abs(w64).T) + 1e-30
    off = np.abs(found - exact) / allowed
    return float(np.where(np.isnan(off), np.inf, off).max())


def main(path: Path) -> None:
    """One JSON document: the worst share of each kernel."""
    job = json.loads(path.read_text())
    driver = Driver()
    driver.open()
    module = driver.new("cuModuleLoadData", Path(job["cubin"]).read_bytes())
    worst = {}
    for kernel in job["kernels"]:
        cases = [(*shape, splits) for shape in kernel["shapes"] for splits in (1, 3)]
        worst[kernel["symbol"]] = max(share(driver, module, kernel, *case) for case in cases)
    print(json.dumps(worst))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
