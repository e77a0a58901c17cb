"""Records and choices as Kernel Tuner and CLBlast read them: caches, results, files of a tuner.

Kernel Tuner's cache (its schema ``cache/1.1.0``): one kernel and problem on one device, a row a configuration. Its results
file (``kernel_tuner.integration.TuneResults``): the best of each problem. CLBlast's tuner writes a row a configuration of
one kernel, which ``scripts/database`` of CLBlast reads. Times are milliseconds in all of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from haotuner.cost.families import problem_of
from haotuner.errors import UsageError
from haotuner.hw_profiles.table import of_device
from haotuner.records.choices import Choice
from haotuner.records.kernel_tuner import MAPPINGS, XGEMM, KernelMapping
from haotuner.spec.composition import is_composition
from haotuner.spec.demand import Problem
from haotuner.spec.device import Device
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Record, Timed

_MS = 1000.0  # microseconds
_PRECISION = {"fp32": 32, "fp16": 16}
_FAILURE = {"compile_error": "CompilationFailedConfig"}  # Kernel Tuner's words for rows without a time
_KERNEL_NAMES = {XGEMM.family: "Xgemm", "kt_conv2d": "convolution_kernel", "kt_dedispersion": "dedispersion_kernel"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignFile:
    """A file to write: its name, its content, and the number of configurations in it."""

    name: str
    text: str
    rows: int


def cache_files(records: Iterable[Record], device: Device) -> list[ForeignFile]:
    """Caches of Kernel Tuner: a file for each family, op and shape of one device's records.

    Families that came from such files have the parameters that they came with; others their own.
    """
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in records:
        if not is_composition(record.trial.kernel):
            family = MicroKernel.parse(record.trial.kernel).family
            shape = "_".join(f"{axis}{extent}" for axis, extent in record.trial.shape.axes)
            groups.setdefault((family, record.trial.op.name, shape), []).append(record)
    result = []
    for (family, op, shape), rows in sorted(groups.items()):
        timed = [record for record in rows if isinstance(record.outcome, Timed)]
        if timed:
            name = "-".join(filter(None, [_plain(f"{family}-{op}"), shape, _plain(device.id)]))
            document = _cache(family, rows, device)
            result.append(ForeignFile(name=f"{name}.json", text=json.dumps(document, indent=1) + "\n", rows=len(rows)))
    return result


def _cache(family: str, records: Sequence[Record], device: Device) -> dict[str, Any]:
    mapping = next((item for item in MAPPINGS if item.family == family), None)
    problem = problem_of(records[0].trial.op)
    sizes = list(_sizes(problem, records[0]))
    cache: dict[str, Any] = {}
    keys: list[str] = []
    for record in records:
        values = _parameters(MicroKernel.parse(record.trial.kernel), problem, mapping)
        keys = keys or list(values)
        key = ",".join(str(value) for value in values.values())
        row = {**values, **_times(record), "timestamp": _timestamp(record.when)}
        if key not in cache or _ms(row) < _ms(cache[key]):  # of repeats and ways to share the fastest
            cache[key] = row
    return {
        "schema_version": "1.1.0",
        "device_name": device.name or device.id,
        "kernel_name": _KERNEL_NAMES.get(family, family),
        "problem_size": sizes,
        "tune_params_keys": keys,
        "tune_params": {name: sorted({row[name] for row in cache.values()}) for name in keys},
        "objective": "time",
        "cache": cache,
    }


def _parameters(kernel: MicroKernel, problem: Problem, mapping: KernelMapping | None) -> dict[str, int]:
    """Parameters as the kernel's own program names them."""
    params = dict(kernel.params)
    if mapping is None:
        return params
    values = {theirs: params[ours] for theirs, ours in mapping.params.items() if ours in params}
    return {**values, "PRECISION": _PRECISION[problem.dtype]} if "PRECISION" in mapping.problem_params else values


def _times(record: Record) -> dict[str, Any]:
    outcome = record.outcome
    if isinstance(outcome, Timed):
        times = [sample / _MS for sample in outcome.samples_us]
        return {"time": outcome.median_us / _MS, "times": times}
    return {"time": _FAILURE.get(outcome.reason, "RuntimeFailedConfig")}


def _ms(row: Mapping[str, Any]) -> float:
    return float(row["time"]) if isinstance(row["time"], float) else float("inf")


def _sizes(problem: Problem, record: Record) -> Iterable[int]:
    """The extents that make the problem, in the order in which Kernel Tuner's files of it have them."""
    extents = problem.extents(record.trial.shape)
    named = {"conv2d": ("w", "h"), "dedispersion": ("s", "d")}.get(record.trial.op.name.partition("_")[0])
    foreign = MicroKernel.parse(record.trial.kernel).family in _KERNEL_NAMES
    return [extents[axis] for axis in named] if named and foreign else extents.values()


