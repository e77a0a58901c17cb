"""Kernel Tuner cache files: their rows, the meaning of foreign parameters, and records made of both.

The tool appends one row a configuration and closes the braces only when it is done, so a file may end at any byte
(github.com/KernelTuner/kernel_tuner, ``schema/cache/1.1.0``; files older than that schema lack ``timestamp``).
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from haotuner.errors import UsageError
from haotuner.records.codec import trial_of
from haotuner.records.text import read_text
from haotuner.spec.device import Device, Kind
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.op import Op
from haotuner.spec.record import Failed, Outcome, Record, Timed
from haotuner.spec.shape import AXIS_LIMIT, Shape

_DTYPES = {32: "fp32", 16: "fp16"}  # CLBlast's PRECISION; 64 and the complex ones have no Op
# No file says it: the only published set has 1536 (AutoTuningAssociation/benchmark_hub, kernels/dedisp_milo). Times are held
# against the GB/s column, which counts a byte for every channel.
_CHANNELS = 1536


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Problem that one file measured: an op (as text, for kinds that ``Op`` does not know), a shape, its flops.

    ``counted_bytes`` is what a ``GB/s`` column counts, where a kernel's files have one.
    """

    op: str
    shape: Shape
    flops: float
    counted_bytes: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelMapping:
    """Mapping of one foreign kernel to a family of micro-kernels."""

    name: str
    family: str
    meaning: str
    params: Mapping[str, str]  # foreign parameter to ours, in the order of the micro-kernel's name
    absent: Mapping[str, int]  # our parameters that older kernels do not have, and what those kernels do
    problem_params: tuple[str, ...]  # foreign parameters that belong to the problem
    switches: frozenset[str]  # foreign parameters that may be 0; all others are sizes
    sizes: Mapping[int, str]  # how many extents a problem may have, and what they are
    kinds: tuple[Kind, ...]  # of the devices that such kernels run on
    problem: Callable[[tuple[int, ...], Mapping[str, int]], Problem]  # ValueError: the row is of a problem without an op

    def missing(self, keys: tuple[str, ...]) -> list[str]:
        """Parameters that this mapping needs and a file does not have."""
        needed = [key for key, ours in self.params.items() if ours not in self.absent]
        return [key for key in (*needed, *self.problem_params) if key not in keys]

    def unknown(self, keys: tuple[str, ...]) -> list[str]:
        """Parameters of a file that this mapping does not know."""
        return [key for key in keys if key not in self.params and key not in self.problem_params]

    def fits(self, sizes: tuple[int, ...]) -> None:
        """Raise ``UsageError`` unless a problem of this kernel has so many extents."""
        if len(sizes) not in self.sizes:
            raise UsageError(f"problem_size {list(sizes)}: {self.name} needs {' or '.join(self.sizes.values())}")

    def kernel(self, values: Mapping[str, int]) -> MicroKernel:
        """The micro-kernel of one configuration."""
        params = ((ours, values[key] if key in values else self.absent[ours]) for key, ours in self.params.items())
        return MicroKernel(self.family, tuple(params))


def _gemm(sizes: tuple[int, ...], values: Mapping[str, int]) -> Problem:
    # The files give m and n only: the grid has no third axis. CLBlast's own tuner takes all three equal
    # (CLBlast/src/tuning/kernels/xgemm.hpp, default 1024); ``GFLOP/s`` columns are checked against it row by row.
    m, n, k = sizes if len(sizes) == 3 else (*sizes, sizes[0])
    dtype = _DTYPES.get(values["PRECISION"])
    if dtype is None:
        raise ValueError(f"PRECISION {values['PRECISION']}: known are {', '.join(map(str, _DTYPES))}")
    op = Op(kind="dense", static=(("n", n), ("k", k)), dtype=dtype)
    shape = Shape.of(m=m)
    return Problem(op=op.name, shape=shape, flops=op.flops(shape))


