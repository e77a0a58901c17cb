"""The files of a pack's model: the schedule, checked by its hash, and the weights, mapped and shared by all processes."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import numpy as np

from haotuner.errors import PackInvalid
from haotuner.pack.folder import SIZE_LIMIT_BYTES, Folder, steadily
from haotuner.pack.manifest import Manifest
from haotuner.pack.models import MODELS, ModelFiles
from haotuner.runtime.schedule import Schedule


def opened_model(pack: Path, manifest: Manifest, name: str) -> tuple[Schedule, Any]:
    """A model's schedule and its weights as bytes. PackInvalid where a file is missing or not what the manifest says."""
    files = manifest.models[name]
    raw = steadily(pack, lambda folder: _schedule(folder, files))
    where = pack / MODELS / files.weights
    try:
        if where.is_symlink() or where.stat().st_size != files.weights_bytes:
            raise PackInvalid(f"{where} is not the file that the manifest names; restore the pack or tune again")
        weights = np.memmap(where, np.uint8, "r") if files.weights_bytes else np.zeros(0, np.uint8)
    except OSError as error:
        raise PackInvalid(f"{where} cannot be read ({error.strerror}); restore the pack or tune again") from error
    return Schedule.of(raw, str(pack / MODELS / files.schedule)), weights


def _schedule(folder: Folder, files: ModelFiles) -> bytes:
    path = folder.path / MODELS / files.schedule
    try:
        with folder.inner(MODELS) as inner:
            raw = inner.read(files.schedule, SIZE_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        raise PackInvalid(f"{path} cannot be read ({error}); restore the pack or tune again") from error
    if hashlib.sha256(raw).hexdigest() != files.schedule_sha256:
        raise PackInvalid(f"{path}: its sha256 is not the one in the manifest; restore the pack or tune again")
    return raw
