"""cuBLASLt without a framework: its heuristic's first choice, and the best of 16 that it proposes.

The library is the one of a CUDA toolkit or of torch's wheels. Sums are in fp32: no TF32, no partial sums in halves.
"""

from __future__ import annotations

import ctypes
import statistics
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from haotuner.bench.contender import Call, Operands, Setting
from haotuner.bench.peers.gpu_driver import Driver, GraphClock, Memory
from haotuner.spec.op import Op

NAMES = ("libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so.11")
WORKSPACE_BYTES = 32 << 20  # what NVIDIA's documentation advises on Hopper; the heuristic gets no more elsewhere
TRIES = 5
# cublasLt.h and library_types.h
_TYPES = {"fp32": 0, "fp16": 2, "bf16": 14}  # CUDA_R_32F, CUDA_R_16F, CUDA_R_16BF
_COMPUTE_32F, _SCALE_32F = 68, 0
_DESC_TRANSA, _OP_T = 3, 1
_PREF_WORKSPACE, _PREF_REDUCTIONS = 1, 3
_REDUCTIONS = 3  # in place, or in the compute type


class _Result(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t."""

    _fields_ = [
        ("algo", ctypes.c_uint64 * 8), ("workspace", ctypes.c_size_t), ("state", ctypes.c_int), ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]  # fmt: skip


class CublasLt:
    """``cublasLtMatmul`` by the heuristic's first choice."""

    width = 1
    alone = False
    proposals = 1

    def __init__(self, setting: Setting) -> None:
        self._driver = Driver(setting.ordinal or 0)
        self._library = _library()
        self._library.cublasLtGetVersion.restype = ctypes.c_size_t
        self.version = str(self._library.cublasLtGetVersion())
        self._handle = self._create("cublasLtCreate")
        self._workspace = self._driver.workspace(WORKSPACE_BYTES)
        self._one, self._zero = ctypes.c_float(1), ctypes.c_float(0)
        self._op: Any = None
        self._weights: list[Memory] = []
        self._operands: list[Memory] = []
        self._calls: list[Call] = []

    def prepare(self, op: Op, copies: Sequence[Operands]) -> None:
        """Upload the weights; each is used where it lies."""
        self._leave()
        self._driver.free(self._weights)
        self._weights = []
        self._op = op
        self._weights = [self._driver.upload(copy["weight"], op.dtype) for copy in copies]

    def aim(self, calls: Sequence[Operands], y: NDArray[Any]) -> Sequence[Call]:
        """One call a weight, all into the same output. RuntimeError if nothing is proposed."""
        self._leave()
        (m, n), k, dtype = y.shape, self._op["k"], self._op.dtype
        self._operands = [self._driver.upload(calls[0]["x"], dtype), self._driver.empty((m, n), dtype)]
        # Column-major, as the library has it: y^T (n, m) = (w^T (k, n))^T · x^T (k, m).
        kind = _TYPES[dtype]
        what = self._create("cublasLtMatmulDescCreate", _COMPUTE_32F, _SCALE_32F)
        self._call("cublasLtMatmulDescSetAttribute", what, _DESC_TRANSA, *_value(ctypes.c_int32(_OP_T)))
        w, x_, y_ = (self._layout(kind, rows, columns) for rows, columns in ((k, n), (k, m), (n, m)))
        result = self._proposed(what, w, x_, y_)
        rounds = [
            [self._bound(what, w, x_, y_, algorithm, weight) for weight in self._weights[: len(calls)]]
            for algorithm in result
        ]
        self._calls = rounds[0] if len(rounds) == 1 else self._fastest(rounds)
        return self._calls

    def result(self, index: int) -> NDArray[Any]:
        """Into a poisoned output."""
        y = self._operands[1]
        self._driver.poison(y)
        self._calls[index]()
        return self._driver.download(y)

    def clock(self, calls: Sequence[Call]) -> GraphClock:
        """Graphs of the driver."""
        return GraphClock(self._driver, calls)

    def _proposed(self, what: ctypes.c_void_p, w: ctypes.c_void_p, x: ctypes.c_void_p, y: ctypes.c_void_p) -> list[_Result]:
        preference = self._create("cublasLtMatmulPreferenceCreate")
        limits = {_PREF_WORKSPACE: ctypes.c_uint64(WORKSPACE_BYTES), _PREF_REDUCTIONS: ctypes.c_uint32(_REDUCTIONS)}
        for name, value in limits.items():
            self._call("cublasLtMatmulPreferenceSetAttribute", preference, name, *_value(value))
        results, count = (_Result * self.proposals)(), ctypes.c_int(0)
        arguments = (self._handle, what, w, x, y, y, preference, self.proposals, results, ctypes.byref(count))
        self._call("cublasLtMatmulAlgoGetHeuristic", *arguments)
        self._call("cublasLtMatmulPreferenceDestroy", preference)
        sound = [result for result in results[: count.value] if result.state == 0]
        if not sound:
            raise RuntimeError("the heuristic proposes nothing for this shape")
        return sound

    def _fastest(self, rounds: Sequence[list[Call]]) -> list[Call]:
        """The calls of the fastest proposal; those that fail are left out."""
        times: dict[int, float] = {}
        for index, calls in enumerate(rounds):
            try:
                calls[0]()
                turns = [calls[turn % len(calls)] for turn in range(TRIES)]
                times[index] = statistics.median(self._driver.timed_us(call) for call in turns)
            except RuntimeError as error:
                print(f"proposal {index}: {error}", file=sys.stderr)
        if not times:
            raise RuntimeError("none of the proposals runs")
        return rounds[min(times, key=lambda index: times[index])]

    def _bound(
        self,
        what: ctypes.c_void_p,
        w: ctypes.c_void_p,
        x: ctypes.c_void_p,
        y: ctypes.c_void_p,
        chosen: _Result,
        weight: Memory,
    ) -> Call:
        x_at, y_at = (ctypes.c_void_p(memory.address) for memory in self._operands)
        alpha, zero = ctypes.byref(self._one), ctypes.byref(self._zero)
        arguments = (
            self._handle, what, alpha, ctypes.c_void_p(weight.address), w, x_at, x, zero, y_at, y, y_at, y,
            ctypes.byref(chosen), ctypes.c_void_p(self._workspace), ctypes.c_size_t(WORKSPACE_BYTES),
            ctypes.c_void_p(self._driver.stream),
        )  # fmt: skip
        return partial(self._call, "cublasLtMatmul", *arguments)

    def _layout(self, kind: int, rows: int, columns: int) -> ctypes.c_void_p:
        sizes = (ctypes.c_uint64(rows), ctypes.c_uint64(columns), ctypes.c_int64(rows))
        return self._create("cublasLtMatrixLayoutCreate", kind, *sizes)

    def _create(self, name: str, *arguments: Any) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        self._call(name, ctypes.byref(made), *arguments)
        return made

    def _call(self, name: str, *arguments: Any) -> None:
        status = self._library[name](*arguments)
        if status:
            raise RuntimeError(f"{name} answers cublasStatus_t {status}")

    def _leave(self) -> None:
        """Give the last aim's operands back; descriptions, some hundred bytes each, stay."""
        self._driver.free(self._operands)
        self._operands, self._calls = [], []


class CublasLtBest(CublasLt):
    """The fastest of the heuristic's first 16 choices, timed at every shape."""

    alone = True
    proposals = 16


def _value(value: Any) -> tuple[Any, ctypes.c_size_t]:
    return ctypes.byref(value), ctypes.c_size_t(ctypes.sizeof(value))


def _library() -> ctypes.CDLL:
    """ImportError where it is neither on the loader's path nor in a wheel of NVIDIA."""
    folders = [Path(folder) for folder in sys.path if folder]
    wheels = [path for folder in folders for name in NAMES for path in sorted(folder.glob(f"nvidia/*/lib/{name}"))]
    why: OSError | None = None
    for name in (*NAMES, *map(str, wheels)):
        try:
            return ctypes.CDLL(name)
        except OSError as error:
            why = error
    raise ImportError(f"no libcublasLt: {why}")