def _conv(sizes: tuple[int, ...], values: Mapping[str, int]) -> Problem:
    width, height = sizes
    filter_width, filter_height = values["filter_width"], values["filter_height"]
    return Problem(
        op=f"conv2d_w{width}_h{height}_fw{filter_width}_fh{filter_height}",
        shape=Shape.of(),  # every extent is static: the kernel is compiled for them
        flops=2.0 * width * height * filter_width * filter_height,
    )


def _dedispersion(sizes: tuple[int, ...], values: Mapping[str, int]) -> Problem:
    samples, dms, beams = (*sizes, 1)[:3]
    if beams != 1:
        raise ValueError(f"problem_size names {beams} beams: only one is known")
    summed = float(samples * dms * _CHANNELS)
    return Problem(
        op=f"dedispersion_s{samples}_d{dms}_c{_CHANNELS}",
        shape=Shape.of(),
        flops=summed,  # one addition each; each reads a byte, which the files' GB/s count
        counted_bytes=summed,
    )


XGEMM = KernelMapping(
    name="xgemm",
    family="clblast_xgemm",
    meaning="CLBlast's Xgemm, C[m,n] = A[k,m]^T B[k,n] (Nugteren 2018, table 1)",
    params={
        **{name: name.lower() for name in ("MWG", "NWG", "KWG", "MDIMC", "NDIMC", "MDIMA", "NDIMB", "KWI", "VWM", "VWN")},
        **{name: name.lower() for name in ("STRM", "STRN", "SA", "SB")},
    },
    absent={},
    problem_params=("PRECISION",),
    switches=frozenset({"STRM", "STRN", "SA", "SB"}),
    sizes={2: "m, n", 3: "m, n, k"},
    kinds=("cuda", "hip"),
    problem=_gemm,
)
CONV = KernelMapping(
    name="conv",
    family="kt_conv2d",
    meaning="Kernel Tuner's 2-D convolution (van Werkhoven 2014): one image, one filter kept in constant memory",
    params={
        "block_size_x": "bx",
        "block_size_y": "by",
        "tile_size_x": "tx",
        "tile_size_y": "ty",
        "filter_height": "fh",  # of the problem too, but the loops over the filter are unrolled in the kernel
        "filter_width": "fw",
        "read_only": "ro",
        "use_padding": "pad",
        "use_shmem": "sh",
        "use_cmem": "cm",
    },
    # The first version has no such switches: it always stages the image in shared memory and always keeps the filter
    # in constant memory (github.com/KernelTuner/kernel_tuner, examples/cuda/convolution.cu).
    absent={"sh": 1, "cm": 1},
    problem_params=("filter_width", "filter_height"),
    switches=frozenset({"read_only", "use_padding", "use_shmem", "use_cmem"}),
    sizes={2: "the width and the height of the image"},
    kinds=("cuda", "hip"),
    problem=_conv,
)
DEDISPERSION = KernelMapping(
    name="dedispersion",
    family="kt_dedispersion",
    meaning="Kernel Tuner's dedispersion (Sclocco 2016): samples of all channels summed along many delays",
    params={
        "block_size_x": "bx",
        "block_size_y": "by",
        "block_size_z": "bz",
        "tile_size_x": "tx",
        "tile_size_y": "ty",
        "tile_stride_x": "sx",
        "tile_stride_y": "sy",
        "loop_unroll_factor_channel": "un",
    },
    absent={"bz": 1, "un": 0},  # one beam; unrolling left to the compiler
    problem_params=(),
    switches=frozenset({"tile_stride_x", "tile_stride_y", "loop_unroll_factor_channel"}),
    sizes={2: "samples, DMs", 3: "samples, DMs, beams"},
    kinds=("cuda", "hip"),
    problem=_dedispersion,
)
MAPPINGS = (XGEMM, CONV, DEDISPERSION)


def named(name: str) -> KernelMapping:
    """The mapping of that name; ``UsageError`` if there is none."""
    known = {mapping.name: mapping for mapping in MAPPINGS}
    if name not in known:
        raise UsageError(f"unknown mapping {name!r}; known: {', '.join(known)}")
    return known[name]


