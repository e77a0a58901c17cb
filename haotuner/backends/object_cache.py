"""Caches of compiled code: object files by what they were compiled from, hashes of kernels' code by their sources.

The runtime's C is the same in every library, the code of a micro-kernel in every library that has it.

An entry is one file, ``KEY.HASH.o``: the hash of what goes into it and the hash of what it holds. It appears whole or not at
all, whoever else writes the same one; one that was damaged since is not found.

An entry becomes code of packs. So only files and folders are used that this user alone may write, as ssh does with its keys.

Hashes of kernels' code, kept by the sources that they were made from: a run that resumes generates nothing again.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from haotuner.host.files import open_regular, read_regular, written_aside
from haotuner.microkernels.index import FAMILIES

MEANING = 1  # of a key: raised when what goes into it changes
LARGEST_BYTES = 1 << 30
_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH
ABANDONED_SECONDS = 3600.0  # an unfinished entry that is older was left by a process that was killed


@dataclass(frozen=True, slots=True)
class ObjectCache:
    """A folder that any number of processes use at a time."""

    folder: Path

    def find(self, key: str) -> Path | None:
        """The sound object file of a key; None where there is none, or where others may write in the folder."""
        if not_private(self.folder):
            return None
        return next((path for path in self.folder.glob(f"{key}.*.o") if _sound(path)), None)

    def keep(self, key: str, made: Path) -> Path:
        """Publish an object file, which is moved; where it lies from now on. OSError if the folder cannot be written."""
        path = self.folder / f"{key}.{_hash(made.read_bytes())}.o"
        made.chmod(0o600)  # the umask may let a group write
        return made.replace(path)

    def fetch(self, key: str, out: Path, make: Callable[[Path], None]) -> None:
        """Write the object file of a key: the kept one, else what ``make`` writes, which is kept where that is possible."""
        with contextlib.suppress(OSError):
            cached = self.find(key)
            if cached is not None:
                shutil.copyfile(cached, out)  # it may be trimmed while ``out`` is still wanted
                os.utime(cached)
                return
        make(out)
        with contextlib.suppress(OSError), self.aside() as aside:
            self.keep(key, Path(shutil.copyfile(out, Path(aside) / "made.o")))

    def aside(self) -> tempfile.TemporaryDirectory[str]:
        """A folder in which to make what is to be kept. OSError if there is no place for one, or others may write there."""
        make_private(self.folder)
        if why := not_private(self.folder):
            raise PermissionError(errno.EACCES, why)
        for left in self.folder.glob(".new-*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        return tempfile.TemporaryDirectory(prefix=".new-", dir=self.folder)


def not_private(folder: Path) -> str:
    """Reason that others may put files into a folder, which may not be there yet; empty if this user alone may.

    Folders above may be root's, or such that nobody moves what others have in them (/tmp).
    """
    try:
        path = folder.resolve()
        for level in (path, *path.parents):
            if not level.exists():
                continue
            facts = level.stat()
            if facts.st_uid not in ((os.geteuid(),) if level == path else (os.geteuid(), 0)):
                return f"{level} belongs to another user"
            if facts.st_mode & _OTHERS_WRITE and (level == path or not facts.st_mode & stat.S_ISVTX):
                return f"others may write in {level}; chmod go-w {level} ends that"
    except (OSError, RuntimeError) as error:  # RuntimeError: a link to itself
        return f"{folder} cannot be looked at ({getattr(error, 'strerror', None) or error})"
    return ""


def make_private(folder: Path) -> None:
    """A folder, and those above it that are missing, for this user alone whatever the umask says."""
    for level in (*reversed(folder.parents), folder):
        with contextlib.suppress(FileExistsError):
            level.mkdir(0o700)


def trim(folder: Path, most_bytes: int) -> None:
    """Remove object files in and below a folder, the longest unused first, until at most so many bytes are left."""
    result = []
    for path in folder.rglob("*.o"):
        with contextlib.suppress(OSError):  # others trim it, too
            seen = path.stat()
            result.append((seen.st_mtime, seen.st_size, path))
    left = sum(size for _, size, _ in result)
    for _, size, path in sorted(result):
        if left <= most_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        left -= size


def hash_of(words: Sequence[str], include: Iterable[Path]) -> str:
    """Hash of a compiler with its flags and of every header of ours that a source may include; the system's come with it."""
    result = hashlib.sha256(repr((MEANING, *words)).encode())
    for folder in include:
        for header in sorted(folder.rglob("*.h")):
            result.update(f"\0{header.relative_to(folder)}\0".encode() + header.read_bytes())
    return result.hexdigest()


def key_of(source: Path, common: str) -> str:
    """Name of what becomes of a source; ``common``: what ``hash_of`` said."""
    return _hash(common.encode() + source.read_bytes())


def _sound(path: Path) -> bool:
    try:
        with open_regular(path, LARGEST_BYTES, follow=False) as file:
            facts = os.fstat(file.fileno())
            mine = facts.st_uid == os.geteuid() and not facts.st_mode & _OTHERS_WRITE
            return mine and _hash(file.read()) == path.name.split(".")[1]
    except OSError:
        return False


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]


_PACKAGE = Path(__file__).resolve().parents[1]
_SOURCES = (".py", ".c", ".h", ".cuh")
_LARGEST_BYTES = 64 << 20
CODES = "codes"  # the folder, beside those of kept objects
_MOST_FILES = 8  # of other versions of the package, the newest
_FAMILIES = frozenset(family.name for family in FAMILIES)  # others are of kinds that files and packages of others bring


@lru_cache(maxsize=1)
def sources_hash() -> str:
    """Hash of every source of the package; where it lies counts for nothing."""
    digest = hashlib.sha256()
    for path in sorted(_PACKAGE.rglob("*")):
        if path.suffix in _SOURCES:
            digest.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def stored_codes(
    folder: Path | None, words: Sequence[str], names: Sequence[str], make: Callable[[Sequence[str]], Mapping[str, str]]
) -> dict[str, str]:
    """The hash of each kernel's code: what the folder has of this package, else what ``make`` says, which is stored.

    Args:
        folder: files by hash of package and ``words``; None, or one in which others may write: nothing is stored.
        words: what the code depends on beside the package: target and toolchain.
        names: of the kernels.
        make: hashes by name of those that are not stored.
    """
    key = hashlib.sha256(json.dumps([sources_hash(), *words]).encode()).hexdigest()[:32]
    path = None if folder is None or not_private(folder) else folder / f"{key}.json"
    stored = {} if path is None else _read(path)
    missing = [name for name in names if name not in stored]
    if missing:
        made = dict(make(missing))
        stored |= made
        own = {name: code for name, code in made.items() if name.partition("__")[0] in _FAMILIES}
        if path is not None and own:
            with contextlib.suppress(OSError):
                _write(path, own)
    return {name: stored[name] for name in names}


def _read(path: Path) -> dict[str, str]:
    try:
        data = json.loads(read_regular(path, _LARGEST_BYTES, follow=False))
    except (OSError, ValueError):  # damaged: made again
        return {}
    return {str(name): str(code) for name, code in data.items()} if isinstance(data, dict) else {}


def _write(path: Path, made: Mapping[str, str]) -> None:
    make_private(path.parent)
    with written_aside(path) as aside:
        aside.write_text(json.dumps({**_read(path), **made}, indent=0, sort_keys=True), encoding="utf-8")
    others = sorted(path.parent.glob("*.json"), key=lambda other: other.stat().st_mtime)
    for old in others[:-_MOST_FILES]:
        old.unlink(missing_ok=True)
