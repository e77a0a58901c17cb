"""Calls of kernels on the emulator as a host makes them (``ht_cuda_args.h``), judged against float64 numpy."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np

from haotuner.microkernels.cuda.fused import CHANNELS, Y_TYPES, coded, own_type
from haotuner.ops.epilogue import STEPS
from tests.emulator.memory import DTYPES, matrix
from tests.emulator.run import Call, Case, Verdict

UNIT_ROUNDOFF = {"fp32": 2.0**-24, "fp16": 2.0**-11, "bf16": 2.0**-8}
STEP_ROUNDOFFS = 8  # of fp32: erff, expf and a quotient (CUDA guide, mathematical functions: 2 ulp each) and some products
LEAST = {"fp32": 0.0, "fp16": 2.0**-25, "bf16": 0.0}  # half the distance of 0 to the next number, where results come near it
UNTOUCHED = 7.0  # exact in every dtype; what lies between the rows of Y
UNWRITTEN = 101  # of whole numbers, which have no NaN
SIGNED = {"u": "uint8", "s": "int8"}
BYTE_SUMS = 500.0  # a result of random bytes, scaled by one over this and the root of k, is a few tens
REDUCE_THREADS = 256
REDUCE_BLOCKS = 3  # any number is right
MAP_BYTES, MAP_TYPES = 128, {"fp16": 6, "bf16": 9}  # CUtensorMapDataType
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle


class Arguments(ctypes.Structure):
    """``ht_cuda_args``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("x", "w", "bias", "residual", "y", "partial")),
        *((name, ctypes.c_int32) for name in ("m", "n", "k", "ldx", "ldy", "splits", "y_type", "ldw")),
        *((name, ctypes.c_void_p) for name in ("scale", "low", "high", "slope")),
        ("after", ctypes.c_uint64),
    ]


class Groups(ctypes.Structure):
    """``ht_cuda_groups``."""

    _fields_ = [("ends", ctypes.c_void_p), ("count", ctypes.c_int32), ("zero", ctypes.c_int32)]


class Batch(ctypes.Structure):
    """``ht_cuda_batch``."""

    _fields_ = [
        *((name, ctypes.c_int64 * 3) for name in ("x", "w", "y")),
        ("extents", ctypes.c_int32 * 3),
        ("first", ctypes.c_int32),
        ("factor", ctypes.c_float),
        ("channel_rows", ctypes.c_int32),
        ("scale", ctypes.c_void_p),
        ("mask", ctypes.c_void_p),
        *((name, ctypes.c_int64 * 3) for name in ("scale_apart", "mask_apart")),
        ("mask_down", ctypes.c_int64),
        ("mask_right", ctypes.c_int64),
        ("channel_apart", ctypes.c_int64 * 3),
    ]


# Batches of more are called through the stand-in driver.
ONE_MATRIX = Batch(extents=(ctypes.c_int32 * 3)(1, 1, 1), factor=1.0)


def judge(case: Case, library: ctypes.CDLL, machine: ctypes.CDLL, seed: int) -> Verdict:
    """The largest error of a case's calls in each mode."""
    random = np.random.default_rng(seed)
    worst = max(_judge_call(case, call, library, machine, random, seed) for call in case.calls)
    return Verdict(worst=worst, conflicts=machine.emulator_bank_conflicts())


def trace(case: Case, library: ctypes.CDLL, machine: ctypes.CDLL, seed: int) -> Verdict:
    """Passes over the banks of shared memory for each step of k: of two calls' accesses what the longer one has more."""
    counters = []
    for call in case.calls[:2]:
        library.emulator_trace(1)
        _judge_call(case, call, library, machine, np.random.default_rng(seed), seed)
        counts = (ctypes.c_long * 2)()
        library.emulator_traced(counts)
        counters.append(np.array(counts))
    passes, least = counters[1] - counters[0]
    return Verdict(passes=float(passes / least) if least else 0.0, conflicts=machine.emulator_bank_conflicts())


