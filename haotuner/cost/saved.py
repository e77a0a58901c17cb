"""The file of a saved model: nothing in it reaches LightGBM before its hash and every tree are right (else it may crash).

Line 1: magic and the sha256 of all that follows. Line 2: the header as JSON: what kind of model, the columns it uses and the
version of each, settings, and the length of each text. The rest: LightGBM's texts, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.cost.columns import recorded_versions, versions, why_outdated
from haotuner.cost.features import NAMES
from haotuner.cost.forest import Forest
from haotuner.cost.tree_text import check_trees
from haotuner.errors import UsageError
from haotuner.host.files import read_regular, written_aside

_MAGIC, _OLD_MAGIC = "haotuner-model-2", "haotuner-model-1"  # the old one named a version of all columns together
SIZE_LIMIT_BYTES = 256 << 20  # the shipped ones have 0.2 MB
_KEYS = {"kind", "columns", "lengths", "state"}
_OLD_KEYS = {"kind", "features_version", "features", "lengths", "state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A model's file taken apart: its kind, its own state, LightGBM's texts, all undamaged; and the columns it uses."""

    kind: str
    state: Mapping[str, Any]
    texts: tuple[str, ...]
    columns: tuple[str, ...] = NAMES


def save(forest: Forest, path: Path) -> None:
    """Write a forest; see ``write``."""
    state, texts = forest.state()
    write(path, Saved(kind="forest", state=state, texts=tuple(texts), columns=forest.uses))


def write(path: Path, saved: Saved) -> None:
    """Write the file beside its place, then rename, so a reader never sees half of it."""
    header = {
        "kind": saved.kind,
        "columns": versions(saved.columns),
        "lengths": [len(text.encode()) for text in saved.texts],
        "state": saved.state,
    }
    body = json.dumps(header, sort_keys=True) + "\n" + "".join(saved.texts)
    digest = hashlib.sha256(body.encode()).hexdigest()
    if not path.name:
        raise UsageError(f"cannot write the model {str(path)!r}: that names no file; name the file to write")
    try:
        with written_aside(path) as aside:
            aside.write_text(f"{_MAGIC} {digest}\n{body}", encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(
            f"cannot write the model {path}: {error.strerror}; name a new file in a folder that exists, or one to replace"
        ) from error


def damaged(path: Path, what: str) -> UsageError:
    """The error of a file that holds what no ``write`` put there; ``what`` completes a sentence."""
    return UsageError(f"the model {path} is damaged: {what}; make it again with: haotuner transfer fit")


def read(path: Path) -> Saved:
    """The file taken apart, after magic, hash, header and features were found right, in this order.

    Raises:
        UsageError: the file cannot be read, is damaged, or is of another version; the text says which.
    """
    try:
        raw = read_regular(path, SIZE_LIMIT_BYTES)
    except OSError as error:
        raise UsageError(f"cannot read the model {path}: {error.strerror}; make one with: haotuner transfer fit") from error
    first, _, body = raw.partition(b"\n")
    magic, _, digest = first.decode("ascii", "replace").partition(" ")
    if magic not in (_MAGIC, _OLD_MAGIC):
        raise UsageError(f"{path} is not a saved cost model: it starts with {magic[:40]!r}, expected {_MAGIC!r}")
    result = hashlib.sha256(body).hexdigest()
    if result != digest:
        raise UsageError(
            f"the model {path} is damaged: its hash is {result[:12]}, it was saved with {digest[:12]}; copy it again"
        )
    head, _, rest = body.partition(b"\n")
    header = _header(path, head, _KEYS if magic == _MAGIC else _OLD_KEYS)
    _check_types(path, header)
    columns = recorded_versions(header)
    if why := why_outdated(columns):
        raise UsageError(f"the model {path} {why}; train it again with: haotuner transfer fit")
    return Saved(
        kind=header["kind"],
        state=header["state"],
        texts=_cut(path, rest, header["lengths"]),
        columns=tuple(columns),
    )


def _header(path: Path, head: bytes, keys: set[str]) -> dict[str, Any]:
    try:
        header = json.loads(head, parse_constant=_finite, parse_float=_finite)
    except (ValueError, RecursionError) as error:
        raise damaged(path, f"its header cannot be read ({error})") from error
    if not isinstance(header, dict) or keys - header.keys():
        raise damaged(path, f"its header lacks some of {', '.join(sorted(keys))}")
    return header


def _finite(text: str) -> float:
    """A number of the header; JSON as Python reads it also has NaN and infinity, which would rank nothing."""
    if not math.isfinite(number := float(text)):
        raise ValueError(f"{text} is no finite number")
    return number


def _check_types(path: Path, header: Mapping[str, Any]) -> None:
    right = {
        "kind": isinstance(header["kind"], str),
        "state": isinstance(header["state"], dict),
        "columns": _versions_by_name(header["columns"]) if "columns" in header else True,
        "features": _all_of(header.get("features", []), lambda item: isinstance(item, str)),
        "lengths": _all_of(header["lengths"], lambda item: type(item) is int and item > 0),
    }
    for key, fine in right.items():
        if not fine:
            raise damaged(path, f"{key!r} of its header is {str(header[key])[:40]!r}")


def _versions_by_name(columns: object) -> bool:
    return isinstance(columns, dict) and bool(columns) and all(type(version) is int for version in columns.values())


def _all_of(values: object, right: Callable[[object], bool]) -> bool:
    return isinstance(values, list) and all(map(right, values))


def _cut(path: Path, rest: bytes, lengths: Sequence[int]) -> tuple[str, ...]:
    if sum(lengths) != len(rest):
        raise damaged(path, f"it has {len(rest)} bytes of trees, its header says {sum(lengths)}")
    texts, at = [], 0
    for length in lengths:
        text = rest[at : at + length]
        try:
            texts.append(text.decode("ascii"))
            check_trees(texts[-1])
        except ValueError as error:
            raise damaged(path, f"bytes {at} to {at + length} of its trees are no whole forest: {error}") from error
        at += length
    return tuple(texts)
