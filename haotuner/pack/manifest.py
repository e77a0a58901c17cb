"""manifest.json: what a pack says of itself and of its models, read strictly before any file is opened."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

from haotuner.errors import PackInvalid, UsageError
from haotuner.pack.facts import DOCUMENT, L3_LIMIT_BYTES, FactsFile, OpFacts, check_facts, check_texts
from haotuner.pack.folder import (
    ARCH,
    DEVICE_ID,
    LIBRARY,
    MANIFEST,
    MODEL_NAME,
    MODELS,
    SEAL,
    SIZE_LIMIT_BYTES,
    Folder,
    parse,
    steadily,
)
from haotuner.pack.levels import is_placed, level_hashes, level_of, served_level
from haotuner.pack.op import PackOp, listed, read_op, read_op_1, text
from haotuner.spec.limits import MAX_OPS

_SHA = re.compile(r"[0-9a-f]{64}")
_SOURCES = ("source_sha256", "subgraph_of_sha256")  # of a whole model's file, and of the file that a subgraph is a part of


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """Names inside the folder, with hashes; the weights' is only compared by ``verify``.

    ``bytecode``: empty where the pack's library holds the words of the schedule, or only Python runs it.
    ``source_sha256``: of the file that the model was read from; empty where it is not known. ``is_subgraph``: the model is
    a part of that file.
    """

    schedule: str
    schedule_sha256: str
    weights: str
    weights_sha256: str
    weights_bytes: int
    bytecode: str = ""
    bytecode_sha256: str = ""
    source_sha256: str = ""
    is_subgraph: bool = False


class ModelContent(NamedTuple):
    """Content of a model in a pack. ``schedule``: JSON for people; ``bytecode``: the same as a library runs it, or None.

    ``source_sha256``: of the file that it was read from; empty where that is not known, and of a chain's segments.
    ``is_subgraph``: the model is a part of that file.
    """

    schedule: bytes
    bytecode: bytes | None
    weights: bytes
    source_sha256: str = ""
    is_subgraph: bool = False


def read_models(value: Any) -> dict[str, ModelFiles]:
    """The models of a manifest; ValueError says what is wrong."""
    if not isinstance(value, dict):
        raise ValueError("models must be an object")
    result = {}
    for name, document in value.items():
        files = ModelFiles(
            document["schedule"],
            document["schedule_sha256"],
            document["weights"],
            document["weights_sha256"],
            document["weights_bytes"],
            document.get("bytecode", ""),
            document.get("bytecode_sha256", ""),
            document.get("source_sha256", document.get("subgraph_of_sha256", "")),
            "subgraph_of_sha256" in document,
        )
        if not MODEL_NAME.fullmatch(name) or files.schedule != f"{name}.json" or files.weights != f"{name}.weights":
            raise ValueError(f"model {name!r}: its files must be NAME.json and NAME.weights")
        if files.bytecode not in ("", f"{name}.bytecode") or bool(files.bytecode) != bool(files.bytecode_sha256):
            raise ValueError(f"model {name!r}: its bytecode must be NAME.bytecode, with a sha256")
        hashes = [files.schedule_sha256, files.weights_sha256, *([files.bytecode_sha256] if files.bytecode else [])]
        hashes += [files.source_sha256] if files.source_sha256 != "" else []
        if not all(isinstance(sha256, str) and _SHA.fullmatch(sha256) for sha256 in hashes):
            raise ValueError(f"model {name}: files without a sha256")
        if type(files.weights_bytes) is not int or files.weights_bytes < 0:
            raise ValueError(f"model {name}: weights of {files.weights_bytes!r} bytes")
        result[name] = files
    return result


def model_files(models: Mapping[str, ModelContent]) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Entries of the manifest for models by name, and their files by path in the pack."""
    documents: dict[str, Any] = {}
    files: dict[str, bytes] = {}
    for name, (schedule, bytecode, weights, source_sha256, is_subgraph) in models.items():
        documents[name] = {
            "schedule": f"{name}.json",
            "schedule_sha256": hashlib.sha256(schedule).hexdigest(),
            "weights": f"{name}.weights",
            "weights_sha256": hashlib.sha256(weights).hexdigest(),
            "weights_bytes": len(weights),
        }
        documents[name] |= {_SOURCES[is_subgraph]: source_sha256} if source_sha256 else {}
        files |= {f"{MODELS}/{name}.json": schedule, f"{MODELS}/{name}.weights": weights}
        if bytecode is not None:
            documents[name] |= {
                "bytecode": f"{name}.bytecode",
                "bytecode_sha256": hashlib.sha256(bytecode).hexdigest(),
            }
            files[f"{MODELS}/{name}.bytecode"] = bytecode
    return documents, files


