"""manifest.json: what a pack says of itself, read strictly. Bad content is refused before any file is opened."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from haotuner.errors import PackInvalid, UsageError
from haotuner.pack.facts import DOCUMENT, L3_LIMIT_BYTES, OP, check_facts, check_texts
from haotuner.pack.folder import SIZE_LIMIT_BYTES, Folder, steadily
from haotuner.pack.levels import level_hashes, served_level
from haotuner.words.kernel import MicroKernel
from haotuner.words.op import Op

PACK_SCHEMA = 1
MANIFEST = "manifest.json"
DEPTH_LIMIT = 32
BRACKETS_LIMIT = 500_000  # a pack of 256 ops has some 40,000; two million empty lists take the parser 0.2 s
_BRACKETS = re.compile(rb"[\[\]{}]")
_FILE = re.compile(r"lib/[0-9a-f]{16}\.so")
_SHA = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOp:
    """One op of a pack: names, extents, layout of the packed weight, tuned range, plans."""

    name: str
    n: int
    k: int
    weight: str
    pw: int
    panels: int
    first_m: int
    last_m: int
    kernels: tuple[str, ...]
    tile_rows: tuple[int, ...]  # mr of each kernel
    threads: tuple[int, ...]  # tuned counts, in the order of the library's plans
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole manifest; ``document`` is the JSON it came from."""

    library: str
    sha256: str
    arch: str
    device_id: str
    ops: tuple[PackOp, ...]
    document: Mapping[str, Any]
    batch_invariant: bool = False  # promised: a row's result has the same bits in every batch, on any thread count
    unverified: bool = False  # nothing was measured on the device: plans and times are predictions

    @property
    def tuning(self) -> Mapping[str, Any]:
        """The tuning run: ``shapes, weights, seconds, stopped``, with defaults where the pack does not say."""
        return {"shapes": "?", "weights": "cold", "seconds": 0.0, "stopped": "?"} | dict(self.document.get("tuning", {}))


def read_manifest(pack: Path) -> Manifest:
    """The manifest of a pack directory. PackInvalid says what is wrong; nothing outside the pack is opened.

    Of a pack with several levels (``pack/levels.py``) it is that of the level which this host serves.
    """
    return steadily(pack, manifest_in)


def manifest_in(folder: Folder) -> Manifest:
    """``read_manifest`` of an open folder."""
    path = folder.path / MANIFEST
    document = parse(path, _raw(folder))
    try:
        levels = level_hashes(document)
        if levels is None:
            return _decode(document)
        _known_schema(document)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise PackInvalid(f"{path}: {_said(error)}; tune again or restore the pack from where it came") from error
    return _level_in(folder, served_level(levels), levels)


def read_level(pack: Path, level: str, levels: Mapping[str, str]) -> Manifest:
    """The manifest of one level of a pack; its library's path is relative to ``pack``. PackInvalid as above."""
    return steadily(pack, lambda folder: _level_in(folder, level, levels))


def _level_in(folder: Folder, level: str, levels: Mapping[str, str]) -> Manifest:
    place = folder.path / level
    try:
        with folder.inner(level) as inner:
            raw = _raw(inner)
    except OSError as error:
        raise PackInvalid(f"{place}: cannot read {MANIFEST} ({error.strerror}); restore the pack") from error
    if hashlib.sha256(raw).hexdigest() != levels[level]:
        raise PackInvalid(f"{place / MANIFEST}: not the one that {folder.path / MANIFEST} names (sha256); restore the pack")
    document = parse(place / MANIFEST, raw)
    try:
        manifest = _decode(document)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise PackInvalid(f"{place / MANIFEST}: {_said(error)}; restore the pack from where it came") from error
    if manifest.arch != level:
        raise PackInvalid(f"{place} was built for {manifest.arch}, not for {level}; restore the pack or merge again")
    return replace(manifest, library=f"{level}/{manifest.library}")


def read_bytes(pack: Path) -> bytes:
    """Content of a pack's manifest, bounded in size; PackInvalid if there is none."""
    return steadily(pack, _raw)


