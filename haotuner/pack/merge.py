"""Merging packs tuned for different instruction sets and devices into one that serves each with what fits it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from haotuner.errors import PackInvalid, UsageError
from haotuner.pack.folder import FACTS, LIBRARY_LIMIT_BYTES, MANIFEST, MODELS, SIZE_LIMIT_BYTES, Folder, is_level, steadily
from haotuner.pack.levels import level_of
from haotuner.pack.library_file import check_library
from haotuner.pack.manifest import PACK_SCHEMA, Manifest, manifest_in, read_level, read_levels, read_manifest
from haotuner.pack.write import as_json, publish, sealed


def merge(packs: Sequence[Path], out: Path) -> Path:
    """Publish a pack at ``out`` that holds every pack of ``packs`` as a level.

    Files are checked (none of their code is run, so that packs of wider CPUs can be merged here). UsageError unless the
    packs are plain ones of different levels. UsageError, too, unless those for CPUs hold the same models, or without any the
    same ops (those of a model are what its level runs); likewise those for devices. PackInvalid or PackMismatch for damage.
    """
    result: dict[str, tuple[Path, Manifest]] = {}
    for pack in packs:
        manifest = _plain(pack)
        level = level_of(manifest.arch, manifest.device_id)
        if not is_level(level):
            raise PackInvalid(f"{pack} was built for {level}, which is no level of a pack; tune again or restore the pack")
        if level in result:
            raise UsageError(f"{result[level][0]} and {pack} are both for {level}; merge one of each level")
        result[level] = pack, manifest
    if len(result) < 2:
        raise UsageError("name at least two packs of different levels, e.g. tuned with --device cpu:avx512 and cpu:avx2")
    for placed in (False, True):
        _check_alike([(pack, manifest) for pack, manifest in result.values() if manifest.on_device == placed])
    files, hashes = dict[str, bytes](), dict[str, str]()
    for level, (pack, _) in result.items():
        manifest_ = steadily(pack, _files_of)
        hashes[level] = hashlib.sha256(manifest_[MANIFEST]).hexdigest()
        files |= {f"{level}/{name}": data for name, data in manifest_.items()}
    files |= sealed(as_json({"schema": PACK_SCHEMA, "levels": hashes}))
    return publish(out, files, _sound)


def _files_of(folder: Folder) -> dict[str, bytes]:
    """Every file of a plain pack, by its path in it. PackInvalid where one is not what the manifest says."""
    raw, manifest = folder.read(MANIFEST, SIZE_LIMIT_BYTES), manifest_in(folder)
    files = {MANIFEST: raw} | (sealed(raw) if manifest.document["schema"] > 1 else {})
    file_list = [(manifest.library, manifest.sha256, LIBRARY_LIMIT_BYTES)]
    if "facts_sha256" in manifest.document:
        file_list.append((FACTS, manifest.document["facts_sha256"], SIZE_LIMIT_BYTES))
    for model in manifest.models.values():
        file_list.append((f"{MODELS}/{model.schedule}", model.schedule_sha256, SIZE_LIMIT_BYTES))
        if model.bytecode:
            file_list.append((f"{MODELS}/{model.bytecode}", model.bytecode_sha256, SIZE_LIMIT_BYTES))
        file_list.append((f"{MODELS}/{model.weights}", model.weights_sha256, model.weights_bytes))
    return files | {name: _checked(folder, name, sha256, limit) for name, sha256, limit in file_list}


def _check_alike(packs: Sequence[tuple[Path, Manifest]]) -> None:
    """UsageError unless the packs hold the same: every CPU must find every model and op, and so must every device."""
    for pack, manifest in packs[1:]:
        first, first_manifest = packs[0]
        left, other = _device_names(first_manifest), _device_names(manifest)
        if left != other:
            raise UsageError(f"{first} and {pack} differ in {', '.join(sorted(left ^ other))}; every CPU must find all")


def _device_names(manifest: Manifest) -> set[str]:
    return {f"model {name}" for name in manifest.models} or {op.name for op in manifest.ops}


def _checked(folder: Folder, name: str, sha256: str, limit: int) -> bytes:
    """A file of a pack. PackInvalid where it is not what the manifest says."""
    path = folder.path / name
    try:
        data, _ = folder.read_below(name, limit)
    except OSError as error:
        raise PackInvalid(f"{path} cannot be read ({error.strerror}); restore the pack or tune again") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise PackInvalid(f"{path}: its sha256 is not the one in the manifest; restore the pack or tune again")
    return data


def _plain(pack: Path) -> Manifest:

    if read_levels(pack) is not None:
        raise UsageError(f"{pack} was merged already; name the packs that it was made from")
    manifest = read_manifest(pack)
    check_library(pack, manifest)
    return manifest


def _sound(aside: Path) -> None:
    """Check of what is about to be published: every level's files are those that its manifest names."""
    levels = read_levels(aside) or {}
    for level in levels:
        check_library(aside, read_level(aside, level, levels))
