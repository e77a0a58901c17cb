"""Merging packs tuned for different instruction sets and devices into one that serves each with what fits it."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path

from haotuner.errors import PackInvalid, UsageError
from haotuner.pack.facts_apart import FACTS
from haotuner.pack.levels import level_of
from haotuner.pack.manifest import MANIFEST, PACK_SCHEMA, Manifest, read_bytes, read_level, read_levels, read_manifest
from haotuner.pack.models import MODELS
from haotuner.pack.write import as_json, publish, sealed


def merge(packs: Sequence[Path], out: Path) -> Path:
    """Publish a pack at ``out`` that holds every pack of ``packs`` as a level.

    Files are checked (none of their code is run, so that packs of wider CPUs can be merged here). UsageError unless the
    packs are plain ones of different levels, and those for CPUs, like those for devices, hold the same models, or
    without any the same ops (those of a model are what its level runs); PackInvalid or PackMismatch for damage.
    """
    found: dict[str, tuple[Path, Manifest]] = {}
    for pack in packs:
        manifest = _plain(pack)
        level = level_of(manifest.arch, manifest.device_id)
        if level in found:
            raise UsageError(f"{found[level][0]} and {pack} are both for {level}; merge one of each level")
        found[level] = pack, manifest
    if len(found) < 2:
        raise UsageError("name at least two packs of different levels, e.g. tuned with --device cpu:avx512 and cpu:avx2")
    for placed in (False, True):
        _check_alike([(pack, manifest) for pack, manifest in found.values() if manifest.placed == placed])
    files, hashes = {}, {}
    for level, (pack, manifest) in found.items():
        raw = read_bytes(pack)
        hashes[level] = hashlib.sha256(raw).hexdigest()
        files[f"{level}/{MANIFEST}"] = raw
        if manifest.document["schema"] > 1:
            files |= {f"{level}/{name}": data for name, data in sealed(raw).items()}
        if "facts_sha256" in manifest.document:
            files[f"{level}/{FACTS}"] = _checked(pack / FACTS, manifest.document["facts_sha256"])
        for one in manifest.models.values():
            for name, sha256 in ((one.schedule, one.schedule_sha256), (one.weights, one.weights_sha256)):
                files[f"{level}/{MODELS}/{name}"] = _checked(pack / MODELS / name, sha256)
        files[f"{level}/{manifest.library}"] = (pack / manifest.library).read_bytes()
    files |= sealed(as_json({"schema": PACK_SCHEMA, "levels": hashes}))
    return publish(out, files, _sound)


def _check_alike(packs: Sequence[tuple[Path, Manifest]]) -> None:
    """UsageError unless the packs hold the same: every CPU must find every model and op, and so must every device."""
    for pack, manifest in packs[1:]:
        first, held = packs[0]
        one, other = _asked(held), _asked(manifest)
        if one != other:
            raise UsageError(f"{first} and {pack} differ in {', '.join(sorted(one ^ other))}; every CPU must find all")


def _asked(manifest: Manifest) -> set[str]:
    return {f"model {name}" for name in manifest.models} or {op.name for op in manifest.ops}


def _checked(path: Path, sha256: str) -> bytes:
    """A file of a pack. PackInvalid where it is not what the manifest says."""
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PackInvalid(f"{path} cannot be read ({error.strerror}); restore the pack or tune again") from error
    if hashlib.sha256(data).hexdigest() != sha256:
        raise PackInvalid(f"{path}: its sha256 is not the one in the manifest; restore the pack or tune again")
    return data


def _plain(pack: Path) -> Manifest:
    from haotuner.runtime.library import check_library

    if read_levels(pack) is not None:
        raise UsageError(f"{pack} was merged already; name the packs that it was made from")
    manifest = read_manifest(pack)
    check_library(pack, manifest)
    return manifest


def _sound(aside: Path) -> None:
    """What is about to be published holds together: every level's files are those that its manifest names."""
    from haotuner.runtime.library import check_library

    levels = read_levels(aside) or {}
    for level in levels:
        check_library(aside, read_level(aside, level, levels))
