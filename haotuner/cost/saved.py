"""The file of a saved model: nothing in it reaches LightGBM before its hash is right (damaged text crashes it).

Line 1: magic and the sha256 of all that follows. Line 2: the header as JSON: what kind of model, feature version and
columns, settings, and the length of each text. The rest: LightGBM's texts, one after the other.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from haotuner.cost.features import FEATURES_VERSION, NAMES
from haotuner.cost.forest import Forest
from haotuner.errors import UsageError

_MAGIC = "haotuner-model-1"
_KEYS = {"kind", "features_version", "features", "lengths", "state"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """A model's file taken apart: its kind, its own state, and LightGBM's texts, all undamaged."""

    kind: str
    state: Mapping[str, Any]
    texts: tuple[str, ...]


def save(forest: Forest, path: Path) -> None:
    """Write a forest; see ``write``."""
    state, texts = forest.state()
    write(path, Saved(kind="forest", state=state, texts=tuple(texts)))


def write(path: Path, saved: Saved) -> None:
    """Write the file beside its place, then rename, so a reader never sees half of it."""
    header = {
        "kind": saved.kind,
        "features_version": FEATURES_VERSION,
        "features": list(NAMES),
        "lengths": [len(text.encode()) for text in saved.texts],
        "state": saved.state,
    }
    body = json.dumps(header, sort_keys=True) + "\n" + "".join(saved.texts)
    digest = hashlib.sha256(body.encode()).hexdigest()
    aside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        aside.write_text(f"{_MAGIC} {digest}\n{body}", encoding="utf-8", newline="\n")
        aside.replace(path)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise UsageError(f"cannot write the model {path}: {error.strerror}; give a path in a folder that exists") from error


def read(path: Path) -> Saved:
    """The file taken apart, after magic, hash, header and feature version were found right, in this order."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the model {path}: {error.strerror}; make one with: haotuner transfer fit") from error
    first, _, body = raw.partition(b"\n")
    magic, _, digest = first.decode("ascii", "replace").partition(" ")
    if magic != _MAGIC:
        raise UsageError(f"{path} is not a saved cost model: it starts with {magic[:40]!r}, expected {_MAGIC!r}")
    found = hashlib.sha256(body).hexdigest()
    if found != digest:
        raise UsageError(
            f"the model {path} is damaged: its hash is {found[:12]}, it was saved with {digest[:12]}; copy it again"
        )
    head, _, rest = body.partition(b"\n")
    header = _header(path, head)
    if header["features_version"] != FEATURES_VERSION or list(header["features"]) != list(NAMES):
        raise UsageError(
            f"the model {path} was trained on features of version {header['features_version']}, this haotuner computes "
            f"version {FEATURES_VERSION}; train it again with: haotuner transfer fit"
        )
    return Saved(kind=header["kind"], state=header["state"], texts=_cut(path, rest, header["lengths"]))


def _header(path: Path, head: bytes) -> dict[str, Any]:
    try:
        header = json.loads(head)
    except ValueError as error:
        raise UsageError(f"the header of the model {path} is not JSON: {error}") from error
    if not isinstance(header, dict) or _KEYS - header.keys():
        raise UsageError(f"the header of the model {path} lacks some of {', '.join(sorted(_KEYS))}")
    return header


def _cut(path: Path, rest: bytes, lengths: Sequence[int]) -> tuple[str, ...]:
    if sum(lengths) != len(rest):
        raise UsageError(f"the model {path} has {len(rest)} bytes of trees, its header says {sum(lengths)}")
    texts, at = [], 0
    for length in lengths:
        texts.append(rest[at : at + length].decode())
        at += length
    return tuple(texts)