PACK_SCHEMA = 2
SCHEMAS = (1, 2)  # that are read


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A whole manifest; ``document`` is the JSON it came from, without the facts of ops that lie in a file of their own."""

    library: str
    sha256: str
    arch: str
    device_id: str
    ops: tuple[PackOp, ...]
    document: Mapping[str, Any]
    batch_invariant: bool = False  # promised: a row's result has the same bits in every batch, on any thread count
    models: Mapping[str, ModelFiles] = field(default_factory=dict)
    unverified: bool = False  # nothing was measured on the device: plans and times are predictions

    @property
    def on_device(self) -> bool:
        """True if its code runs on a device beside the CPU, for tensors that lie there."""
        return is_placed(self.arch)

    @property
    def driver(self) -> int:
        """The oldest CUDA whose driver takes its code, as drivers say it (13000); 0 where the pack does not say."""
        return int(self.document.get("driver", {}).get("version", 0))

    @property
    def whole_document(self) -> dict[str, Any]:
        """``document`` with the facts of all ops. PackInvalid where they cannot be read."""
        if "facts_sha256" not in self.document:
            return dict(self.document)
        ops = [entry | {"facts": dict(op.facts)} for entry, op in zip(self.document["ops"], self.ops, strict=True)]
        return {**self.document, "ops": ops}

    @property
    def tuning(self) -> Mapping[str, Any]:
        """The tuning run: ``shapes, weights, seconds, stopped``, with defaults where the pack does not say."""
        return {"shapes": "?", "weights": "cold", "seconds": 0.0, "stopped": "?"} | dict(self.document.get("tuning", {}))


def read_manifest(pack: Path) -> Manifest:
    """The manifest of a pack directory. PackInvalid says what is wrong; nothing outside the pack is opened.

    Of a pack with several levels (``pack/levels.py``) it is that of the level which this host serves.
    """
    return steadily(pack, manifest_in)


Choice = Callable[[Mapping[str, Manifest]], str]  # manifests of the levels of a pack -> the one that is served


def manifest_in(folder: Folder, choose: Choice | None = None) -> Manifest:
    """``read_manifest`` of an open folder; ``choose`` one of its levels for a device, otherwise it is for this CPU."""
    path, raw = folder.path / MANIFEST, _raw(folder)
    document = parse(path, raw)
    try:
        levels = level_hashes(document)
        if levels is None:
            return _decode(document, raw, folder)
        _known_schema(document)
        _sealed(document, raw, folder)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise PackInvalid(f"{path}: {_error_text(error)}; tune again or restore the pack from where it came") from error
    if choose is None:
        return _level_in(folder, served_level(levels), levels)
    manifests = {level: _level_in(folder, level, levels) for level in levels}
    return manifests[choose(manifests)]


def read_levels(pack: Path) -> dict[str, str] | None:
    """Levels of a pack with the hash of each one's manifest, or None of a plain pack. PackInvalid as above."""

    def read(folder: Folder) -> dict[str, str] | None:
        raw = _raw(folder)
        document = parse(folder.path / MANIFEST, raw)
        try:
            levels = level_hashes(document)
            if levels is not None:
                _known_schema(document)
                _sealed(document, raw, folder)
        except ValueError as error:
            raise PackInvalid(f"{folder.path / MANIFEST}: {error}; restore the pack from where it came") from error
        return levels

    return steadily(pack, read)


def read_level(pack: Path, level: str, levels: Mapping[str, str]) -> Manifest:
    """The manifest of one level of a pack; its library's path is relative to ``pack``. PackInvalid as above."""
    return steadily(pack, lambda folder: _level_in(folder, level, levels))


def _level_in(folder: Folder, level: str, levels: Mapping[str, str]) -> Manifest:
    path = folder.path / level
    try:
        with ExitStack() as stack:
            inner = folder
            for name in level.split("/"):
                inner = stack.enter_context(inner.inner(name))
            return _level(folder, inner, level, levels[level])
    except OSError as error:
        raise PackInvalid(f"{path}: cannot read {MANIFEST} ({error.strerror}); restore the pack") from error


