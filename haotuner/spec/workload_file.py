"""Workload files: the ops of a model as JSON, each with the shapes that it sees, which ``haotuner tune --workload`` takes.

{"workload": 1, "model": "LlamaForCausalLM",
 "ops": [{"op": "dense:n=2304,k=768", "shapes": "m=1..2048", "layers": "qkv_proj", "count": 12}]}
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.host.files import read_regular, written_aside
from haotuner.spec.op import Op
from haotuner.spec.shape import ShapeRange

SCHEMA = 1
SUFFIX = ".json"
SIZE_LIMIT_BYTES = 16 << 20  # a hundred thousand ops
_FORM = f'{{"workload": {SCHEMA}, "ops": [{{"op": "dense:n=768,k=768", "shapes": "m=1..256"}}]}}'


@dataclass(frozen=True, slots=True)
class WorkloadOp:
    """Op of a workload: its spec, its shapes as ``--shapes`` has them, the layers that it serves, and their number."""

    op: str
    shapes: str
    layers: str = ""
    count: int = 1


def write_workload(path: Path, model: str, ops: Sequence[WorkloadOp]) -> None:
    """Write a workload file. UsageError where it cannot be written."""
    rows = [{"op": op.op, "shapes": op.shapes, "layers": op.layers, "count": op.count} for op in ops]
    document = {"workload": SCHEMA, "model": model, "ops": rows}
    try:
        with written_aside(path) as new:
            new.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"workload {path}: {error.strerror or error}; name another file with --out") from error


def read_workload(path: Path) -> Mapping[str, str]:
    """Names of a file's ops with their shapes. UsageError names the file, what is wrong in it, and its form."""
    try:
        document = json.loads(read_regular(path, SIZE_LIMIT_BYTES).decode("utf-8"))
    except OSError as error:
        raise UsageError(
            f"workload {path}: {error.strerror}; `haotuner workload MODEL_DIR --out {path}` writes one"
        ) from error
    except (ValueError, RecursionError) as error:
        raise UsageError(f"workload {path}: not JSON ({error}); expected {_FORM}") from error
    version = document.get("workload") if isinstance(document, Mapping) else None
    if not isinstance(document, Mapping) or type(version) is not int:
        raise UsageError(f"workload {path}: no workload file; expected {_FORM}")
    if version != SCHEMA:
        raise UsageError(f"workload {path}: schema {version}; this haotuner reads {SCHEMA}: write the file anew")
    rows = document.get("ops")
    if not isinstance(rows, list) or not rows:
        raise UsageError(f"workload {path}: it names no ops; expected {_FORM}")
    result: dict[str, str] = {}
    for number, row in enumerate(rows, 1):
        name, shapes = _row(path, number, row)
        if name in result:
            raise UsageError(f"workload {path}, op {number}: {name} comes twice; name each op once, with all its shapes")
        result[name] = shapes
    return result


def _row(path: Path, number: int, row: Any) -> tuple[str, str]:
    if not isinstance(row, Mapping) or not all(isinstance(row.get(key), str) for key in ("op", "shapes")):
        raise UsageError(f"workload {path}, op {number}: expected an object with the texts op and shapes, as in {_FORM}")
    try:
        op = Op.parse(row["op"])
        ShapeRange.parse(row["shapes"])
    except UsageError as error:
        raise UsageError(f"workload {path}, op {number}: {error}") from error
    return op.name, row["shapes"]
