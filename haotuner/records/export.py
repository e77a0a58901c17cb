"""Records out of a store: JSON Lines (complete, reads back), Parquet (for data frames), T4 (for other tuners' tools)."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from haotuner.errors import EnvironmentMissing, UsageError
from haotuner.host.files import kind_of, written_aside
from haotuner.records.codec import encode, line
from haotuner.spec.device import is_standin
from haotuner.spec.kernel import MicroKernel
from haotuner.spec.record import Failed, Record, Timed

_T4_SCHEMA = "1.0.0"  # github.com/KernelTuner/kernel_tuner, schema/T4/1.0.0/results-schema.json
_INVALIDITY = {
    "timeout": "timeout",
    "compile_error": "compile",
    "wrong": "correctness",
    "out_of_bounds": "correctness",
    "crash": "runtime",
    "memory": "runtime",
    "unstable": "runtime",
    "error": "runtime",
}
_US_PER_MS = 1000.0


def export(records: Iterable[Record], path: Path, form: str, *, replace: bool = False) -> int:
    """Write records to ``path``, complete or not at all; how many.

    Args:
        records: what to write, in this order.
        path: the new file; its folder exists.
        form: ``jsonl``, ``parquet`` or ``t4``.
        replace: whether a file at ``path`` may be replaced.

    Raises:
        UsageError: unknown format, anything but a regular file in the way, records that the format cannot hold together, or
            records of a stand-in for tests.
        EnvironmentMissing: the place is not writable, or Parquet's library is not installed.
    """
    writer = FORMATS.get(form)
    if writer is None:
        raise UsageError(f"unknown format {form!r}; known: {', '.join(FORMATS)}")
    try:
        if result := kind_of(path, follow=False):
            raise UsageError(f"{path} is {result}; name a new file, such as {_beside(path, form)}, or a file to replace")
        if path.exists() and not replace:
            raise UsageError(f"{path} exists; add --force to replace it, or name another file")
        with written_aside(path) as aside:
            written = writer(_measured(records), aside)
    except OSError as error:
        raise EnvironmentMissing(f"cannot write {path}: {error.strerror}; name a writable place with free space") from error
    return written


def _measured(records: Iterable[Record]) -> Iterator[Record]:
    """The records as they are, none of them of a stand-in: nothing in a file would tell its times from a device's."""
    for record in records:
        if is_standin(record.device_id):
            raise UsageError(
                f"records of {record.device_id} are of a stand-in for tests, whose times are invented: "
                "they are not exported; choose another device's with --device"
            )
        yield record


def _beside(path: Path, form: str) -> Path:
    """A file of that format that may be written: in the folder named, or beside what was named."""
    return (path if path.is_dir() else path.parent) / f"records.{form}"


def _jsonl(records: Iterable[Record], path: Path) -> int:
    written = 0
    with path.open("w", encoding="utf-8") as file:
        for record in records:
            file.write(line(encode(record)) + "\n")
            written += 1
    return written


def _t4(records: Iterable[Record], path: Path) -> int:
    """One JSON document of one op on one device, as the standard has it; times are milliseconds there."""
    rows = list(records)
    problems = sorted({(record.trial.op.name, record.device_id) for record in rows})
    if len(problems) > 1:
        result = "; ".join(f"{op} on {device}" for op, device in problems[:5])
        raise UsageError(f"a T4 file holds one op on one device; choose with --op and --device among {result}")
    document = {"schema_version": _T4_SCHEMA, "results": [_t4_result(record) for record in rows]}
    path.write_text(json.dumps(document, indent=1), encoding="utf-8")
    return len(rows)


def _t4_result(record: Record) -> dict[str, Any]:
    outcome = record.outcome
    timed = outcome if isinstance(outcome, Timed) else None
    compile_ms = record.facts.get("compile_time", 0.0)
    times: dict[str, Any] = {
        "compilation_time": compile_ms if isinstance(compile_ms, (int, float)) else 0.0,
        "runtimes": [sample / _US_PER_MS for sample in timed.samples_us] if timed else [],
        "framework": 0.0,
        "search_algorithm": 0.0,
        "validation": 0.0,
    }
    measured = [{"name": "time", "value": timed.median_us / _US_PER_MS, "unit": "ms"}] if timed else []
    return {
        "timestamp": _timestamp(record.when),
        "configuration": _configuration(record),
        "times": times,
        "invalidity": _INVALIDITY[outcome.reason] if isinstance(outcome, Failed) else "correct",
        "correctness": 1.0 if timed else 0.0,
        "measurements": measured,
        "objectives": ["time"],
    }


