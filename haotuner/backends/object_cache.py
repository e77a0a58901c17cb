"""A folder of object files by what they were compiled from.

The runtime's C is the same in every library, the code of a micro-kernel in every library that has it.

An entry is one file, ``KEY.HASH.o``: the hash of what goes into it and the hash of what it holds. It appears whole or not at
all, whoever else writes the same one; one that was damaged since is not found.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MEANING = 1  # of a key: raised when what goes into it changes
ABANDONED_SECONDS = 3600.0  # an unfinished entry that is older was left by a process that was killed


@dataclass(frozen=True, slots=True)
class ObjectCache:
    """A folder that any number of processes use at a time."""

    folder: Path

    def find(self, key: str) -> Path | None:
        """The sound object file of a key; None where there is none."""
        return next((path for path in self.folder.glob(f"{key}.*.o") if _sound(path)), None)

    def keep(self, key: str, made: Path) -> Path:
        """Publish an object file, which is moved; where it lies from now on. OSError if the folder cannot be written."""
        place = self.folder / f"{key}.{_hash(made.read_bytes())}.o"
        return made.replace(place)

    def fetch(self, key: str, out: Path, make: Callable[[Path], None]) -> None:
        """Write the object file of a key: the kept one, else what ``make`` writes, which is kept where that is possible."""
        with contextlib.suppress(OSError):
            kept = self.find(key)
            if kept is not None:
                shutil.copyfile(kept, out)  # it may be trimmed while ``out`` is still wanted
                os.utime(kept)
                return
        make(out)
        with contextlib.suppress(OSError), self.aside() as aside:
            self.keep(key, Path(shutil.copyfile(out, Path(aside) / "made.o")))

    def aside(self) -> tempfile.TemporaryDirectory[str]:
        """A folder in which to make what is to be kept. OSError if there is no place for one."""
        self.folder.mkdir(parents=True, exist_ok=True)
        for left in self.folder.glob(".new-*"):
            with contextlib.suppress(OSError):
                if time.time() - left.stat().st_mtime > ABANDONED_SECONDS:
                    shutil.rmtree(left, ignore_errors=True)
        return tempfile.TemporaryDirectory(prefix=".new-", dir=self.folder)


def trim(folder: Path, most_bytes: int) -> None:
    """Remove object files in and below a folder, the longest unused first, until at most so many bytes are left."""
    found = []
    for path in folder.rglob("*.o"):
        with contextlib.suppress(OSError):  # others trim it, too
            seen = path.stat()
            found.append((seen.st_mtime, seen.st_size, path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most_bytes:
            return
        with contextlib.suppress(OSError):
            path.unlink()
        left -= size


def hash_of(words: Sequence[str], include: Iterable[Path]) -> str:
    """Hash of a compiler with its flags and of every header of ours that a source may include; the system's come with it."""
    found = hashlib.sha256(repr((MEANING, *words)).encode())
    for folder in include:
        for header in sorted(folder.rglob("*.h")):
            found.update(f"\0{header.relative_to(folder)}\0".encode() + header.read_bytes())
    return found.hexdigest()


def key_of(source: Path, common: str) -> str:
    """Name of what becomes of a source; ``common``: what ``hash_of`` said."""
    return _hash(common.encode() + source.read_bytes())


def _sound(path: Path) -> bool:
    try:
        return _hash(path.read_bytes()) == path.name.split(".")[1]
    except OSError:
        return False


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:32]
