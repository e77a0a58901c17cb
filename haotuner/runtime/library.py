"""A pack's library: checked in full, then loaded. None of its code runs before every check has passed."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from haotuner.errors import PackInvalid, PackMismatch
from haotuner.pack.manifest import Manifest, read_manifest
from haotuner.runtime.elf import elf_problem
from haotuner.runtime.host import missing_flags, platform_problem


def checked_manifest(pack: Path) -> Manifest:
    """Manifest of a pack whose every file is sound and fits this host.

    Raises:
        PackInvalid: a file is missing, changed, a link, or not what the manifest says.
        PackMismatch: the pack is sound, but this host cannot run it.
    """
    manifest = read_manifest(pack)
    check_library(pack, manifest)
    problem = platform_problem()
    if problem:
        raise PackMismatch(f"{pack}: {problem}")
    missing = missing_flags(manifest.arch)
    if missing is None:
        raise PackMismatch(
            f"{pack} was built for {manifest.arch}, which is no x86-64 level; it cannot be served on this CPU"
        )
    if missing:
        raise PackMismatch(
            f"{pack} was built for {manifest.arch}; this CPU lacks {', '.join(missing)}. "
            "Tune on this host, or with --device cpu:avx2 or cpu:sse on the other"
        )
    return manifest


def check_library(pack: Path, manifest: Manifest) -> None:
    """PackInvalid or PackMismatch unless the library is whole and the one that the manifest names; maps nothing."""
    path = pack / manifest.library
    if path.is_symlink() or path.parent.is_symlink():
        raise PackInvalid(f"{path} is a link; a pack holds its own files: copy the pack with its contents")
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PackInvalid(f"{pack}: cannot read {manifest.library} ({error.strerror}); restore the pack") from error
    digest = hashlib.sha256(data).hexdigest()
    if digest != manifest.sha256:
        raise PackInvalid(
            f"{path}: its sha256 is {digest[:16]}…, the manifest says {manifest.sha256[:16]}…; the file was changed or cut. "
            "Restore the pack or tune again; none of its code was run"
        )
    problem = elf_problem(data)
    if problem:
        raise PackMismatch(f"{path} {problem}; tune on this kind of host")


class Library:
    """Functions of a loaded library. Keeps it mapped as long as it lives."""

    def __init__(self, pack: Path) -> None:
        self.manifest = checked_manifest(pack)
        self._module = _load(pack / self.manifest.library)

    def function(self, name: str) -> Callable[..., Any]:
        """One exported function; PackInvalid if the library has no such symbol."""
        try:
            found: Callable[..., Any] = self._module.get_function(name)
        except (AttributeError, RuntimeError, ValueError) as error:
            raise PackInvalid(f"the pack's library has no function {name}: {error}; tune again") from error
        return found


def _load(path: Path) -> Any:
    """Map the library.

    Its name is its content's hash and packs are published by rename, so the file does not change in place. The path is
    absolute, because a bare name would be searched for elsewhere.
    """
    import tvm_ffi

    absolute = str(path.resolve())
    try:
        try:
            return tvm_ffi.load_module(absolute, keep_module_alive=False)  # unloads with its last function
        except TypeError:  # tvm-ffi before 0.1.6 has no such choice
            return tvm_ffi.load_module(absolute)
    except (OSError, RuntimeError, ValueError) as error:
        raise PackInvalid(f"{path} cannot be loaded: {error}; tune again or restore the pack") from error
