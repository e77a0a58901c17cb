"""Kernel Tuner cache files: read as far as they go.

The tool appends one row a configuration and closes the braces only when it is done, so a file may end at any byte
(github.com/KernelTuner/kernel_tuner, ``schema/cache/1.1.0``; files older than that schema lack ``timestamp``).
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.errors import UsageError
from haotuner.records.text import read_text
from haotuner.spec.shape import AXIS_LIMIT

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
