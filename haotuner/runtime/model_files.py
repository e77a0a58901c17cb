"""The files of a pack's model: schedule and bytecode, checked by their hashes, and the weights, which the library maps."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path

from haotuner.errors import PackInvalid
from haotuner.host.files import open_regular
from haotuner.pack.folder import SIZE_LIMIT_BYTES, Folder, steadily
from haotuner.pack.manifest import Manifest
from haotuner.pack.models import ModelFiles
from haotuner.pack.names import MODELS


@dataclass(frozen=True, slots=True)
class OpenModel:
    """``schedule``: the document's bytes, from the file ``where``; ``weights``: an open file.

    ``bytecode``: the same schedule as a library runs it; None where the manifest names none.
    """

    schedule: bytes
    bytecode: bytes | None
    where: str
    weights: int


@contextmanager
def opened_model(pack: Path, manifest: Manifest, name: str, *, hashed: bool = False) -> Iterator[OpenModel]:
    """A model's files; the weights stay open inside. PackInvalid where one is missing or not what the manifest says.

    ``hashed``: whether to compare the weights' sha256, as nobody else does for libraries that hold no checksums of them.
    """
    files, pack = manifest.models[name], (pack / manifest.library).parent.parent  # of one level of a merged pack: its folder
    schedule, bytecode = steadily(pack, lambda folder: _schedule(folder, files))
    where = pack / MODELS / files.weights
    with opened_weights(where, files) as weights:
        if hashed and hashlib.file_digest(weights, "sha256").hexdigest() != files.weights_sha256:
            raise PackInvalid(f"{where}: its sha256 is not the one in the manifest; restore the pack or tune again")
        yield OpenModel(schedule, bytecode, str(pack / MODELS / files.schedule), weights.fileno())


def opened_weights(where: Path, files: ModelFiles) -> BufferedReader:
    """The file of weights, of the right size, open. PackInvalid where it is missing or another one."""
    try:
        weights = open_regular(where, files.weights_bytes, follow=False)
    except OSError as error:
        raise PackInvalid(f"{where} cannot be read ({error.strerror}); restore the pack or tune again") from error
    if os.fstat(weights.fileno()).st_size != files.weights_bytes:
        weights.close()
        raise PackInvalid(f"{where} is not the file that the manifest names; restore the pack or tune again")
    return weights


def _schedule(folder: Folder, files: ModelFiles) -> tuple[bytes, bytes | None]:
    schedule = _checked(folder, files.schedule, files.schedule_sha256)
    return schedule, _checked(folder, files.bytecode, files.bytecode_sha256) if files.bytecode else None


def _checked(folder: Folder, name: str, sha256: str) -> bytes:
    path = folder.path / MODELS / name
    try:
        with folder.inner(MODELS) as inner:
            raw = inner.read(name, SIZE_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        raise PackInvalid(f"{path} cannot be read ({error}); restore the pack or tune again") from error
    if hashlib.sha256(raw).hexdigest() != sha256:
        raise PackInvalid(f"{path}: its sha256 is not the one in the manifest; restore the pack or tune again")
    return raw