def _level(folder: Folder, inner: Folder, level: str, sha256: str) -> Manifest:
    path, raw = inner.path, _raw(inner)
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise PackInvalid(f"{path / MANIFEST}: not the one that {folder.path / MANIFEST} names (sha256); restore the pack")
    document = parse(path / MANIFEST, raw)
    try:
        manifest = _decode(document, raw, inner)
    except (KeyError, TypeError, ValueError, UsageError) as error:
        raise PackInvalid(f"{path / MANIFEST}: {_error_text(error)}; restore the pack from where it came") from error
    built = level_of(manifest.arch, manifest.device_id)
    if built != level:
        raise PackInvalid(f"{path} was built for {built}, not for {level}; restore the pack or merge again")
    return replace(manifest, library=f"{level}/{manifest.library}")


def _raw(folder: Folder) -> bytes:
    try:
        return folder.read(MANIFEST, SIZE_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise PackInvalid(f"{folder.path} is not a haotuner pack: cannot read {MANIFEST} ({words}); name the directory "
                          "that `haotuner tune --out` wrote") from error  # fmt: skip


def _known_schema(document: Any) -> None:
    if not isinstance(document, dict) or "schema" not in document:
        raise ValueError("it has no schema number: not a haotuner manifest")
    if type(document["schema"]) is not int or document["schema"] not in SCHEMAS:
        raise ValueError(f"schema {document['schema']!r}, this haotuner reads {' and '.join(map(str, SCHEMAS))}")


def _sealed(document: Any, raw: bytes, folder: Folder) -> None:
    """ValueError unless the manifest is the one that the pack was published with. Read with whatever schema it claims."""
    try:
        seal = folder.read(SEAL, 100)
    except FileNotFoundError:
        if document["schema"] == 1:
            return
        raise ValueError(f"{SEAL} is missing, which holds its hash") from None
    except (OSError, ValueError) as error:
        raise ValueError(f"{SEAL} cannot be read ({getattr(error, 'strerror', None) or error})") from error
    if seal != (hashlib.sha256(raw).hexdigest() + "\n").encode():
        raise ValueError(f"its sha256 is not the one in {SEAL}; the manifest was changed")


def _decode(document: Any, raw: bytes, folder: Folder) -> Manifest:
    _known_schema(document)
    _sealed(document, raw, folder)
    files = document["files"]
    if not isinstance(files, dict) or len(files) != 1:
        raise ValueError("files must name exactly one library")
    ((library, sha256),) = files.items()
    if not LIBRARY.fullmatch(library) or not isinstance(sha256, str) or not _SHA.fullmatch(sha256):
        raise ValueError(f"file {library!r} is not lib/<16 hex digits>.so with a sha256")
    check_texts(document, raw)
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
    read = read_op_1 if document["schema"] == 1 else read_op
    ops = tuple(read(entry) for entry in listed(document["ops"], MAX_OPS))
    if "facts_sha256" in document:
        apart = FactsFile(folder.path, document["facts_sha256"])
        ops = tuple(replace(op, facts=OpFacts(apart, op.name)) for op in ops)
    arch = _named(device, "arch", ARCH)
    loose = [op.name for op in ops if op.kind == "dense" and op.unpacked_weight and not is_placed(arch)]
    if loose:
        raise ValueError(f"op {loose[0]!r}: code for a CPU reads panels of a weight, of which its entry says nothing")
    models = read_models(document.get("models", {}))
    if len({op.name for op in ops}) != len(ops) or not (ops or models):
        raise ValueError("ops must be named once each; without a model there is at least one")
    return Manifest(
        library=library,
        sha256=sha256,
        arch=arch,
        device_id=_named(device, "id", DEVICE_ID),
        ops=ops,
        document=document,
        batch_invariant=invariant,
        models=models,
        unverified=unverified,
    )


def _named(device: Any, key: str, pattern: re.Pattern[str]) -> str:
    """A fact that names a folder in merged packs."""
    result = text(device[key])
    if not pattern.fullmatch(result):
        raise ValueError(f"device.{key} is {result!r:.90}, which is no name of letters, digits and any of _.+-")
    return result


def _error_text(error: Exception) -> str:
    return f"{error.args[0]!r} is missing" if isinstance(error, KeyError) else str(error)