def choose(keys: tuple[str, ...], name: str | None = None) -> KernelMapping:
    """The mapping of that name, or without one the only mapping that knows a file's parameters.

    Raises:
        UsageError: no such mapping, or it does not fit the parameters.
    """
    tried = list(MAPPINGS) if name is None else [named(name)]
    for mapping in tried:
        if not mapping.missing(keys):
            return mapping
    why = "; ".join(f"{mapping.name} needs {', '.join(mapping.missing(keys))}" for mapping in tried)
    raise UsageError(f"no mapping fits the parameters {', '.join(keys)}: {why}")


_BLANK = re.compile(r"[ \t\r\n]*")
_DIGITS = 4000  # Python refuses to read integers of more than 4300 (sys.get_int_max_str_digits), and the file with them
_JSON = json.JSONDecoder(parse_int=lambda text: int(text) if len(text) <= _DIGITS else math.inf)
_KINDS = {list: "a list", str: "a text", type(None): "null", bool: "a truth value"}
_HEADER = ("device_name", "kernel_name", "problem_size", "tune_params_keys")


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheFile:
    """Contents of one file. ``torn`` is where reading had to stop, empty for a file read to its end."""

    path: Path
    device_name: str
    kernel_name: str
    problem_size: tuple[int, ...]
    keys: tuple[str, ...]
    rows: tuple[tuple[str, Mapping[str, Any]], ...]
    odd: Mapping[str, int]  # what stood where a row belongs, and how often
    torn: str = ""


def read_cache(path: Path) -> CacheFile:
    """Header and complete rows of a cache file, gzipped or not.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: it is not a Kernel Tuner cache file, or it ends before its rows begin.
    """
    text, stopped = read_text(path, "a Kernel Tuner cache file")
    header: dict[str, Any] = {}
    rows: list[tuple[str, Mapping[str, Any]]] = []
    odd: Counter[str] = Counter()
    torn = ""

    def row(name: str, at: int) -> int:
        value, end = _JSON.raw_decode(text, at)
        if isinstance(value, dict):
            rows.append((name, value))
        else:
            odd[f"a row is {_KINDS.get(type(value), 'a number')}, expected an object"] += 1
        return end

    def top(key: str, at: int) -> int:
        if key == "cache":
            return _object(text, at, row)
        header[key], end = _JSON.raw_decode(text, at)
        return end

    try:
        _object(text, 0, top)
    except (ValueError, RecursionError) as error:
        torn = f"{stopped or str(error)[:120]}; {len(rows)} complete rows before that"
    missing = [key for key in _HEADER if key not in header]
    if missing:
        result = f"; reading stopped: {torn}" if torn else ""
        raise UsageError(
            f"{path}: not a Kernel Tuner cache file, or cut before its rows: no {', '.join(missing)}{result}. "
            "What comes in: Kernel Tuner's caches, and JSON Lines as `haotuner records export` writes them"
        )
    return CacheFile(
        path=path,
        device_name=_named(path, header, "device_name"),
        kernel_name=_named(path, header, "kernel_name"),
        problem_size=_sizes(path, header["problem_size"]),
        keys=_keys(path, header["tune_params_keys"]),
        rows=tuple(rows),
        odd=dict(odd),
        torn=torn,
    )


def _object(text: str, at: int, member: Callable[[str, int], int]) -> int:
    """Walk the object at ``at``: ``member`` gets each key and where its value starts, and gives back where it ends.

    Gives back the end of the object. What ``member`` kept before an error stays kept: that is how a torn file is read.
    """
    at = _expect(text, at, "{")
    while text[at : at + 1] != "}":
        key, at = _JSON.raw_decode(text, at)
        if not isinstance(key, str):
            raise ValueError(f"a key is {str(key)[:40]!r} at character {at}")
        at = _blank(text, member(key, _expect(text, at, ":")))
        if text[at : at + 1] != "}":
            at = _expect(text, at, ",")
    return at + 1