def _judge_call(case: Case, call: Call, library: ctypes.CDLL, machine: ctypes.CDLL, random: Any, seed: int) -> float:
    m, n, k = call.m, call.n, call.k
    bytes_ = case.dtype == "int8"
    x, x_at = matrix(machine, m, k, k + call.x_gap, SIGNED[case.signs[0]] if bytes_ else case.dtype)
    groups = max(1, len(call.ends))
    rows, columns = (k, n) if case.kn else (n, k)
    w, w_at = matrix(machine, groups * rows, columns, columns, SIGNED[case.signs[1]] if bytes_ else case.dtype)
    out = call.out or own_type(case.dtype)
    y, y_at = matrix(machine, m, n, n + call.y_gap, out, call.y_alignment)
    partial, partial_at = matrix(machine, call.splits * m, n, n, "fp32") if call.splits > 1 else (None, None)
    read, places = _read_by(call, case, machine, groups)
    for operand in (x, w, *read.values()):
        whole = operand.dtype.itemsize == 1
        operand[...] = (
            random.integers(np.iinfo(operand.dtype).min, np.iinfo(operand.dtype).max + 1, operand.shape)
            if whole
            else random.standard_normal(operand.shape)
        )
    if bytes_ and "scale" in read:
        read["scale"] /= np.float32(BYTE_SUMS * math.sqrt(k))
    if "low" in read:
        low, high = read["low"].copy(), read["high"].copy()
        read["low"][...], read["high"][...] = np.minimum(low, high), np.maximum(low, high)
    x64, w64 = x.astype(np.float64), w.astype(np.float64).reshape(groups, rows, columns)
    before, size = np.full((m, n), UNTOUCHED), np.zeros((m, n))
    beside = {name: np.zeros((m, n)) for name in read}
    for group, of in enumerate(_groups(call)):
        weight = w64[group] if case.kn else w64[group].T
        before[of] = x64[of] @ weight
        size[of] = np.abs(x64[of]) @ np.abs(weight)
        for name, values in read.items():
            beside[name][of] = values[of] if name == "residual" else values[group]
    exact, allowed = stepped(before, size, beside, call, out, exact_sums=bytes_)
    reached = call.ends[-1] if call.ends else m
    exact[reached:], allowed[reached:] = UNTOUCHED, 1e-30
    arguments = Arguments(
        x_at, w_at, places.get("bias"), places.get("residual"), y_at, partial_at,
        m, n, k, k + call.x_gap, n + call.y_gap, call.splits, y_type(call, case.dtype), columns,
        *(places.get(name) for name in ("scale", "low", "high", "slope")), after(call),
    )  # fmt: skip
    whole_rows = np.lib.stride_tricks.as_strided(y, (m - 1, n + call.y_gap), y.strides)  # the last row has no gap behind it
    worst = 0.0
    for mode in case.modes:
        machine.emulator_set(int(mode == "late"), seed)
        whole_rows[...], y[...] = UNTOUCHED, np.nan if UNIT_ROUNDOFF.get(out) else UNWRITTEN
        y[reached:] = UNTOUCHED
        if partial is not None:
            partial[...] = np.nan
        _launch(case, call, library, machine, arguments)
        share = np.abs(y.astype(np.float64) - exact) / allowed
        strayed = bool((whole_rows[:, n:] != UNTOUCHED).any())
        worst = max(worst, math.inf if strayed else float(np.where(np.isnan(share), np.inf, share).max()))
    return worst


def _groups(call: Call) -> list[slice]:
    """Rows of each group; all of them where there are none."""
    cuts = (0, *call.ends) if call.ends else (0, call.m)
    return [slice(start, end) for start, end in pairwise(cuts)]


