"""A pack's folder, held open while it is read: every file comes from the same pack, also while a new one takes its place.

Files are opened relative to the folder's descriptor. A pack is replaced by an exchange of folders, and the old one is
deleted, so a reader may find its files gone; it then begins again with the new folder.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from haotuner.errors import HaotunerError, PackInvalid
from haotuner.host.files import open_regular

SIZE_LIMIT_BYTES = 16 << 20  # of a manifest: the largest pack tried has 0.3 MB; a hostile one must not fill the memory
LIBRARY_LIMIT_BYTES = 1 << 30
ATTEMPTS = 100  # a pack is loaded in milliseconds; nobody replaces one so often

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder of a pack."""

    path: Path
    descriptor: int

    def read(self, name: str, limit: int) -> bytes:
        """Content of a regular file of at most ``limit`` bytes. OSError as of ``open_regular``."""
        return self.read_facts(name, limit)[0]

    def read_facts(self, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        """``read``, and the facts of the file that was read."""
        with open_regular(name, limit, follow=False, folder=self.descriptor) as stream:
            return stream.read(limit + 1)[: limit + 1], os.fstat(stream.fileno())

    def read_below(self, name: str, limit: int) -> tuple[bytes, os.stat_result]:
        """``read_facts`` of a file in a folder of this one, ``lib/<hash>.so``; no part of the path may be a link."""
        first, _, rest = name.partition("/")
        if rest:
            with self.inner(first) as inner:
                return inner.read_below(rest, limit)
        try:
            return self.read_facts(first, limit)
        except OSError as error:
            if error.errno == errno.ELOOP:
                raise linked(self.path / first) from error
            raise

    @contextmanager
    def inner(self, name: str) -> Iterator[Folder]:
        """A folder inside this one. OSError as the system says it; PackInvalid for a link."""
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            descriptor = os.open(name, flags, dir_fd=self.descriptor)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR) and stat.S_ISLNK(
                os.stat(name, dir_fd=self.descriptor, follow_symlinks=False).st_mode
            ):
                raise linked(self.path / name) from error
            raise
        try:
            yield Folder(self.path / name, descriptor)
        finally:
            os.close(descriptor)

    def moved(self) -> bool:
        """True if the path names another folder by now, or none."""
        try:
            return not os.path.samestat(os.fstat(self.descriptor), self.path.stat())
        except OSError:
            return True


def linked(path: Path) -> PackInvalid:
    """The refusal of a link."""
    return PackInvalid(f"{path} is a link; a pack holds its own files: copy the pack with its contents")


def steadily(pack: Path, read: Callable[[Folder], T]) -> T:
    """``read`` with the pack's folder, again where it failed because another pack took its place meanwhile.

    PackInvalid if there is no such folder; otherwise what ``read`` raises.
    """
    for attempt in range(ATTEMPTS):
        try:
            descriptor = os.open(pack, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            words = getattr(error, "strerror", None) or error
            raise PackInvalid(f"{pack} is not a haotuner pack: cannot read it ({words}); name the directory "
                              "that `haotuner tune --out` wrote") from error  # fmt: skip
        folder = Folder(pack, descriptor)
        try:
            return read(folder)
        except HaotunerError:
            if attempt == ATTEMPTS - 1 or not folder.moved():
                raise
        finally:
            os.close(descriptor)
    raise AssertionError("the last attempt returns or raises")
