"""The files of a pack's model: the schedule, checked by its hash, and the weights, which the library maps."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from haotuner.errors import PackInvalid
from haotuner.pack.folder import SIZE_LIMIT_BYTES, Folder, steadily
from haotuner.pack.manifest import Manifest
from haotuner.pack.models import MODELS, ModelFiles


@dataclass(frozen=True, slots=True)
class OpenModel:
    """``schedule``: the document's bytes, from the file ``where``; ``weights``: an open file."""

    schedule: bytes
    where: str
    weights: int


@contextmanager
def opened_model(pack: Path, manifest: Manifest, name: str) -> Iterator[OpenModel]:
    """A model's files; the weights stay open inside. PackInvalid where one is missing or not what the manifest says."""
    files, pack = manifest.models[name], (pack / manifest.library).parent.parent  # of one level of a merged pack: its folder
    raw = steadily(pack, lambda folder: _schedule(folder, files))
    where = pack / MODELS / files.weights
    try:
        weights = os.open(where, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise PackInvalid(f"{where} cannot be read ({error.strerror}); restore the pack or tune again") from error
    try:
        if os.fstat(weights).st_size != files.weights_bytes:
            raise PackInvalid(f"{where} is not the file that the manifest names; restore the pack or tune again")
        yield OpenModel(raw, str(pack / MODELS / files.schedule), weights)
    finally:
        os.close(weights)


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