def _timestamp(when: float) -> str:
    return datetime.fromtimestamp(max(when, 0.0), tz=UTC).isoformat()


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_.-]+", "_", text)


def results_files(choices: Sequence[Choice], device: Device) -> list[ForeignFile]:
    """Results of Kernel Tuner: a file for each op and family, a row for each shape.

    A choice without a time has no objective and is passed over.
    """
    groups: dict[tuple[str, str], list[Choice]] = {}
    for choice in choices:
        if choice.us is not None:
            groups.setdefault((choice.op, choice.kernel.family), []).append(choice)
    result = []
    for (op, family), items in sorted(groups.items()):
        rows = [
            {
                "device_name": re.sub("[^0-9a-zA-Z]+", "_", (device.name or device.id).strip()),
                "problem_size": "x".join(str(extent) for extent in item.problem.extents(item.shape).values()),
                "tunable_parameters": dict(item.kernel.params),
                "time": (item.us or 0.0) / _MS,
            }
            for item in items
        ]
        document = {
            "version_number": "1.0",
            "kernel_name": family,
            "objective": "time",
            "objective_higher_is_better": False,
            "tunable_parameters": [name for name, _ in items[0].kernel.params],
            "data": rows,
        }
        name = f"{_plain(f'{family}-{op}')}-results.json"
        result.append(ForeignFile(name=name, text=json.dumps(document, indent=1) + "\n", rows=len(rows)))
    return result


def tuner_files(records: Iterable[Record], device: Device) -> list[ForeignFile]:
    """Files of CLBlast's tuner, one for each precision: timings of its Xgemm on one device at one problem.

    Raises:
        UsageError: several problems, of which one file holds one; the message names them.
    """
    groups: dict[str, dict[str, list[Record]]] = {}
    for record in records:
        timed = isinstance(record.outcome, Timed) and not is_composition(record.trial.kernel)
        if timed and MicroKernel.parse(record.trial.kernel).family == XGEMM.family:
            problem = problem_of(record.trial.op)
            sizes = "x".join(str(extent) for extent in problem.extents(record.trial.shape).values())
            groups.setdefault(problem.dtype, {}).setdefault(f"{record.trial.op.name} at {sizes}", []).append(record)
    result = []
    for dtype, problems in sorted(groups.items()):
        if len(problems) > 1:
            raise UsageError(
                f"a file of CLBlast's tuner holds one problem in {dtype}; the records have {', '.join(list(problems)[:5])}; "
                "choose with --op"
            )
        (rows,) = problems.values()
        document = _tuner(rows, dtype, device)
        name = f"clblast_xgemm_1_{_PRECISION[dtype]}.json"
        text = json.dumps(document, indent=2) + "\n"
        result.append(ForeignFile(name=name, text=text, rows=len(document["results"])))
    return result


def _architecture(device: Device) -> str:
    """As CLBlast says it: SM7.5, or what the compiler is told."""
    number = re.fullmatch(r"sm_([0-9]+)([0-9])[a-z]?", device.arch)
    return f"SM{number[1]}.{number[2]}" if number else device.arch


def _tuner(records: Sequence[Record], dtype: str, device: Device) -> dict[str, Any]:
    problem = problem_of(records[0].trial.op)
    extents = problem.extents(records[0].trial.shape)
    best: dict[str, tuple[float, dict[str, int]]] = {}
    for record in records:
        assert isinstance(record.outcome, Timed)
        values = {"GEMMK": 0, "KREG": 1, **_parameters(MicroKernel.parse(record.trial.kernel), problem, XGEMM)}
        us = record.outcome.median_us
        if record.trial.kernel not in best or us < best[record.trial.kernel][0]:
            best[record.trial.kernel] = (us, values)
    results = [{"kernel": "Xgemm", "time": us / _MS, "parameters": values} for us, values in best.values()]
    first = min(results, key=lambda item: float(str(item["time"])))
    parameters: Any = first["parameters"]
    vendor = of_device(device).vendor.upper()
    return {
        "kernel_family": "xgemm_1",
        "precision": str(_PRECISION[dtype]),
        "best_kernel": "Xgemm",
        "best_time": f"{first['time']:.6f}",
        "best_parameters": " ".join(f"{name}={value}" for name, value in sorted(parameters.items())),
        "clblast_device_type": "GPU",
        "clblast_device_vendor": vendor,
        "clblast_device_architecture": _architecture(device),
        "clblast_device_name": device.name or device.id,
        "device": device.name or device.id,
        "device_vendor": vendor,
        "device_type": "GPU",
        "device_core_clock": str(round(device.clock_mhz or 0)),
        "device_compute_units": str(device.compute_units),
        "arg_m": str(extents["m"]),
        "arg_n": str(extents["n"]),
        "arg_k": str(extents["k"]),
        "arg_alpha": "2.000000",
        "arg_beta": "2.000000",
        "results": results,
    }
