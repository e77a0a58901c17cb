"""One row of a Kernel Tuner cache into one record, or the reason why not."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any, TypeGuard

from haotuner.records.codec import trial_of
from haotuner.records.kernel_tuner import CacheFile
from haotuner.records.mapping import KernelMapping, Problem
from haotuner.spec.device import Device
from haotuner.spec.record import Failed, Outcome, Record, Timed

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
