"""Reader of vLLM's tile tables: a file of one problem as a ``TileTable``."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.records.text import read_text
from haotuner.records.vllm import DENSE, GROUPED, TILE_NAMES, TileTable

# Largest whole number of a field: rows, columns and experts of any model lie far below.
_LARGEST = 1 << 31
_FILE = re.compile(
    r"(?:E=(?P<E>[0-9]{1,9}),)?N=(?P<N>[0-9]{1,9})(?:,K=(?P<K>[0-9]{1,9}))?,device_name=(?P<device>[^,]+)"
    r"(?:,dtype=(?P<dtype>[A-Za-z0-9_]+))?(?:,block_shape=(?P<block>\[[0-9]+,[0-9]+\]))?\.json"
)


def is_tile_file(path: Path) -> bool:
    """True if a file has such a table's name."""
    return _FILE.fullmatch(path.name) is not None


def read_tile_table(path: Path) -> TileTable:
    """One file of vLLM.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: its name does not say the problem, or its content is no table.
    """
    name = _FILE.fullmatch(path.name)
    if name is None or (name["E"] is None) == (name["K"] is None):
        raise UsageError(
            f"{path}: the name is not that of a tile table of vLLM, such as E=8,N=14336,device_name=NVIDIA_H200.json or "
            "N=1024,K=2048,device_name=NVIDIA_H200,dtype=fp8_w8a8,block_shape=[128,128].json; give it that name"
        )
    text, stopped = read_text(path, "a tile table of vLLM")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not JSON, or half a download ({stopped or str(error)[:80]}); get the file again"
        ) from error
    return TileTable(
        kind=GROUPED if name["E"] is not None else DENSE,
        device_name=name["device"],
        columns=int(name["N"]),
        depth=int(name["K"] or 0),
        experts=int(name["E"] or 0),
        dtype=name["dtype"] or "",
        block_shape=name["block"] or "",
        best_by_m=best_by_m(path, content),
    )


def best_by_m(path: Path, content: Any) -> dict[int, dict[str, int]]:
    """Whole numbers by rows; fields that are none (``grf_mode``, ``triton_version``) are passed over."""
    if not isinstance(content, dict):
        raise UsageError(f"{path}: expected an object from rows to parameters, found {type(content).__name__}")
    result: dict[int, dict[str, int]] = {}
    for rows, values in content.items():
        if rows == "triton_version":
            continue
        if not re.fullmatch(r"[1-9][0-9]{0,8}", str(rows)) or not isinstance(values, dict):
            raise UsageError(f"{path}: {str(rows)[:40]!r} is no number of rows with parameters; expected 1, 2, 4 and so on")
        numbers = {name: value for name, value in values.items() if type(value) is int and 0 <= value < _LARGEST}
        result[int(rows)] = numbers
    if not any(TILE_NAMES[0] in values for values in result.values()):
        raise UsageError(f"{path}: no row names {', '.join(TILE_NAMES[:3])}; the table is of another kernel")
    return result