def _expect(text: str, at: int, mark: str) -> int:
    at = _blank(text, at)
    if text[at : at + 1] != mark:
        what = "the end of the file" if at >= len(text) else repr(text[at : at + 10])
        raise ValueError(f"expected {mark!r}, found {what} at character {at}")
    return _blank(text, at + 1)


def _blank(text: str, at: int) -> int:
    match = _BLANK.match(text, at)
    return match.end() if match else at


def _named(path: Path, header: Mapping[str, Any], key: str) -> str:
    if not isinstance(header[key], str):
        raise UsageError(f"{path}: {key} is {header[key]!r}, expected a text")
    return str(header[key])


def _sizes(path: Path, value: object) -> tuple[int, ...]:
    parts = value if isinstance(value, list) else [value]
    sizes = tuple(int(str(part)) if re.fullmatch(r"[0-9]{1,10}", str(part)) else 0 for part in parts)
    if not sizes or not all(1 <= size <= AXIS_LIMIT for size in sizes):
        raise UsageError(
            f"{path}: problem_size is {str(value)[:80]!r}, expected whole numbers from 1 to 2^31-1; "
            "write there what the kernel was run on"
        )
    return sizes


def _keys(path: Path, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in value):
        raise UsageError(f"{path}: tune_params_keys is {str(value)[:60]!r}, expected a list of names")
    return tuple(value)


_MS = 1000.0  # Kernel Tuner's times are milliseconds, ours microseconds
_NO_TIME = 1e20  # what versions before the error words wrote for a failed configuration
_FAILURES = {
    "CompilationFailedConfig": Failed(stage="build", reason="compile_error", detail="CompilationFailedConfig"),
    "RuntimeFailedConfig": Failed(stage="run", reason="error", detail="RuntimeFailedConfig"),
    "InvalidConfig": Failed(stage="build", reason="error", detail="InvalidConfig: breaks a restriction of the search space"),
}
_BOOKKEEPING = frozenset({"time", "times", "timestamp", "strategy_time", "framework_time"})  # kept elsewhere, or of the tool
# Error words are names of classes. A number in quotes was written by another tool, and in what unit nobody knows.
_NUMERAL = re.compile(r"\s*([-+]?\s*[.,]?[0-9].*|[-+]?(nan|inf|infinity)\s*|)", re.IGNORECASE | re.DOTALL)
_TOO_FAST = 1.5  # over the profile's peak: beyond any boost clock, so the unit is wrong
_GFLOPS_RATIO = 4.0  # own column against ours: published files count a multiply-add as two flops or as four
_TIME_RATIO = 10.0  # `time` against the mean of `times`: a wrong unit is a factor of 1000, an outlier is not
# `benchmark_time` is the wall clock around all samples, in milliseconds (kernel_tuner/core.py). In the eight published
# files the samples make up 0.82 to 0.9999 of it; in microseconds even one of 32 samples is 31 times as much.
_WALL_RATIO = 4.0


class Refusal(Exception):
    """One row cannot become a record; the text is the reason it is counted under."""


def record_of(cache: CacheFile, row: Mapping[str, Any], rule: KernelMapping, device: Device) -> Record:
    """The record of one row.

    Raises:
        Refusal: the row cannot be true, or has no meaning here.
    """
    known = (*rule.params, *rule.problem_params)
    values = {key: _whole(key, row.get(key), 0 if key in rule.switches else 1) for key in cache.keys if key in known}
    try:
        problem = rule.problem(cache.problem_size, values)
    except ValueError as error:
        raise Refusal(str(error)) from error
    fingerprint = _fingerprint("kernel-tuner", rule.family, device.id, problem.op)
    facts = {key: value for key, value in row.items() if key not in (*known, *_BOOKKEEPING) and _is_fact(value)}
    return Record(
        trial=trial_of(problem.op, rule.kernel(values).name, problem.shape, weights="hot"),
        outcome=_outcome(row, problem, device),
        device_id=device.id,
        fingerprint=fingerprint,
        session=f"import-{fingerprint[:12]}",
        when=_when(row.get("timestamp")),
        facts={"source": cache.path.name, "kernel": cache.kernel_name, **facts},
    )


