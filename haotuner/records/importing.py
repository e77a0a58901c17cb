"""Foreign measurements into a record store, row by row, nothing swallowed."""

from __future__ import annotations

import hashlib
import json
import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TypeGuard

from haotuner.device import Device
from haotuner.errors import UsageError
from haotuner.record import Failed, Outcome, Record, Timed, Trial
from haotuner.records.kernel_tuner import CacheFile, read_cache
from haotuner.records.mapping import KernelMapping, Problem, choose
from haotuner.records.store import RecordStore

_MS = 1000.0  # Kernel Tuner's times are milliseconds, ours microseconds
_NO_TIME = 1e20  # what versions before the error words wrote for a failed configuration
_FAILURES = {
    "CompilationFailedConfig": Failed(stage="build", reason="compile_error", detail="CompilationFailedConfig"),
    "RuntimeFailedConfig": Failed(stage="run", reason="error", detail="RuntimeFailedConfig"),
    "InvalidConfig": Failed(stage="build", reason="error", detail="InvalidConfig: breaks a restriction of the search space"),
}
_BOOKKEEPING = frozenset({"time", "times", "timestamp", "strategy_time", "framework_time"})  # kept elsewhere, or of the tool
_TOO_FAST = 1.5  # over the profile's peak: beyond any boost clock, so the unit is wrong
_GFLOPS_RATIO = 4.0  # own column against ours: published files count a multiply-add as two flops or as four
_TIME_RATIO = 10.0  # `time` against the mean of `times`: a wrong unit is a factor of 1000, an outlier is not


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What became of one file."""

    path: Path
    device_id: str
    mapping: str
    op: str
    rows: int
    timed: int
    failed: int
    new: int  # records the store did not hold before
    refused: Mapping[str, int]  # reason to number of rows left out
    torn: str  # where reading stopped, empty for a whole file


class _Refusal(Exception):
    """One row cannot become a record; the text is the reason it is counted under."""


def import_kernel_tuner(
    path: Path,
    store: RecordStore,
    *,
    find_device: Callable[[str], Device],
    device: str | None = None,
    mapping: str | None = None,
) -> Imported:
    """Store the rows of one Kernel Tuner cache file; importing it again, or a longer version of it, adds what is new.

    Args:
        path: the file, gzipped or not, complete or cut at any byte.
        store: where the records go, in one transaction.
        find_device: the device of a name, such as ``haotuner.hw_profiles.find.find_device``.
        device: overrides the file's ``device_name``.
        mapping: ``xgemm`` or ``conv``; by default the one that knows the file's parameters.

    Raises:
        UnknownDevice: ``find_device`` knows no such device.
        UsageError: not a cache file, no mapping fits, or not one row is usable.
    """
    cache = read_cache(path)
    found = find_device(device or cache.device_name)
    rule = choose(cache.keys, mapping)
    _constant(cache, rule)
    records: list[Record] = []
    refused: Counter[str] = Counter()
    for _, row in cache.rows:
        try:
            records.append(_record(cache, row, rule, found))
        except _Refusal as refusal:
            refused[str(refusal)] += 1
    if not records:
        why = "; ".join(f"{reason} ({count})" for reason, count in refused.most_common(3)) or cache.torn or "it has no rows"
        raise UsageError(f"{path}: not one usable row: {why}; nothing was stored")
    timed = sum(isinstance(record.outcome, Timed) for record in records)
    return Imported(
        path=path,
        device_id=found.id,
        mapping=rule.name,
        op=", ".join(sorted({record.trial.op for record in records})),
        rows=len(cache.rows),
        timed=timed,
        failed=len(records) - timed,
        new=store.append(records),
        refused=dict(refused),
        torn=cache.torn,
    )


def _constant(cache: CacheFile, rule: KernelMapping) -> None:
    """A parameter that the mapping does not know must not vary, or two kernels would get one name."""
    for key in rule.unknown(cache.keys):
        values = {json.dumps(row.get(key)) for _, row in cache.rows}
        if len(values) > 1:
            raise UsageError(
                f"{cache.path}: mapping {rule.name} does not know the parameter {key}, which takes {len(values)} values"
            )


def _record(cache: CacheFile, row: Mapping[str, Any], rule: KernelMapping, device: Device) -> Record:
    known = (*rule.params, *rule.problem_params)
    values = {key: _whole(key, row.get(key)) for key in cache.keys if key in known}
    problem = rule.problem(cache.problem_size, values)
    fingerprint = _fingerprint("kernel-tuner", rule.family, device.id, problem.op)
    facts = {key: value for key, value in row.items() if key not in (*known, *_BOOKKEEPING) and _is_fact(value)}
    return Record(
        trial=Trial(op=problem.op, kernel=rule.kernel(values).name, shape=problem.shape, weights="hot"),
        outcome=_outcome(row, problem, device),
        device_id=device.id,
        fingerprint=fingerprint,
        session=f"import-{fingerprint[:12]}",
        when=_when(row.get("timestamp")),
        facts={"source": cache.path.name, "kernel": cache.kernel_name, **facts},
    )


def _outcome(row: Mapping[str, Any], problem: Problem, device: Device) -> Outcome:
    time = row.get("time")
    if isinstance(time, str):
        return _FAILURES.get(time, Failed(stage="run", reason="error", detail=time[:200]))
    if not _number(time):
        raise _Refusal(f"time is {'missing' if time is None else 'not a finite number'}")
    if time >= _NO_TIME:
        return Failed(stage="run", reason="error", detail=f"time {time:g}: the tool's mark of a failed configuration")
    samples = row.get("times") or [time]
    if not isinstance(samples, list) or not all(map(_number, samples)):
        raise _Refusal("times are not all finite numbers")
    if time <= 0 or min(samples) <= 0:
        raise _Refusal("a time is zero or negative")
    mean = sum(samples) / len(samples)
    if not time / _TIME_RATIO < mean < time * _TIME_RATIO:
        raise _Refusal("time and times differ tenfold: mixed units")
    gflops = problem.flops / (mean * 1e6)
    said = row.get("GFLOP/s")
    if _number(said) and not 1 / _GFLOPS_RATIO < gflops / max(said, 1e-9) < _GFLOPS_RATIO:
        raise _Refusal("GFLOP/s does not fit the time and the problem: not milliseconds, or another problem size")
    if device.peak_gflops and gflops > device.peak_gflops * _TOO_FAST:
        raise _Refusal(
            f"faster than {device.id} can be ({device.peak_gflops:g} GFLOP/s): not milliseconds, or another device"
        )
    return Timed(samples_us=tuple(float(sample) * _MS for sample in samples))


def _whole(key: str, value: object) -> int:
    if isinstance(value, (int, float)) and value == value // 1 and 0 <= value < 2**31:
        return int(value)
    raise _Refusal(f"parameter {key} is {str(value)[:20]!r}, expected a whole number")


def _number(value: object) -> TypeGuard[float]:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


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
