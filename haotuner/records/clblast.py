"""CLBlast's best-known parameters: one configuration a device and no times, so they are winners and never records."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import UsageError
from haotuner.host.files import open_regular
from haotuner.hw_profiles.profile import plain
from haotuner.hw_profiles.table import Known, known_names, stranger
from haotuner.records.text import SIZE_LIMIT_BYTES, read_text
from haotuner.records.winner_table import Winner, Winners
from haotuner.records.xgemm_space import PARAMETERS, xgemm_space


def is_winners(text: str) -> bool:
    """True if a JSON file's beginning is that of such a table, which names parameters and rows instead of a cache."""
    head = text[:4000]
    return '"parameters"' in head and '"kernel"' in head and '"cache"' not in head


def is_winners_file(path: Path) -> bool:
    """True if a file begins like such a table; False too where it cannot be read."""
    try:
        with open_regular(path, SIZE_LIMIT_BYTES) as file:
            return is_winners(file.read(4000).decode("utf-8", errors="replace"))
    except (OSError, ValueError):  # ValueError: a zero byte in the path
        return False


def read_winners(path: Path) -> Winners:
    """Every usable row of one file; what is left out is counted.

    A device that no table knows stays, by the vendor that the file gives, with nothing else known of it.

    Raises:
        EnvironmentMissing: the file cannot be read.
        UsageError: no such table, or not one usable row.
    """
    text, stopped = read_text(path, "a table of CLBlast's best-known parameters")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{path}: not JSON, or half a download ({stopped or str(error)[:80]}); half a table has winners of some "
            "vendors only: get the file again"
        ) from error
    rows = content.get("rows") if isinstance(content, dict) else None
    if not isinstance(rows, list):
        raise UsageError(f"{path}: no list of rows, each with a device and its best parameters")
    space, names = {values.tobytes() for values in xgemm_space()}, known_names()
    result: dict[str, Winner] = {}
    left_out: Counter[str] = Counter()
    strangers = 0
    for row in rows:
        values = _values(row)
        if values is None:
            left_out["rows without a device, or without all sixteen parameters as whole numbers"] += 1
        elif np.array(values).tobytes() not in space:
            left_out["best parameters that are not in the space of the tuner"] += 1
        else:
            device = _device(row, names)
            strangers += not device.facts
            other = result.setdefault(device.id, Winner(device=device, values=values))
            if other.values != values:
                left_out[f"a second row of {device.name} with other parameters"] += 1
    if not result:
        why = "; ".join(f"{reason} ({count})" for reason, count in left_out.most_common(3)) or "it has no rows"
        raise UsageError(f"{path}: not one usable winner: {why}")
    notes = (f"{strangers} devices of which nothing but the name is known",) if strangers else ()
    return Winners(winners=tuple(result.values()), left_out=left_out, notes=notes)


def _values(row: Any) -> tuple[int, ...] | None:
    best = row.get("best") if isinstance(row, dict) else None
    if not isinstance(best, dict) or not isinstance(row.get("device"), str):
        return None
    values = [best.get(name) for name in PARAMETERS]
    whole = [value for value in values if type(value) is int and abs(value) < 2**31]
    return tuple(whole) if len(whole) == len(PARAMETERS) else None


def _device(row: Mapping[str, Any], names: Mapping[str, Known]) -> Known:
    """As the tables know it, by name and architecture, then by name alone."""
    name, arch = row["device"], str(row.get("architecture", ""))
    known = names.get(plain(f"{name} ({arch})")) or names.get(plain(name))
    if known is not None:
        return known
    vendor = str(row.get("vendor", "")).lower()
    return stranger(name, vendor=vendor, on_cpu=row.get("kind") == "CPU", told="" if arch == "default" else arch)
