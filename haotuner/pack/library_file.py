"""The library of a pack as a file: whole, the one that the manifest names, and an ELF file of this kind of host."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from haotuner.errors import PackInvalid, PackMismatch
from haotuner.host.elf import elf_problem
from haotuner.pack.folder import LIBRARY_LIMIT_BYTES, Folder, steadily
from haotuner.pack.manifest import Manifest


def check_library(pack: Path, manifest: Manifest) -> None:
    """PackInvalid or PackMismatch unless the library is whole and the one that the manifest names; maps nothing."""
    steadily(pack, lambda folder: check_library_in(folder, manifest))


def check_library_in(folder: Folder, manifest: Manifest) -> os.stat_result:
    """Facts of the library's file of an open pack; raises as ``check_library``."""
    path = folder.path / manifest.library
    try:
        data, facts = folder.read_below(manifest.library, LIBRARY_LIMIT_BYTES)
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise PackInvalid(f"{folder.path}: cannot read {manifest.library} ({words}); restore the pack") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != manifest.sha256:
        raise PackInvalid(
            f"{path}: its sha256 is {digest[:16]}…, the manifest says {manifest.sha256[:16]}…; the file was changed or cut. "
            "Restore the pack or tune again; none of its code was run"
        )
    problem = elf_problem(data)
    if problem:
        raise PackMismatch(f"{path} {problem}; tune on this kind of host")
    return facts