def _raw(folder: Folder) -> bytes:
    try:
        return folder.read(MANIFEST, SIZE_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise PackInvalid(f"{folder.path} is not a haotuner pack: cannot read {MANIFEST} ({words}); name the directory "
                          "that `haotuner tune --out` wrote") from error  # fmt: skip


def parse(path: Path, raw: bytes) -> Any:
    """JSON of bounded depth without repeated keys or constants such as NaN; PackInvalid names ``path``."""
    if raw.count(b"[") + raw.count(b"{") > BRACKETS_LIMIT or _depth(raw) > DEPTH_LIMIT:
        raise PackInvalid(f"{path}: nested too deeply to be a manifest")
    try:
        return json.loads(raw.decode("utf-8"), object_pairs_hook=_unique, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        raise PackInvalid(f"{path}: not valid JSON ({error}); tune again or restore the pack from where it came") from error


def _known_schema(document: Any) -> None:
    if not isinstance(document, dict) or "schema" not in document:
        raise ValueError("it has no schema number: not a haotuner manifest")
    if type(document["schema"]) is not int or document["schema"] != PACK_SCHEMA:
        raise ValueError(f"schema {document['schema']!r}, this haotuner reads {PACK_SCHEMA}")


def _decode(document: Any) -> Manifest:
    _known_schema(document)
    files = document["files"]
    if not isinstance(files, dict) or len(files) != 1:
        raise ValueError("files must name exactly one library")
    ((library, sha256),) = files.items()
    if not _FILE.fullmatch(library) or not isinstance(sha256, str) or not _SHA.fullmatch(sha256):
        raise ValueError(f"file {library!r} is not lib/<16 hex digits>.so with a sha256")
    check_texts(document)
    check_facts(document, DOCUMENT, "the manifest")
    device = document["device"]
    if not 0 <= (device.get("l3_bytes") or 0) <= L3_LIMIT_BYTES:
        raise ValueError(f"l3_bytes is {device['l3_bytes']!r}; no CPU has such a cache")
    invariant = document.get("batch_invariant", False)
    if not isinstance(invariant, bool):
        raise ValueError(f"batch_invariant is {invariant!r}, must be true or false")
    unverified, checked = document.get("unverified", False), document.get("verification", {})
    if not isinstance(unverified, bool) or not isinstance(checked, dict):
        raise ValueError("unverified must be true or false, verification an object")
    ops = tuple(_op(entry) for entry in _list(document["ops"], 256))
    if len({op.name for op in ops}) != len(ops) or not ops:
        raise ValueError("ops must be named once each, at least one")
    return Manifest(
        library=library,
        sha256=sha256,
        arch=_text(device["arch"]),
        device_id=_text(device["id"]),
        ops=ops,
        document=document,
        batch_invariant=invariant,
        unverified=unverified,
    )


def _op(entry: Any) -> PackOp:
    if not isinstance(entry, dict):
        raise ValueError("every op must be an object")
    numbers = {key: _whole(entry[key], key) for key in ("n", "k", "pw", "panels", "first_m", "last_m")}
    threads = tuple(_whole(t, "threads") for t in _list(entry["threads"], 255))
    kernels = tuple(_text(k) for k in _list(entry["kernels"], 255))
    name, weight, facts = _text(entry["name"]), _text(entry["weight"]), entry.get("facts", {})
    if not threads or len(set(threads)) != len(threads) or not kernels:
        raise ValueError(f"op {name!r}: threads and kernels must be named, each count once")
    if numbers["panels"] * numbers["pw"] < numbers["n"] or numbers["first_m"] > numbers["last_m"]:
        raise ValueError(f"op {name!r}: its panels hold fewer than n columns, or first_m is over last_m: not possible")
    check_facts(facts, OP, f"op {name!r}: facts")
    named = Op.parse(name)
    told = (named.kind, named["n"], named["k"], named.option("weight"))
    if named.name != name or told != ("dense", numbers["n"], numbers["k"], weight):
        raise ValueError(
            f"op {name!r} says other things than its entry: n={numbers['n']}, k={numbers['k']}, weight={weight}"
        )
    return PackOp(
        name=name,
        weight=weight,
        kernels=kernels,
        tile_rows=tuple(MicroKernel.parse(k)["mr"] for k in kernels),
        threads=threads,
        facts=facts,
        **numbers,
    )


def _whole(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 2**31:
        raise ValueError(f"{what} is {value!r}, must be a whole number in 1..2^31-1")
    return value


def _text(value: Any) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 200 or not value.isascii():
        raise ValueError(f"{value!r} is not a short ASCII text")
    return value


def _list(value: Any, most: int) -> Sequence[Any]:
    if not isinstance(value, list) or len(value) > most:
        raise ValueError(f"expected a list of at most {most} entries")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a key is given twice")
    return found


def _no_constant(word: str) -> Any:
    raise ValueError(f"{word} is not JSON")


def _depth(raw: bytes) -> int:
    """Deepest nesting, or a little more when brackets stand inside texts, which no manifest has."""
    depth = deepest = 0
    for bracket in _BRACKETS.findall(raw):
        depth += 1 if bracket in b"[{" else -1
        deepest = max(deepest, depth)
    return deepest


def _said(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