def _launch(case: Case, call: Call, library: ctypes.CDLL, machine: ctypes.CDLL, arguments: Arguments) -> None:
    launch = case.launch
    maps = [_tensor_map(description, arguments, case, len(call.ends), machine) for description in launch["maps"]]
    x_map, w_map = (ctypes.addressof(tensor_map) for tensor_map in maps) if maps else (0, 0)
    tiles = -(-arguments.m // launch["tile_m"]) * -(-arguments.n // launch["tile_n"])
    ends = (ctypes.c_int32 * len(call.ends))(*call.ends)
    groups = Groups(ctypes.addressof(ends), len(call.ends), 0)
    if call.ends:  # as many as the worst cut of m has, as the host launches
        filled = min(arguments.m, len(call.ends))
        tiles = (filled + (arguments.m - filled) // launch["tile_m"]) * -(-arguments.n // launch["tile_n"])
    more = ctypes.addressof(ONE_MATRIX if launch["batch"] else groups)
    _run(
        library, case.symbol, arguments, (more, x_map, w_map), (tiles, arguments.splits), launch["threads"],
        launch["shared_bytes"],
    )  # fmt: skip
    if arguments.splits > 1:
        _run(library, f"haotuner_reduce_{case.dtype}", arguments, (0, 0, 0), (REDUCE_BLOCKS, 1), REDUCE_THREADS, 0)


def _run(
    library: ctypes.CDLL,
    symbol: str,
    arguments: Arguments,
    more: tuple[int, int, int],
    grid: tuple[int, int],
    threads: int,
    shared: int,
) -> None:
    function = library[f"emulator_run_{symbol}"]
    function.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_uint] * 4
    error = function(ctypes.addressof(arguments), *more, *grid, threads, shared)
    if error:
        raise RuntimeError(f"launch of {symbol}, grid {grid}, {threads} threads, {shared} bytes: error {error}")


def _tensor_map(description: Mapping[str, Any], arguments: Arguments, case: Case, groups: int, machine: ctypes.CDLL) -> Any:
    """The map that the host encodes of a ``Map``."""
    m, n, k = arguments.m, arguments.n, arguments.k
    size = DTYPES[case.dtype].itemsize
    groups = max(1, groups)
    of_w = (n, groups * k, n) if case.kn else (k, groups * n, k)
    columns, rows, pitch = (k, m, arguments.ldx) if description["operand"] == "x" else of_w
    buffer = ctypes.create_string_buffer(2 * MAP_BYTES)
    encoded = (ctypes.c_char * MAP_BYTES).from_buffer(buffer, -ctypes.addressof(buffer) % MAP_BYTES)
    error = machine.cuTensorMapEncodeTiled(
        ctypes.c_void_p(ctypes.addressof(encoded)), MAP_TYPES[case.dtype], 2,
        ctypes.c_void_p(arguments.x if description["operand"] == "x" else arguments.w),
        (ctypes.c_uint64 * 2)(columns, rows), (ctypes.c_uint64 * 1)(pitch * size),
        (ctypes.c_uint32 * 2)(description["columns"], description["rows"]), (ctypes.c_uint32 * 2)(1, 1),
        0, SWIZZLES[description["swizzle_bytes"]], 2, 0,
    )  # fmt: skip
    if error:
        raise RuntimeError(f"cuTensorMapEncodeTiled({description}) for m={m} n={n} k={k}: error {error}")
    return encoded


def _read_by(call: Call, case: Case, machine: ctypes.CDLL, groups: int) -> tuple[dict[str, Any], dict[str, int]]:
    """What the steps read, and where it lies: a row of values for each group, or rows as far apart as those of Y."""
    operands, places = {}, {}
    for name in (operand for step in call.steps for operand, _ in STEPS[step].operands):
        out = call.out or own_type(case.dtype)
        shape = (call.m, call.n, call.n + call.y_gap, out if out in UNIT_ROUNDOFF else "fp32")
        if name in CHANNELS:
            shape = (groups, call.n, call.n, case.dtype if case.dtype in UNIT_ROUNDOFF else "fp32")
        operands[name], places[name] = matrix(machine, *shape, call.y_alignment)
    return operands, places


def after(call: Call) -> int:
    """As a launch is told the steps: what is only added says itself."""
    return 0 if set(call.steps) <= {"bias", "residual"} else coded(call.steps)


def y_type(call: Call, dtype: str) -> int:
    """The number of Y's type."""
    return Y_TYPES.index(call.out) if call.out not in ("", own_type(dtype)) else 0


def stepped(
    sums: Any, size: Any, beside: Mapping[str, Any], call: Call, out: str, *, exact_sums: bool = False
) -> tuple[Any, Any]:
    """The result in float64, and what it may be off.

    The rounding of an fp32 sum of k products in any order (Higham 2002, eq. 3.5), of each step, and of the result. Exact
    sums are rounded once, where they become floats.
    """
    fp32 = UNIT_ROUNDOFF["fp32"]
    value, allowed = sums, (call.k + 4 + call.splits) * fp32 * (size + np.abs(sums))
    if exact_sums:
        allowed = fp32 * np.abs(sums) * (bool(call.steps) or out in UNIT_ROUNDOFF)
    for step in (STEPS[name] for name in call.steps):
        entered, value = np.abs(value), step.apply(value, beside)
        inside = STEP_ROUNDOFFS * np.minimum(entered, 1.0 + np.abs(value))
        allowed = allowed * step.enlarges(beside) + fp32 * (np.abs(value) + inside)
    if out not in UNIT_ROUNDOFF:  # what lies so near to a half may be either
        limits = np.iinfo(DTYPES[out])
        low, rounded, high = (
            np.clip(np.rint(bound), limits.min, limits.max) for bound in (value - allowed, value, value + allowed)
        )
        return rounded, np.maximum(high - rounded, rounded - low) + 1e-30
    return value, allowed + UNIT_ROUNDOFF[out] * np.abs(value) + LEAST[out] + 1e-30