def _timestamp(when: float) -> str:
    """ISO text; what lies outside the years 1 to 9999 becomes 1970, which is also what an unknown time is written as."""
    try:
        return datetime.fromtimestamp(when, tz=UTC).isoformat()
    except (ValueError, OverflowError, OSError):
        return datetime.fromtimestamp(0.0, tz=UTC).isoformat()


def _configuration(record: Record) -> dict[str, Any]:
    trial = record.trial
    where: Mapping[str, Any] = {name: getattr(trial, name) for name in ("threads", "weights", "split", "repeat")}
    shape = {f"shape_{axis}": extent for axis, extent in trial.shape.axes}
    try:
        params = dict(MicroKernel.parse(trial.kernel).params)
    except ValueError:  # a composition of several micro-kernels has no parameters of its own
        params = {}
    return {"kernel": trial.kernel, **params, **shape, **where}


def _parquet(records: Iterable[Record], path: Path) -> int:
    try:
        pyarrow = importlib.import_module("pyarrow")
        parquet = importlib.import_module("pyarrow.parquet")
    except ImportError as error:
        raise EnvironmentMissing(
            "Parquet needs the package pyarrow, which haotuner does not require: pip install pyarrow, or use --format jsonl"
        ) from error
    columns = [(name, getattr(pyarrow, kind)()) for name, kind in _COLUMNS]
    schema = pyarrow.schema([*columns, ("samples_us", pyarrow.list_(pyarrow.float64()))])
    written = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in _chunks(map(_flat, records)):
            writer.write_table(pyarrow.Table.from_pylist(rows, schema=schema))
            written += len(rows)
    return written


_COLUMNS = (
    *(
        (name, "string")
        for name in ("id", "op", "kernel", "shape", "weights", "split", "device_id", "fingerprint", "session")
    ),
    *((name, "int64") for name in ("threads", "repeat", "seed")),
    *((name, "float64") for name in ("when", "median_us", "spread", "max_error")),
    *((name, "string") for name in ("stage", "reason", "detail", "facts")),
)
_CHUNK_ROWS = 10_000  # one row group: large enough to compress, small enough to hold in memory


def _flat(record: Record) -> dict[str, Any]:
    data = encode(record)
    trial, outcome = record.trial, record.outcome
    row = {name: data[name] for name in ("id", "device_id", "fingerprint", "session", "when", "seed")}
    row |= {"op": trial.op.name, "kernel": trial.kernel}
    row |= {name: getattr(trial, name) for name in ("threads", "weights", "split", "repeat")}
    row |= {"shape": line(trial.shape.as_dict()), "facts": line(data["facts"])}
    if isinstance(outcome, Timed):
        timed = {"samples_us": list(outcome.samples_us), "median_us": outcome.median_us, "spread": outcome.spread}
        return {**row, **timed, "max_error": outcome.max_error}
    return {**row, "stage": outcome.stage, "reason": outcome.reason, "detail": _utf8(outcome.detail)}


def _utf8(text: str) -> str:
    r"""Text for Parquet: half a character pair, as broken messages of compilers have, is written out (``\ud800``)."""
    return text.encode("utf-8", errors="backslashreplace").decode("utf-8")


def _chunks(rows: Iterable[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    chunk: list[dict[str, Any]] = []
    for row in rows:
        chunk.append(row)
        if len(chunk) == _CHUNK_ROWS:
            yield chunk
            chunk = []
    if chunk:
        yield chunk


FORMATS: Mapping[str, Callable[[Iterable[Record], Path], int]] = {"jsonl": _jsonl, "parquet": _parquet, "t4": _t4}