def unkept(row: Mapping[str, Any], rule: KernelMapping) -> list[str]:
    """Columns whose number no record can hold: NaN, infinity, integers beyond the largest float."""
    ours = (*rule.params, *rule.problem_params, *_BOOKKEEPING)
    return [key for key, value in row.items() if key not in ours and type(value) in (int, float) and not _number(value)]


def _outcome(row: Mapping[str, Any], problem: Problem, device: Device) -> Outcome:
    time = row.get("time")
    if isinstance(time, str):
        if _NUMERAL.fullmatch(time):
            raise Refusal("time is a number in quotes, or an empty text: not written by Kernel Tuner, its unit is unknown")
        return _FAILURES.get(time, Failed(stage="run", reason="error", detail=time[:200]))
    if not _number(time):
        raise Refusal(f"time is {'missing' if time is None else 'not a finite number'}")
    if time >= _NO_TIME:
        return Failed(stage="run", reason="error", detail=f"time {time:g}: the tool's mark of a failed configuration")
    samples = row.get("times") or [time]
    if not isinstance(samples, list) or not all(map(_number, samples)):
        raise Refusal("times are not all finite numbers")
    if time <= 0 or min(samples) <= 0:
        raise Refusal("a time is zero or negative")
    mean = sum(samples) / len(samples)
    if not time / _TIME_RATIO < mean < time * _TIME_RATIO:
        raise Refusal("time and times differ tenfold: mixed units")
    _in_milliseconds(row, mean, len(samples), problem, device)
    return Timed(samples_us=tuple(float(sample) * _MS for sample in samples))


def _in_milliseconds(row: Mapping[str, Any], mean: float, count: int, problem: Problem, device: Device) -> None:
    """Hold a time against all else that the row and the device's profile say."""
    gflops = problem.flops / (mean * 1e6)
    gflops_, wall = row.get("GFLOP/s"), row.get("benchmark_time")
    if _number(gflops_) and not 1 / _GFLOPS_RATIO < gflops / max(gflops_, 1e-9) < _GFLOPS_RATIO:
        raise Refusal("GFLOP/s does not fit the time and the problem: not milliseconds, or another problem size")
    rate, counted = row.get("GB/s"), problem.counted_bytes
    if counted and _number(rate) and not 1 / _GFLOPS_RATIO < counted / (mean * 1e6) / max(rate, 1e-9) < _GFLOPS_RATIO:
        raise Refusal("GB/s does not fit the time and the problem: not milliseconds, or another problem size")
    if _number(wall) and 0 < wall * _WALL_RATIO < mean * count:  # 0: the tool had it from an earlier run
        raise Refusal("the times add up to more than benchmark_time: not milliseconds")
    if device.peak_gflops and gflops > device.peak_gflops * _TOO_FAST:
        raise Refusal(
            f"faster than {device.id} can be ({device.peak_gflops:g} GFLOP/s): not milliseconds, or another device"
        )


def _whole(key: str, value: object, least: int) -> int:
    if isinstance(value, (int, float)) and value == value // 1 and least <= value < 2**31:
        return int(value)
    result = "missing" if value is None else repr(value[:20]) if isinstance(value, str) else str(value)[:20]
    raise Refusal(f"parameter {key} is {result}, expected a whole number from {least} up")


def _number(value: object) -> TypeGuard[float]:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the largest float
        return False


def _is_fact(value: object) -> bool:
    return isinstance(value, str) or _number(value)


def _when(text: object) -> float:
    """Seconds since the epoch; 0.0 where the file does not say."""
    if not isinstance(text, str):
        return 0.0
    try:
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return 0.0


def _fingerprint(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
